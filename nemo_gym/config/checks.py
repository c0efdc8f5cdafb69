"""Check a merged configuration: its server blocks are valid, its references lead to servers."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from nemo_gym.common.paths import nearest
from nemo_gym.config.error_messages import KeyPath, error_lines
from nemo_gym.config.interpolation import UNKNOWN_SOURCES, place, resolved
from nemo_gym.config.keys import (
    ENTRYPOINT_KEY_NAME,
    ERROR_ON_ALMOST_SERVERS_KEY_NAME,
    NEMO_GYM_RESERVED_TOP_LEVEL_KEYS,
    SERVER_TYPES,
)
from nemo_gym.config.sources import Sources
from nemo_gym.config.types import ServerInstanceConfig, ServerRef, is_server_ref, maybe_get_server_instance_config
from nemo_gym.errors import ConfigError

logger = logging.getLogger(__name__)


class UnknownServerError(ConfigError, AssertionError):
    """A reference leads to no server of the configuration."""


@dataclass(frozen=True)
class AlmostServer:
    """A block that was surely meant to be a server, but is not valid."""

    name: str
    error: ValidationError

    mistakes: list[str]
    """What is wrong with it, one line each."""


class ServerBlocks(NamedTuple):
    """The server blocks of a configuration, sorted by whether they can be started."""

    servers: list[ServerInstanceConfig]
    almost_servers: list[AlmostServer]
    without_entrypoint: list[str]


# Server blocks


def server_blocks(config: DictConfig, *, sources: Sources = UNKNOWN_SOURCES) -> ServerBlocks:
    """Sort the top-level entries that have the key of a server type."""
    blocks = ServerBlocks([], [], [])
    for name in _candidates(config):
        values = resolved(config, (name,), sources=sources)
        instance, error = maybe_get_server_instance_config(name, values)
        if instance is not None:
            blocks.servers.append(instance)
        elif error is not None and _has_entrypoint(values):
            mistakes = error_lines(error, where=sources.below((name,)))
            blocks.almost_servers.append(AlmostServer(name, error, mistakes))
        else:
            blocks.without_entrypoint.append(name)
    return blocks


def _candidates(config: DictConfig) -> Iterator[str]:
    for name in config:
        if not isinstance(name, str) or name in NEMO_GYM_RESERVED_TOP_LEVEL_KEYS:
            continue
        try:
            block = config[name]
        except OmegaConfBaseException:
            continue
        if isinstance(block, DictConfig) and any(server_type in block for server_type in SERVER_TYPES):
            yield name


def _has_entrypoint(block: dict[str, Any]) -> bool:
    implementations = [block[server_type] for server_type in SERVER_TYPES if server_type in block]
    return any(
        isinstance(inner, dict) and ENTRYPOINT_KEY_NAME in inner
        for outer in implementations
        if isinstance(outer, dict)
        for inner in outer.values()
    )


def almost_servers_report(almost_servers: Sequence[AlmostServer]) -> str:
    """What is wrong with each of them, as a user reads it."""
    lines = ["Configuration Warnings: Almost-Servers Detected"]
    for almost in almost_servers:
        lines.append(f"Almost-Server Detected: '{almost.name}'. It will not be started:")
        lines += almost.mistakes
    return "\n".join(lines)


def almost_servers_error(almost_servers: Sequence[AlmostServer]) -> ConfigError:
    return ConfigError(
        f"Found {len(almost_servers)} almost-server(s) with validation errors. Mend them, or leave them out with "
        f"+{ERROR_ON_ALMOST_SERVERS_KEY_NAME}=false.\n{almost_servers_report(almost_servers)}"
    )


def valid_servers(
    config: DictConfig, *, error_on_almost_servers: bool, sources: Sources = UNKNOWN_SOURCES
) -> list[ServerInstanceConfig]:
    """The servers of a config. Blocks that are not valid are an error, or else are left out with a warning."""
    servers, almost_servers, without_entrypoint = server_blocks(config, sources=sources)
    for name in without_entrypoint:
        hint = nearest(name, [server.name for server in servers])
        logger.warning(
            "'%s' is no server and is left out: nothing in it has an '%s'.%s", name, ENTRYPOINT_KEY_NAME, hint
        )
    if almost_servers and error_on_almost_servers:
        raise almost_servers_error(almost_servers)
    if almost_servers:
        logger.warning("%s", almost_servers_report(almost_servers))
    return servers


# References

_SWITCH = "should_use_"


def drop_unused_names(config: DictConfig) -> None:
    """Take out, in place, the name of a model server that is '???' but that nobody will ask.

    A block that says `should_use_judge: false` need not name its `judge_model_server`, and so for any other role.
    """
    blocks = [inner for name in _candidates(config) for outer in _mappings(config[name]) for inner in _mappings(outer)]
    for block in blocks:
        for role in [str(key).removeprefix(_SWITCH) for key in block if str(key).startswith(_SWITCH)]:
            reference = _value(block, f"{role}_model_server")
            is_off = _value(block, _SWITCH + role) is False
            if is_off and isinstance(reference, DictConfig) and OmegaConf.is_missing(reference, "name"):
                del reference["name"]


def _mappings(node: DictConfig) -> list[DictConfig]:
    return [value for value in (_value(node, str(key)) for key in node) if isinstance(value, DictConfig)]


def _value(node: DictConfig, key: str) -> Any:
    """The value, or None where there is none yet."""
    return OmegaConf.select(node, key, throw_on_resolution_failure=False)


def check_references(
    config: DictConfig, servers: Sequence[ServerInstanceConfig], *, sources: Sources = UNKNOWN_SOURCES
) -> None:
    """Every reference in a server block, however deep, leads to one of the servers."""
    for path, ref in unmet_references(config, servers, sources=sources):
        available = [server.get_server_ref() for server in servers]
        same_name = next((other for other in available if other.name == ref.name), None)
        same_type = [other.name for other in available if other.type == ref.type]
        hint = f" '{ref.name}' is one of {same_name.type}." if same_name else nearest(ref.name, same_type)
        raise UnknownServerError(
            f"Could not find {_shown(ref)} in the list of available servers: [{', '.join(map(_shown, available))}]. "
            f"It is referred to by {place(path, sources)}.{hint}"
        )


def unmet_references(
    config: DictConfig, servers: Sequence[ServerInstanceConfig], *, sources: Sources = UNKNOWN_SOURCES
) -> Iterator[tuple[KeyPath, ServerRef]]:
    """The references in server blocks that lead to none of the servers, and where they stand."""
    available = {server.get_server_ref() for server in servers}
    for server in servers:
        block = resolved(config, (server.name,), sources=sources)
        yield from (found for found in _references(block, (server.name,)) if found[1] not in available)


def _references(value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, ServerRef]]:
    ref = is_server_ref(value)
    if ref is not None:
        yield path, ref
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _references(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _references(item, (*path, index))


def _shown(ref: ServerRef) -> str:
    return f"{ref.type}/{ref.name}"
