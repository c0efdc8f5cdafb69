"""Check a merged configuration: its server blocks are valid, and its references name servers."""

import logging
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from nemo_gym.common.paths import nearest
from nemo_gym.config.keys import (
    DIRECTIVES,
    ENTRYPOINT_KEY_NAME,
    ERROR_ON_ALMOST_SERVERS_KEY_NAME,
    NEMO_GYM_RESERVED_TOP_LEVEL_KEYS,
    SERVER_TYPES,
    KeyPath,
    blocks_in,
    dotted,
    nodes,
)
from nemo_gym.config.sources import UNKNOWN_SOURCES, ConfigSources, location, resolve
from nemo_gym.config.types import ServerInstanceConfig, ServerRef, is_server_ref, maybe_get_server_instance_config
from nemo_gym.config.validation import error_lines
from nemo_gym.errors import AlmostServerError, ConfigError, UnknownServerError

logger = logging.getLogger(__name__)

_SWITCH = "should_use_"
DIRECT_VALUE = 4
"""The length of the path of a value in a server block: name, type, implementation, key."""


class AlmostServer(NamedTuple):
    """A block that was meant to be a server, because it has an entrypoint, but is not valid."""

    name: str
    error: ValidationError
    mistakes: list[str]


class ServerBlocks(NamedTuple):
    """The server blocks of a configuration: those that can be started, and the others."""

    servers: list[ServerInstanceConfig]
    almost_servers: list[AlmostServer]
    without_entrypoint: list[str]


# Server blocks


def server_blocks(config: DictConfig, *, sources: ConfigSources = UNKNOWN_SOURCES) -> ServerBlocks:
    """Sort the top-level entries that have the key of a server type."""
    blocks = ServerBlocks([], [], [])
    for name in _candidates(config):
        values = resolve(config, (name,), sources=sources)
        instance, error = maybe_get_server_instance_config(name, values)
        if instance is not None:
            blocks.servers.append(instance)
        elif error is not None and _has_entrypoint(name, values):
            mistakes = error_lines(error, sources=sources, prefix=(name,))
            blocks.almost_servers.append(AlmostServer(name, error, mistakes))
        else:
            blocks.without_entrypoint.append(name)
    return blocks


def _has_entrypoint(name: str, values: Any) -> bool:
    inner = [block.config for block in blocks_in({name: values})]
    return any(isinstance(config, dict) and ENTRYPOINT_KEY_NAME in config for config in inner)


def _candidates(config: DictConfig) -> dict[str, DictConfig]:
    """The top-level blocks that have the key of a server type."""
    blocks = _mappings(config).items()
    return {name: block for name, block in blocks if any(server_type in block for server_type in SERVER_TYPES)}


def _mappings(node: DictConfig) -> dict[str, DictConfig]:
    """The values that are mappings, as they are or by interpolation. Keys with a meaning of their own do not count."""
    names = [name for name in node if isinstance(name, str) and name not in NEMO_GYM_RESERVED_TOP_LEVEL_KEYS]
    values = ((name, _value(node, name)) for name in names)
    return {name: value for name, value in values if isinstance(value, DictConfig)}


def _value(node: DictConfig, key: Any) -> Any:
    """The value, or None if it is missing or cannot be resolved."""
    try:
        return node.get(key)
    except OmegaConfBaseException:
        return None


def almost_servers_report(almost_servers: Sequence[AlmostServer]) -> str:
    """Describe what is wrong with each of them."""
    lines = ["Configuration Warnings: Almost-Servers Detected"]
    for name, _, mistakes in almost_servers:
        lines += [f"Almost-Server Detected: '{name}'. It will not be started:", *mistakes]
    return "\n".join(lines)


def valid_servers(
    config: DictConfig, *, error_on_almost_servers: bool, sources: ConfigSources = UNKNOWN_SOURCES
) -> list[ServerInstanceConfig]:
    """The servers of a config. Invalid server blocks are an error, or are left out with a warning."""
    _check_server_types(config)
    servers, almost_servers, without_entrypoint = server_blocks(config, sources=sources)
    for name in without_entrypoint:
        hint = nearest(name, [server.name for server in servers])
        logger.warning("'%s' is ignored: no block in it has an '%s'.%s", name, ENTRYPOINT_KEY_NAME, hint)
    if almost_servers and error_on_almost_servers:
        raise AlmostServerError(
            f"Found {len(almost_servers)} almost-server(s) with validation errors. Fix them, or ignore them with "
            f"+{ERROR_ON_ALMOST_SERVERS_KEY_NAME}=false.\n{almost_servers_report(almost_servers)}"
        )
    if almost_servers:
        logger.warning("%s", almost_servers_report(almost_servers))
    return servers


def _check_server_types(config: DictConfig) -> None:
    """Raise if a block with an entrypoint, so probably a server, is under a key that is not a server type."""
    for name, block in _mappings(config).items():
        for kind, inner in _mappings(block).items():
            if kind not in SERVER_TYPES and any(ENTRYPOINT_KEY_NAME in each for each in _mappings(inner).values()):
                raise ConfigError(
                    f"'{name}' has the unknown server type '{kind}', expected one of {', '.join(SERVER_TYPES)}."
                    f"{nearest(kind, SERVER_TYPES)}"
                )


# References


def copy_agent_settings(config: DictConfig) -> None:
    """Copy top-level settings of agents into every agent that does not set them, in place."""
    given = {key: config[key] for key in ("skip_verification", "skip_verification_reward") if key in config}
    for block in _candidates(config).values() if given else ():
        for agent in _mappings(block.get("responses_api_agents") or OmegaConf.create()).values():
            agent.update({key: value for key, value in given.items() if key not in agent})


UNSUPPORTED_KEYS = {
    "token_id_capture": "set return_token_id_information of the model server",
    "rollout_collection_driver": "call RolloutCollectionHelper from a program of your own",
    "wandb_project": "the metrics are in <output>_metrics.json",
    "mlflow_experiment_name": "the metrics are in <output>_metrics.json",
    "model_endpoint_readiness_timeout_seconds": "an endpoint that is not up is retried by each rollout",
    "nemo_gym_log_dir": "redirect the output of ng_run",
}
"""Top-level keys of public configurations that have no effect here, and what to do instead."""


def warn_about_unsupported_keys(config: DictConfig) -> None:
    """Name the keys that have no effect. A key that begins with '_' may be a misspelt directive."""
    for key, remedy in UNSUPPORTED_KEYS.items():
        if _value(config, key):
            logger.warning("'%s' has no effect: %s", key, remedy)
    for name, block in _candidates(config).items():
        for path, _ in nodes(OmegaConf.to_container(block, resolve=False), (name,)):
            if not str(path[-1]).startswith("_") or len(path) > DIRECT_VALUE:
                continue
            hint = nearest(str(path[-1]), DIRECTIVES)
            if hint:
                raise ConfigError(f"{dotted(path)} is not a directive.{hint}")
            logger.warning("%s is not a directive; it is passed to the server", dotted(path))


def drop_unused_references(config: DictConfig) -> None:
    """Remove, in place, the name of a model server that is '???' but not needed.

    A block with `should_use_judge: false` need not name its `judge_model_server`; likewise for any other role.
    """
    types = [inner for block in _candidates(config).values() for inner in _mappings(block).values()]
    for block in [block for inner in types for block in _mappings(inner).values()]:
        for role in [str(key).removeprefix(_SWITCH) for key in block if str(key).startswith(_SWITCH)]:
            reference = _value(block, f"{role}_model_server")
            is_off = _value(block, _SWITCH + role) is False
            if is_off and isinstance(reference, DictConfig) and OmegaConf.is_missing(reference, "name"):
                del reference["name"]


def check_references(servers: Sequence[ServerInstanceConfig], *, sources: ConfigSources = UNKNOWN_SOURCES) -> None:
    """Raise if a reference in a server block does not name one of the servers. In a nested map it may never be used,
    so there it is a warning."""
    available = [server.get_server_ref() for server in servers]
    for path, ref in unmet_references(servers):
        if len(path) > DIRECT_VALUE:
            logger.warning("%s refers to %s/%s, which is not there", location(path, sources), ref.type, ref.name)
            continue
        same_name = next((other for other in available if other.name == ref.name), None)
        same_type = [other.name for other in available if other.type == ref.type]
        hint = f" '{ref.name}' is one of {same_name.type}." if same_name else nearest(ref.name, same_type)
        listed = ", ".join(f"{other.type}/{other.name}" for other in available)
        raise UnknownServerError(
            f"Could not find {ref.type}/{ref.name} in the list of available servers: [{listed}]. "
            f"It is referred to by {location(path, sources)}.{hint}"
        )


def unmet_references(servers: Sequence[ServerInstanceConfig]) -> Iterator[tuple[KeyPath, ServerRef]]:
    """The references in server blocks that name none of the servers, each with its path."""
    available = {server.get_server_ref() for server in servers}
    for server in servers:
        path = (server.name, server.SERVER_TYPE, server.implementation)
        for place, value in nodes(server.get_inner_run_server_config().model_extra, path):
            ref = is_server_ref(value)
            if ref is not None and ref not in available:
                yield place, ref
