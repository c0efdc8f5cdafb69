"""The cached configuration of a process. Code of the public NeMo Gym calls this where ours calls `load_config`."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, cast

from omegaconf import DictConfig, OmegaConf
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from nemo_gym.config import keys, secrets
from nemo_gym.config.checks import almost_servers_report, check_references, server_blocks
from nemo_gym.config.command_line import CommandLine, process_command_line
from nemo_gym.config.loading import complete_head_server, fill_hosts_and_ports, load_config, read_settings
from nemo_gym.config.sources import command_line_config, load_files
from nemo_gym.config.types import ServerInstanceConfig
from nemo_gym.runtime.stack import process_config

logger = logging.getLogger(__name__)

_GLOBAL_CONFIG_DICT: DictConfig | None = None


def _as_dict_config(value: Any) -> Any:
    return OmegaConf.create(value) if isinstance(value, dict) else value


class GlobalConfigDictParserConfig(BaseModel):
    """The sources of a configuration."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    dotenv_path: Path | None = None
    """File to read as `env.yaml`. Ignored if it does not exist."""

    initial_global_config_dict: Annotated[DictConfig | None, BeforeValidator(_as_dict_config)] = None
    """Takes precedence over files; the command line takes precedence over it."""

    skip_load_from_cli: bool = False
    skip_load_from_dotenv: bool = False

    hide_secrets: bool = False
    """Mask secrets in the result. It can then be shown, but not run."""

    fill_ports: bool = True
    """Choose a port for every server that does not set one. If false, it is chosen when the server starts."""

    NO_MODEL_GLOBAL_CONFIG_DICT: ClassVar[DictConfig] = OmegaConf.create(
        {
            keys.POLICY_BASE_URL_KEY_NAME: "",
            keys.POLICY_API_KEY_KEY_NAME: "",
            keys.POLICY_MODEL_NAME_KEY_NAME: "",
            "policy_model": {"responses_api_models": {keys.DUMMY_MODEL: {keys.ENTRYPOINT_KEY_NAME: "app.py"}}},
        }
    )
    """Initial config for commands that need no model."""


class GlobalConfigDictParser:
    """Reads a configuration. Each step is one method."""

    def parse(self, global_config_dict_parser_config: GlobalConfigDictParserConfig | None = None) -> DictConfig:
        """Read, check and complete a configuration."""
        options = global_config_dict_parser_config or GlobalConfigDictParserConfig()
        config = load_config(
            CommandLine() if options.skip_load_from_cli else process_command_line(),
            initial=options.initial_global_config_dict,
            dotenv_path=options.dotenv_path,
            use_dotenv=not options.skip_load_from_dotenv,
            fill_ports=options.fill_ports,
        )
        return secrets.masked(config) if options.hide_secrets else config

    def parse_no_environment(self, initial_global_config_dict: DictConfig | None = None) -> DictConfig:
        """Read a configuration from Python alone, without command line and `env.yaml`."""
        return self.parse(
            GlobalConfigDictParserConfig(
                initial_global_config_dict=initial_global_config_dict,
                skip_load_from_cli=True,
                skip_load_from_dotenv=True,
            )
        )

    def parse_global_config_dict_from_cli(self) -> DictConfig:
        """Return the configuration of this process's command line alone."""
        return command_line_config(process_command_line())

    def load_extra_config_paths(self, config_paths: Sequence[str]) -> tuple[list[str], list[DictConfig]]:
        """Load files and their includes. Return paths and configs, in the order of merging."""
        files = load_files(config_paths, settings=OmegaConf.create(), named_in="the call")
        return [file.config_path for file in files], [file.config for file in files]

    def filter_for_server_instance_configs(self, global_config_dict: DictConfig) -> list[ServerInstanceConfig]:
        """Return the valid server blocks."""
        return server_blocks(global_config_dict).servers

    def validate_and_populate_defaults(
        self,
        global_config_dict: DictConfig,
        server_instance_configs: Sequence[ServerInstanceConfig],
        default_host: str,
    ) -> list[int]:
        """Check references, fill in hosts and ports, and return the ports in use."""
        check_references(server_instance_configs)
        head = complete_head_server(global_config_dict, default_host)
        settings = read_settings(global_config_dict)
        return fill_hosts_and_ports(
            global_config_dict, server_instance_configs, head, host=default_host, settings=settings
        )

    def detect_and_report_almost_servers(self, global_config_dict: DictConfig) -> list[tuple[str, ValidationError]]:
        """Return the invalid server blocks, and log their errors."""
        almost_servers = server_blocks(global_config_dict).almost_servers
        if almost_servers:
            logger.warning("%s", almost_servers_report(almost_servers))
        return [(almost.name, almost.error) for almost in almost_servers]


def get_global_config_dict(
    global_config_dict_parser_config: GlobalConfigDictParserConfig | None = None,
    global_config_dict_parser_cls: type[GlobalConfigDictParser] = GlobalConfigDictParser,
) -> DictConfig:
    """Return the configuration of this process: the cached one, else that of its servers, else the one in an
    environment variable from its parent, else a new one."""
    global _GLOBAL_CONFIG_DICT  # noqa: PLW0603 -- the cache is part of the public interface
    if _GLOBAL_CONFIG_DICT is None:
        if (published := process_config()) is not None:
            return published
        passed = os.environ.get(keys.NEMO_GYM_CONFIG_DICT_ENV_VAR_NAME)
        if passed is None:
            _GLOBAL_CONFIG_DICT = global_config_dict_parser_cls().parse(global_config_dict_parser_config)
        else:
            _GLOBAL_CONFIG_DICT = cast(DictConfig, OmegaConf.create(passed))
            secrets.set_process_secrets(secrets.process_secrets() | secrets.find_secrets(_GLOBAL_CONFIG_DICT))
    return _GLOBAL_CONFIG_DICT


def maybe_get_global_config_dict() -> DictConfig | None:
    """Return the configuration of this process if it has one already. Reads no command line."""
    known = _GLOBAL_CONFIG_DICT is not None or process_config() is not None
    return get_global_config_dict() if known or keys.NEMO_GYM_CONFIG_DICT_ENV_VAR_NAME in os.environ else None


def get_hf_token() -> str | None:
    """Return the Hugging Face token, if the configuration of this process has one."""
    token = get_global_config_dict().get(keys.HF_TOKEN_KEY_NAME)
    return None if token is None else str(token)


def set_global_config_dict(
    global_config_dict_parser_config: GlobalConfigDictParserConfig | None = None,
    global_config_dict_parser_cls: type[GlobalConfigDictParser] = GlobalConfigDictParser,
) -> None:
    """Read the configuration again and cache it."""
    global _GLOBAL_CONFIG_DICT  # noqa: PLW0603 -- the cache is part of the public interface
    _GLOBAL_CONFIG_DICT = global_config_dict_parser_cls().parse(global_config_dict_parser_config)
