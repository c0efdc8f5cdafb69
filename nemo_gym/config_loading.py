"""Read, check and complete the one configuration of a command. Nothing is kept between two calls."""

import logging
import platform
import re
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf

from nemo_gym import masking
from nemo_gym.config_checks import (
    almost_servers_error,
    almost_servers_report,
    check_references,
    drop_unused_names,
    is_missing,
    server_blocks,
)
from nemo_gym.config_keys import (
    DISALLOWED_PORTS_KEY_NAME,
    ENTRYPOINT_KEY_NAME,
    HEAD_SERVER_DEPS_KEY_NAME,
    POLICY_BASE_URL_KEY_NAME,
    PORT_RANGE_HIGH_KEY_NAME,
    PORT_RANGE_LOW_KEY_NAME,
    PYTHON_VERSION_KEY_NAME,
    SKIP_VENV_IF_PRESENT_KEY_NAME,
)
from nemo_gym.config_ports import complete_head_server, default_host, fill_hosts_and_ports
from nemo_gym.config_sources import Sources, read_sources
from nemo_gym.config_types import GlobalSettings, ModelServerRef, ServerInstanceConfig
from nemo_gym.config_values import UNKNOWN_SOURCES, resolved
from nemo_gym.paths import find, nearest
from nemo_gym.validation import validate

logger = logging.getLogger(__name__)

_PINNED_DISTRIBUTIONS = {"ray": "ray[default]", "openai": "openai"}
"""What a server with a virtualenv of its own must have in the version of the parent, if the parent has it at all."""


POLICY_MODEL = ModelServerRef(type="responses_api_models", name="policy_model")
LOCAL_MODEL_CONFIG = "responses_api_models/local_model/configs/local_model.yaml"
"""What plays the policy model when a config asks for one and nothing says where it is."""


class LoadedConfig(NamedTuple):
    """A configuration, and where its values came from."""

    config: DictConfig
    sources: Sources


def load_config(
    arguments: Sequence[str] = (),
    *,
    initial: Mapping[str, Any] | DictConfig | None = None,
    dotenv_path: Path | None = None,
    use_dotenv: bool = True,
    fill_ports: bool = True,
) -> DictConfig:
    """The configuration that command line arguments such as `+a.b=v` ask for.

    `initial` is merged between `env.yaml` and the command line. Without `fill_ports`, a server that names no port has
    none afterwards: whoever starts it binds one.
    """
    return read_config(
        arguments, initial=initial, dotenv_path=dotenv_path, use_dotenv=use_dotenv, fill_ports=fill_ports
    ).config


def read_config(
    arguments: Sequence[str] = (),
    *,
    initial: Mapping[str, Any] | DictConfig | None = None,
    dotenv_path: Path | None = None,
    use_dotenv: bool = True,
    fill_ports: bool = True,
) -> LoadedConfig:
    """As `load_config`, with the sources, for later errors that name the file."""
    sources = read_sources(arguments, initial=initial, dotenv_path=dotenv_path, use_dotenv=use_dotenv)
    config = sources.merged()
    complete(config, sources=sources, fill_ports=fill_ports)
    return LoadedConfig(config, sources)


def complete(config: DictConfig, *, sources: Sources = UNKNOWN_SOURCES, fill_ports: bool = True) -> None:
    """Check a merged config and fill in, in place, what it leaves open."""
    drop_unused_names(config)
    settings = read_settings(config, sources=sources)
    servers = valid_servers(config, error_on_almost_servers=settings.error_on_almost_servers, sources=sources)
    if POLICY_BASE_URL_KEY_NAME not in config and is_missing(POLICY_MODEL, config, servers, sources=sources):
        logger.info("no model is configured: '%s' is the one on this machine's CPU", POLICY_MODEL.name)
        config.merge_with(OmegaConf.load(find(LOCAL_MODEL_CONFIG)))
        servers = valid_servers(config, error_on_almost_servers=settings.error_on_almost_servers, sources=sources)
    check_references(config, servers, sources=sources)
    host = default_host(settings)
    head = complete_head_server(config, host, sources=sources)
    config[PORT_RANGE_LOW_KEY_NAME] = settings.port_range_low
    config[PORT_RANGE_HIGH_KEY_NAME] = settings.port_range_high
    config[SKIP_VENV_IF_PRESENT_KEY_NAME] = settings.skip_venv_if_present
    config[DISALLOWED_PORTS_KEY_NAME] = fill_hosts_and_ports(
        config, servers, head, host=host, settings=settings, fill_ports=fill_ports
    )
    config[HEAD_SERVER_DEPS_KEY_NAME] = installed_pins()
    config[PYTHON_VERSION_KEY_NAME] = platform.python_version()


def read_settings(config: DictConfig, *, sources: Sources = UNKNOWN_SOURCES) -> GlobalSettings:
    """The global keys that steer the rest; one that is null counts as absent."""
    given = [key for key in GlobalSettings.model_fields if key in set(config)]
    values = {key: resolved(config, (key,), sources=sources) for key in given}
    set_values = {key: value for key, value in values.items() if value is not None}
    return validate(GlobalSettings, set_values, what="The configuration", where=sources.where)


def valid_servers(
    config: DictConfig, *, error_on_almost_servers: bool = True, sources: Sources = UNKNOWN_SOURCES
) -> list[ServerInstanceConfig]:
    """The servers of a config. Blocks that are not valid are an error, or else are left out with a warning."""
    blocks = server_blocks(config, sources=sources)
    names = [server.name for server in blocks.servers]
    for name in blocks.without_entrypoint:
        logger.warning(
            "'%s' is no server and is left out: nothing in it has an '%s'.%s",
            name,
            ENTRYPOINT_KEY_NAME,
            nearest(name, names),
        )
    if blocks.almost_servers and error_on_almost_servers:
        raise almost_servers_error(blocks.almost_servers)
    if blocks.almost_servers:
        logger.warning("%s", almost_servers_report(blocks.almost_servers))
    return blocks.servers


def installed_pins() -> list[str]:
    """Requirements that keep a server's own virtualenv in step with this one; what is not installed is not pinned."""
    pins = []
    for distribution, requirement in _PINNED_DISTRIBUTIONS.items():
        try:
            pins.append(f"{requirement}=={metadata.version(distribution)}")
        except metadata.PackageNotFoundError:
            continue
    return pins


def dump(config: DictConfig, *, masked: bool = True, sources: Sources = UNKNOWN_SOURCES) -> str:
    """The config as YAML with every interpolation resolved, by default without its secrets."""
    values = resolved(config, sources=sources)
    return OmegaConf.to_yaml(OmegaConf.create(_escaped(masking.masked(values) if masked else values)))


def _escaped(value: Any) -> Any:
    """Text that looks like an interpolation but is meant literally has to be written with a backslash."""
    if isinstance(value, dict):
        return {key: _escaped(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_escaped(item) for item in value]
    if not isinstance(value, str):
        return value
    return re.sub(r"(\\*)\$\{", lambda match: match[1] * 2 + r"\${", value)
