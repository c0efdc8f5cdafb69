"""Read, check and complete the configuration of a command: its servers with their folders, hosts and ports. Nothing is
cached."""

import contextlib
import logging
import platform
import random
import re
import socket
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf

from nemo_gym.common.paths import find, nearest, search_roots
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
from nemo_gym.config.keys import *  # noqa: F403 -- the names of all keys are public here
from nemo_gym.config.keys import (
    DEFAULT_HEAD_SERVER_PORT,
    DEFAULT_HOST,
    DEFAULT_PORT_RANGE_HIGH,
    DEFAULT_PORT_RANGE_LOW,
    HEAD_SERVER_KEY_NAME,
    KeyPath,
    map_leaves,
)
from nemo_gym.config.sources import UNKNOWN_SOURCES, ConfigSources, Initial, apply_directives, read_sources, resolve
from nemo_gym.config.types import BaseServerConfig, GlobalSettings, ModelServerRef, Port, ServerInstanceConfig
from nemo_gym.config.types import ServerSpec as ServerSpec
from nemo_gym.config.validation import validate
from nemo_gym.errors import ConfigError, MissingPathError, PortError, UnknownServerError

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
    """Refuse a key or a model name without the URL of an endpoint: it is not for the model on this machine."""
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
    shown = map_leaves(escaped, secrets.masked(values) if masked else values)
    return OmegaConf.to_yaml(OmegaConf.create(shown))


def escaped(_path: keys.KeyPath, value: Any) -> Any:
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


PATH_SUFFIXES = ("_fpath", "_fpaths", "_path", "_paths", "_dirpath", "_file", "_dir")
"""Settings of a server whose names end like this are paths."""


def server_instances(config: DictConfig, classes: Mapping[str, type[Any]] | None = None) -> list[ServerSpec]:
    """Every valid server block of a loaded config, in order; almost-servers are left out.

    A folder or file that a block names and that is not there is an error. The servers in `classes`, by name, have no
    folder: they are served from their class.
    """
    given = classes or {}
    return [_instance(config, server, given.get(server.name)) for server in server_blocks(config).servers]


def _instance(config: DictConfig, server: ServerInstanceConfig, served_class: type[Any] | None) -> ServerSpec:
    path = (server.name, server.SERVER_TYPE, server.implementation)
    block = server.get_inner_run_server_config()
    host, port = block.host or DEFAULT_HOST, block.port or None
    folder = Path.cwd() if served_class else server_folder(server, block.entrypoint)
    values = {**_with_found_paths(resolve(config, path), folder), "name": server.name, "host": host}
    return ServerSpec(
        name=server.name,
        server_type=server.SERVER_TYPE,
        implementation=server.implementation,
        entrypoint=block.entrypoint,
        folder=folder,
        config=values if port is None else {**values, "port": port},
        host=host,
        port=port,
        isolation=block.isolation,
        served_class=served_class,
    )


def _with_found_paths(settings: Any, folder: Path) -> Any:
    """A server's settings with its relative paths made absolute, if they are found where a path of the user is looked
    up, or in the server's own folder. Others stay as they are: the server may mean to create them."""

    def found(path: KeyPath, value: Any) -> Any:
        key = next((key for key in reversed(path) if isinstance(key, str)), "")
        is_path = isinstance(value, str) and value and key.endswith(PATH_SUFFIXES) and path[0] != "datasets"
        if not is_path or Path(value).is_absolute():
            return value
        tried = (root / value for root in (Path.cwd(), folder, *search_roots()))
        return next((str(path) for path in tried if path.exists()), value)

    return map_leaves(found, settings)


def server_folder(server: ServerInstanceConfig, entrypoint: str) -> Path:
    """The folder of a server's code."""
    place = f"It is named by {server.name}.{server.SERVER_TYPE}.{server.implementation} in the configuration."
    try:
        folder = find(f"{server.SERVER_TYPE}/{server.implementation}", what="server folder")
    except MissingPathError as error:
        raise MissingPathError(f"{error} {place}") from error
    if Path(entrypoint).is_absolute():
        raise ConfigError(f"The entrypoint is '{entrypoint}', expected a path relative to {folder}. {place}")
    if not (folder / entrypoint).is_file():
        hint = nearest(entrypoint, (file.name for file in folder.glob("*.py")))
        raise MissingPathError(f"No entrypoint '{entrypoint}' in {folder}. {place}{hint}")
    return folder


T = TypeVar("T")


class NoOpenPortError(PortError, RuntimeError):
    """No free port was found."""


class _HeadServerConfig(BaseServerConfig):
    port: Port


def find_open_port(
    disallowed_ports: Iterable[int] | None = None,
    max_retries: int = 50,
    *,
    port_range_low: int = DEFAULT_PORT_RANGE_LOW,
    port_range_high: int = DEFAULT_PORT_RANGE_HIGH,
) -> int:
    """A random port of the range that is not disallowed and on which nobody listens now.

    Another process may take it before it is used. Where that matters, use `search_port` and bind.
    """
    return search_port(
        lambda port: port if _can_be_bound(port) else None,
        low=port_range_low,
        high=port_range_high,
        disallowed=disallowed_ports or (),
        max_tries=max_retries,
    )


def search_port(
    try_port: Callable[[int], T | None], *, low: int, high: int, disallowed: Iterable[int], max_tries: int
) -> T:
    """Try random ports in the range, and return what `try_port` returns for the first that succeeds."""
    taken = frozenset(disallowed)
    candidates = [port for port in range(low, high + 1) if port not in taken]
    tries = random.sample(candidates, min(max_tries, len(candidates)))
    for port in tries:
        if (found := try_port(port)) is not None:
            return found
    raise NoOpenPortError(
        f"Unable to find an open port in {low}-{high} after {len(tries)} attempts ({len(taken)} ports are taken). "
        "Widen port_range_low and port_range_high."
    )


def _can_be_bound(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as candidate:
        try:
            candidate.bind(("", port))
        except OSError:
            return False
    return True


def default_host(settings: GlobalSettings) -> str:
    """The host of every server that does not set one."""
    if not settings.use_absolute_ip:
        return settings.default_host or DEFAULT_HOST
    name = socket.gethostname()
    try:
        return socket.gethostbyname(name)
    except OSError as error:
        raise ConfigError(
            f"use_absolute_ip is set, but this machine's name '{name}' has no address. Set default_host instead."
        ) from error


def complete_head_server(
    config: DictConfig, host: str, *, sources: ConfigSources = UNKNOWN_SOURCES
) -> BaseServerConfig:
    """Fill in, in place, what the config does not set for the head server. Port 0 stays: any free port."""
    path = (HEAD_SERVER_KEY_NAME,)
    values = resolve(config, path, sources=sources) if HEAD_SERVER_KEY_NAME in set(config) else None
    if values is None:
        values = config[HEAD_SERVER_KEY_NAME] = {}
    if not isinstance(values, dict):
        source = sources.origin_of(path) or "the configuration"
        raise ConfigError(f"head_server of {source} is {values!r}, expected {{host: <address>, port: <number>}}.")
    port = None if values.get("port") == 0 else DEFAULT_HEAD_SERVER_PORT
    _fill(config[HEAD_SERVER_KEY_NAME], host=host, port=port)
    values = resolve(config, path, sources=sources)
    return validate(_HeadServerConfig, values, what="The head_server", sources=sources, prefix=path)


def fill_hosts_and_ports(
    config: DictConfig,
    servers: Sequence[ServerInstanceConfig],
    head: BaseServerConfig,
    *,
    host: str,
    settings: GlobalSettings,
    fill_ports: bool = True,
) -> list[int]:
    """Write the host and, with `fill_ports`, a port into every server block that has none.

    Returns the ports in use: the head server's, then those of the servers in order.
    """
    ports = [head.port, *(server.get_inner_run_server_config().port or None for server in servers)]
    low, high = settings.port_range_low, settings.port_range_high
    for index, server in enumerate(servers, 1):
        if ports[index] is None and fill_ports:
            ports[index] = find_open_port(filter(None, ports), port_range_low=low, port_range_high=high)
        _fill(_own_block(config, server), host=host, port=ports[index])
    return [port for port in ports if port is not None]


def _own_block(config: DictConfig, server: ServerInstanceConfig) -> DictConfig:
    """The innermost part of a server block. If it is an interpolation of another block, it becomes a copy."""
    node: DictConfig = config
    for key in (server.name, server.SERVER_TYPE, server.implementation):
        if OmegaConf.is_interpolation(node, key):
            node[key] = OmegaConf.to_container(node[key], resolve=False)
        node = node[key]
    return node


def _fill(block: DictConfig, *, host: str, port: int | None) -> None:
    """Set what is missing; existing values stay as they are written."""
    if not block.get("host"):
        block["host"] = host
    if port is not None and not block.get("port"):
        block["port"] = port
