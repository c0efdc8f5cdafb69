"""Read, check and complete the configuration of a command. Nothing is cached."""

import contextlib
import logging
import platform
import re
import stat
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from nemo_gym.common.paths import find, nearest
from nemo_gym.config import keys as keys
from nemo_gym.config import secrets
from nemo_gym.config.checks import (
    check_references,
    copy_agent_settings,
    drop_unused_references,
    server_blocks,
    unmet_references,
    valid_servers,
    warn_about_unsupported_keys,
)
from nemo_gym.config.command_line import CommandLine
from nemo_gym.config.error_messages import validate
from nemo_gym.config.interpolation import UNKNOWN_SOURCES, resolve
from nemo_gym.config.keys import *  # noqa: F403 -- the names of all keys are public here
from nemo_gym.config.ports import complete_head_server, default_host, fill_hosts_and_ports
from nemo_gym.config.ports import find_open_port as find_open_port
from nemo_gym.config.servers import server_instances as server_instances
from nemo_gym.config.sources import ConfigSources, Initial, apply_directives, read_sources
from nemo_gym.config.tree import map_leaves
from nemo_gym.config.types import GlobalSettings, ModelServerRef
from nemo_gym.config.types import ServerSpec as ServerSpec
from nemo_gym.errors import ConfigError, UnknownServerError

logger = logging.getLogger(__name__)

POLICY_MODEL = ModelServerRef(type="responses_api_models", name="policy_model")
LOCAL_MODEL_CONFIG = "responses_api_models/local_model/configs/local_model.yaml"
"""The policy model if a config refers to one and no endpoint is configured."""

_PINNED_DISTRIBUTIONS = {"ray": "ray[default]", "openai": "openai"}
"""Distributions that a server's own virtualenv must have in the same version, if they are installed here."""


def load_config(
    arguments: CommandLine | Sequence[str] = (),
    *,
    initial: Initial | None = None,
    dotenv_path: Path | None = None,
    use_dotenv: bool = True,
    fill_ports: bool = True,
) -> DictConfig:
    """The configuration for a command line, or for arguments such as `+a.b=v`.

    `initial` is merged between `env.yaml` and the command line; if it is a function, it gets what these two set.
    Without `fill_ports`, a server without a configured port gets one when it is started.
    """
    known = secrets.process_secrets()
    sources = read_sources(arguments, initial=initial, dotenv_path=dotenv_path, use_dotenv=use_dotenv)
    config = sources.merge()
    removed = apply_directives(config)
    try:
        complete(config, sources=sources, fill_ports=fill_ports)
    except UnknownServerError as error:
        is_meant = {name: by for name, by in removed.items() if f"/{name} in the list" in str(error)}
        gone = [f"'{name}' was removed, because '{by}' inherits from it" for name, by in is_meant.items()]
        raise (UnknownServerError(f"{error} {'; '.join(gone)}. To keep it, use _copy.") if gone else error) from error
    found = secrets.find_secrets(config, sources.dotenv)
    secrets.set_process_secrets(known | found)
    _warn_if_readable_by_all(sources)
    return config


def _warn_if_readable_by_all(sources: ConfigSources) -> None:
    path = sources.dotenv_path
    holds_secrets = path is not None and secrets.find_secrets(sources.dotenv, sources.dotenv).values
    if path is not None and holds_secrets and path.stat().st_mode & stat.S_IROTH:
        logger.warning("%s holds secrets and every user of this machine can read it. Run: chmod 600 %s", path, path)


def complete(config: DictConfig, *, sources: ConfigSources = UNKNOWN_SOURCES, fill_ports: bool = True) -> None:
    """Check a merged config and fill in defaults, in place."""
    drop_unused_references(config)
    warn_about_unsupported_keys(config)
    settings = read_settings(config, sources=sources)
    copy_agent_settings(config)
    servers = valid_servers(config, error_on_almost_servers=settings.error_on_almost_servers, sources=sources)
    lacks_model = any(ref == POLICY_MODEL for _, ref in unmet_references(servers))
    if lacks_model and keys.POLICY_BASE_URL_KEY_NAME not in config:
        _refuse_half_an_endpoint(config)
        logger.info("no model endpoint is configured: '%s' runs on this machine's CPU", POLICY_MODEL.name)
        config.merge_with(OmegaConf.load(find(LOCAL_MODEL_CONFIG)))
        servers = server_blocks(config, sources=sources).servers
    check_references(servers, sources=sources)
    host = default_host(settings)
    head = complete_head_server(config, host, sources=sources)
    config[keys.PORT_RANGE_LOW_KEY_NAME] = settings.port_range_low
    config[keys.PORT_RANGE_HIGH_KEY_NAME] = settings.port_range_high
    config[keys.SKIP_VENV_IF_PRESENT_KEY_NAME] = settings.skip_venv_if_present
    config[keys.DISALLOWED_PORTS_KEY_NAME] = fill_hosts_and_ports(
        config, servers, head, host=host, settings=settings, fill_ports=fill_ports
    )
    config[keys.HEAD_SERVER_DEPS_KEY_NAME] = installed_pins()
    config[keys.PYTHON_VERSION_KEY_NAME] = platform.python_version()


def read_settings(config: DictConfig, *, sources: ConfigSources = UNKNOWN_SOURCES) -> GlobalSettings:
    """The global keys that control how the config is read; null counts as not set."""
    present = set(GlobalSettings.model_fields).intersection(config)
    values = {str(key): resolve(config, (str(key),), sources=sources) for key in present}
    is_set = {key: value for key, value in values.items() if value is not None}
    return validate(GlobalSettings, is_set, what="The configuration", sources=sources)


def _refuse_half_an_endpoint(config: DictConfig) -> None:
    """Who sets a key or a model name means an endpoint, not the model on this machine."""
    names = (keys.POLICY_API_KEY_KEY_NAME, keys.POLICY_MODEL_NAME_KEY_NAME)
    given = [name for name in names if config.get(name) is not None]
    if given:
        raise ConfigError(
            f"{' and '.join(given)} set, but no {keys.POLICY_BASE_URL_KEY_NAME}: set it in env.yaml, or remove "
            f"{' and '.join(given)} to use the small model on this machine's CPU."
            f"{nearest(keys.POLICY_BASE_URL_KEY_NAME, map(str, config), cutoff=0.8)}"
        )


def installed_pins() -> list[str]:
    """Requirements that pin a server's own virtualenv to the versions installed here."""
    pins = []
    for distribution, requirement in _PINNED_DISTRIBUTIONS.items():
        with contextlib.suppress(metadata.PackageNotFoundError):
            pins.append(f"{requirement}=={metadata.version(distribution)}")
    return pins


def dump(config: DictConfig, *, masked: bool = True) -> str:
    """The config as YAML with interpolations resolved and, by default, secrets masked."""
    values = resolve(config)
    shown = map_leaves(_escaped, secrets.masked(values) if masked else values)
    return OmegaConf.to_yaml(OmegaConf.create(shown))


def _escaped(_path: keys.KeyPath, value: Any) -> Any:
    """Escape text that looks like an interpolation."""
    return re.sub(r"(\\*)\$\{", lambda match: match[1] * 2 + r"\${", value) if isinstance(value, str) else value


def get_first_server_config_dict(global_config_dict: DictConfig, top_level_path: str) -> DictConfig:
    """The innermost part of a server block: its one implementation of its one server type."""
    if top_level_path not in global_config_dict:
        known = [str(key) for key in global_config_dict]
        raise UnknownServerError(f"No server '{top_level_path}' in the configuration.{nearest(top_level_path, known)}")
    server_type = global_config_dict[top_level_path]
    implementations = next(iter(server_type.values()))
    inner: DictConfig = next(iter(implementations.values()))
    return inner
