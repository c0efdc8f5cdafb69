"""The configuration under the names that outside code knows, and the cache behind `get_global_config_dict`.

Our own code calls `load_config`, which keeps nothing. The cache is filled by the first call, never by an import.
"""

import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, cast

from omegaconf import DictConfig, OmegaConf
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from nemo_gym.config_checks import UnknownServerError as UnknownServerError
from nemo_gym.config_checks import almost_servers_report, check_references, server_blocks
from nemo_gym.config_keys import CONFIG_PATHS_KEY_NAME as CONFIG_PATHS_KEY_NAME
from nemo_gym.config_keys import DEFAULT_HEAD_SERVER_PORT as DEFAULT_HEAD_SERVER_PORT
from nemo_gym.config_keys import DEFAULT_HOST_KEY_NAME as DEFAULT_HOST_KEY_NAME
from nemo_gym.config_keys import DISALLOWED_PORTS_KEY_NAME as DISALLOWED_PORTS_KEY_NAME
from nemo_gym.config_keys import ENTRYPOINT_KEY_NAME as ENTRYPOINT_KEY_NAME
from nemo_gym.config_keys import ERROR_ON_ALMOST_SERVERS_KEY_NAME as ERROR_ON_ALMOST_SERVERS_KEY_NAME
from nemo_gym.config_keys import HEAD_SERVER_DEPS_KEY_NAME as HEAD_SERVER_DEPS_KEY_NAME
from nemo_gym.config_keys import HEAD_SERVER_KEY_NAME as HEAD_SERVER_KEY_NAME
from nemo_gym.config_keys import HF_TOKEN_KEY_NAME as HF_TOKEN_KEY_NAME
from nemo_gym.config_keys import NEMO_GYM_CONFIG_DICT_ENV_VAR_NAME as NEMO_GYM_CONFIG_DICT_ENV_VAR_NAME
from nemo_gym.config_keys import NEMO_GYM_CONFIG_PATH_ENV_VAR_NAME as NEMO_GYM_CONFIG_PATH_ENV_VAR_NAME
from nemo_gym.config_keys import NEMO_GYM_RESERVED_TOP_LEVEL_KEYS as NEMO_GYM_RESERVED_TOP_LEVEL_KEYS
from nemo_gym.config_keys import PIP_INSTALL_VERBOSE_KEY_NAME as PIP_INSTALL_VERBOSE_KEY_NAME
from nemo_gym.config_keys import POLICY_API_KEY_KEY_NAME as POLICY_API_KEY_KEY_NAME
from nemo_gym.config_keys import POLICY_BASE_URL_KEY_NAME as POLICY_BASE_URL_KEY_NAME
from nemo_gym.config_keys import POLICY_MODEL_NAME_KEY_NAME as POLICY_MODEL_NAME_KEY_NAME
from nemo_gym.config_keys import PORT_RANGE_HIGH_KEY_NAME as PORT_RANGE_HIGH_KEY_NAME
from nemo_gym.config_keys import PORT_RANGE_LOW_KEY_NAME as PORT_RANGE_LOW_KEY_NAME
from nemo_gym.config_keys import PYTHON_VERSION_KEY_NAME as PYTHON_VERSION_KEY_NAME
from nemo_gym.config_keys import RAY_HEAD_NODE_ADDRESS_KEY_NAME as RAY_HEAD_NODE_ADDRESS_KEY_NAME
from nemo_gym.config_keys import SKIP_VENV_IF_PRESENT_KEY_NAME as SKIP_VENV_IF_PRESENT_KEY_NAME
from nemo_gym.config_keys import TASK_INDEX_KEY_NAME as TASK_INDEX_KEY_NAME
from nemo_gym.config_keys import USE_ABSOLUTE_IP_KEY_NAME as USE_ABSOLUTE_IP_KEY_NAME
from nemo_gym.config_keys import UV_PIP_SET_PYTHON_KEY_NAME as UV_PIP_SET_PYTHON_KEY_NAME
from nemo_gym.config_loading import LoadedConfig as LoadedConfig
from nemo_gym.config_loading import dump as dump
from nemo_gym.config_loading import load_config as load_config
from nemo_gym.config_loading import read_config as read_config
from nemo_gym.config_loading import read_settings
from nemo_gym.config_ports import complete_head_server, fill_hosts_and_ports
from nemo_gym.config_ports import find_open_port as find_open_port
from nemo_gym.config_sources import command_line_config, load_files
from nemo_gym.config_types import ServerInstanceConfig
from nemo_gym.config_values import UnsetKeyError as UnsetKeyError
from nemo_gym.masking import masked as masked
from nemo_gym.paths import nearest
from nemo_gym.published import published
from nemo_gym.server_instances import ServerInstance as ServerInstance
from nemo_gym.server_instances import server_instances as server_instances

logger = logging.getLogger(__name__)

_GLOBAL_CONFIG_DICT: DictConfig | None = None


def _as_dict_config(value: Any) -> Any:
    return OmegaConf.create(value) if isinstance(value, dict) else value


class GlobalConfigDictParserConfig(BaseModel):
    """What a configuration is read from."""

    model_config = ConfigDict(arbitrary_types_allowed=True, use_attribute_docstrings=True)

    dotenv_path: Path | None = None
    """The file read as `env.yaml`. Passed over if it does not exist."""

    initial_global_config_dict: Annotated[DictConfig | None, BeforeValidator(_as_dict_config)] = None
    """Wins over files, loses against the command line."""

    skip_load_from_cli: bool = False
    skip_load_from_dotenv: bool = False

    hide_secrets: bool = False
    """Replace secrets in the result. It is then for showing, not for running."""

    fill_ports: bool = True
    """Choose a port for every server that names none. If false, whoever starts it has to."""

    NO_MODEL_GLOBAL_CONFIG_DICT: ClassVar[DictConfig] = OmegaConf.create(
        {POLICY_BASE_URL_KEY_NAME: "", POLICY_API_KEY_KEY_NAME: "", POLICY_MODEL_NAME_KEY_NAME: ""}
    )
    """An initial config for work that needs no model, so that nobody has to name one."""


class GlobalConfigDictParser:
    """The steps of reading a configuration, one method each."""

    def parse(self, global_config_dict_parser_config: GlobalConfigDictParserConfig | None = None) -> DictConfig:
        """Read, check and complete a configuration."""
        options = global_config_dict_parser_config or GlobalConfigDictParserConfig()
        config = load_config(
            () if options.skip_load_from_cli else sys.argv[1:],
            initial=options.initial_global_config_dict,
            dotenv_path=options.dotenv_path,
            use_dotenv=not options.skip_load_from_dotenv,
            fill_ports=options.fill_ports,
        )
        return masked(config) if options.hide_secrets else config

    def parse_no_environment(self, initial_global_config_dict: DictConfig | None = None) -> DictConfig:
        """Read a configuration from Python alone: neither command line nor `env.yaml`."""
        return self.parse(
            GlobalConfigDictParserConfig(
                initial_global_config_dict=initial_global_config_dict,
                skip_load_from_cli=True,
                skip_load_from_dotenv=True,
            )
        )

    def parse_global_config_dict_from_cli(self) -> DictConfig:
        """What the command line of this process says, by itself."""
        return command_line_config(sys.argv[1:])

    def load_extra_config_paths(self, config_paths: Sequence[str]) -> tuple[list[str], list[DictConfig]]:
        """Read the files and all that they include. Both results are in the order of merging."""
        files = load_files(config_paths, above=OmegaConf.create(), named_in="the call")
        return [file.given for file in files], [file.config for file in files]

    def filter_for_server_instance_configs(self, global_config_dict: DictConfig) -> list[ServerInstanceConfig]:
        """The valid server blocks."""
        return server_blocks(global_config_dict).servers

    def validate_and_populate_defaults(
        self,
        global_config_dict: DictConfig,
        server_instance_configs: Sequence[ServerInstanceConfig],
        default_host: str,
    ) -> list[int]:
        """Check references, fill in hosts and ports, and return the ports that are spoken for."""
        check_references(global_config_dict, server_instance_configs)
        head = complete_head_server(global_config_dict, default_host)
        settings = read_settings(global_config_dict)
        return fill_hosts_and_ports(
            global_config_dict, server_instance_configs, head, host=default_host, settings=settings
        )

    def detect_and_report_almost_servers(self, global_config_dict: DictConfig) -> list[tuple[str, ValidationError]]:
        """The server blocks that are not valid; what is wrong with them is logged."""
        almost_servers = server_blocks(global_config_dict).almost_servers
        if almost_servers:
            logger.warning("%s", almost_servers_report(almost_servers))
        return [(almost.name, almost.error) for almost in almost_servers]


def get_global_config_dict(
    global_config_dict_parser_config: GlobalConfigDictParserConfig | None = None,
    global_config_dict_parser_cls: type[GlobalConfigDictParser] = GlobalConfigDictParser,
) -> DictConfig:
    """The configuration of this process: the cached one, else the one its parent handed down, else a new one."""
    global _GLOBAL_CONFIG_DICT  # noqa: PLW0603 -- the cache is part of the public interface
    if _GLOBAL_CONFIG_DICT is None:
        handed_down = published() or os.environ.get(NEMO_GYM_CONFIG_DICT_ENV_VAR_NAME)
        if handed_down is None:
            _GLOBAL_CONFIG_DICT = global_config_dict_parser_cls().parse(global_config_dict_parser_config)
        else:
            _GLOBAL_CONFIG_DICT = cast(DictConfig, OmegaConf.create(handed_down))
    return _GLOBAL_CONFIG_DICT


def set_global_config_dict(
    global_config_dict_parser_config: GlobalConfigDictParserConfig | None = None,
    global_config_dict_parser_cls: type[GlobalConfigDictParser] = GlobalConfigDictParser,
) -> None:
    """Read the configuration anew and cache it."""
    global _GLOBAL_CONFIG_DICT  # noqa: PLW0603 -- the cache is part of the public interface
    _GLOBAL_CONFIG_DICT = global_config_dict_parser_cls().parse(global_config_dict_parser_config)


def get_first_server_config_dict(global_config_dict: DictConfig, top_level_path: str) -> DictConfig:
    """The innermost part of a server block: its one implementation of its one server type."""
    if top_level_path not in global_config_dict:
        known = [str(key) for key in global_config_dict]
        raise UnknownServerError(f"No server '{top_level_path}' in the configuration.{nearest(top_level_path, known)}")
    server_type = global_config_dict[top_level_path]
    implementations = next(iter(server_type.values()))
    inner: DictConfig = next(iter(implementations.values()))
    return inner
