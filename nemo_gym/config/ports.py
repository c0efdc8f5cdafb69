"""Hosts and ports of the servers: fill in what a configuration does not set."""

import random
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from omegaconf import DictConfig, OmegaConf

from nemo_gym.config.error_messages import validate
from nemo_gym.config.interpolation import UNKNOWN_SOURCES, resolve
from nemo_gym.config.keys import (
    DEFAULT_HEAD_SERVER_PORT,
    DEFAULT_HOST,
    DEFAULT_PORT_RANGE_HIGH,
    DEFAULT_PORT_RANGE_LOW,
    HEAD_SERVER_KEY_NAME,
)
from nemo_gym.config.sources import ConfigSources
from nemo_gym.config.types import BaseServerConfig, GlobalSettings, Port, ServerInstanceConfig
from nemo_gym.errors import ConfigError, PortError

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
    """What `try_port` returns for the first port it succeeds with, of random ports in the range."""
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
