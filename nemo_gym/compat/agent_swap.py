"""Agents of the public NeMo Gym that are loaded beside an environment: they replace its agents.

An agent is unbound if its environment is '???'. An environment may say which types of agents can act in it."""

import copy
import os
from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from nemo_gym.compat.environment_blocks import AGENTS, is_agent_ref
from nemo_gym.config.keys import ENVIRONMENT_SERVERS, ServerBlock, blocks_in, value_at
from nemo_gym.errors import ConfigError

UNBOUND = "???"
KEPT = ("resources_server", "model_server", "datasets")
"""Settings that an agent keeps of the one that it replaces."""
WAIVER = "allow_unsupported_pairing"


class AgentCompositionError(ConfigError):
    """An agent cannot replace the agents of an environment."""


class UnsupportedAgentPairingError(ConfigError):
    """An environment does not allow agents of this type."""


def swap_agents(config: DictConfig) -> None:
    """Let an unbound agent replace, in place, the agents of the environments beside it."""
    raw: Any = OmegaConf.to_container(config, resolve=False)
    agents = [block for block in blocks_in(raw) if block.server_type == AGENTS and isinstance(block.config, Mapping)]
    unbound = [block for block in agents if _environment(block) == UNBOUND]
    replaced = [block for block in agents if _environment(block) not in (None, UNBOUND)]
    if not unbound or not replaced:
        return
    if len(unbound) > 1:
        raise AgentCompositionError(f"{', '.join(each.name for each in unbound)} have no environment; expected one.")
    (new,) = unbound
    names = {block.name: _new_name(block, new) for block in replaced}
    taken = set(names.values()) & (raw.keys() - {new.name, *names})
    if taken or len(set(names.values())) < len(names):
        raise AgentCompositionError(f"'{new.name}' cannot replace {', '.join(names)}: two would have the same name.")
    for name in (new.name, *names):
        del config[name]
    for block in replaced:
        kept = {key: block.config[key] for key in KEPT if key in block.config}
        config[names[block.name]] = {AGENTS: {new.implementation: {**copy.deepcopy(new.config), **kept}}}
    _point_to(names, config)
    config["agent_map"] = {**names, **(config.get("agent_map") or {})}
    for name in names.values():
        error = allowed_agents_error(OmegaConf.to_container(config, resolve=False), name)  # type: ignore[arg-type]
        if error is not None:
            raise error


def _environment(block: ServerBlock) -> Any:
    return value_at(block.config, ("resources_server", "name"))


def _new_name(block: ServerBlock, new: ServerBlock) -> str:
    if block.implementation in block.name:
        return block.name.replace(block.implementation, new.implementation)
    return f"{block.name}_{new.implementation}"


def _point_to(names: Mapping[str, str], config: DictConfig) -> None:
    raw: Any = OmegaConf.to_container(config, resolve=False)
    for block in blocks_in(raw):
        if block.server_type != ENVIRONMENT_SERVERS or not isinstance(block.config, Mapping):
            continue
        for key, value in block.config.items():
            if is_agent_ref(value) and value["name"] in names:
                config[block.name][ENVIRONMENT_SERVERS][block.implementation][key].name = names[value["name"]]


def allowed_agents_error(settings: Mapping[str, Any], agent: str) -> UnsupportedAgentPairingError | None:
    """Return an error if the environment of an agent does not allow agents of its type."""
    if settings.get(WAIVER) or os.environ.get("NEMO_GYM_ALLOW_UNSUPPORTED_PAIRING", "") not in ("", "0", "false"):
        return None
    blocks = {block.name: block for block in blocks_in({name: settings.get(name) for name in (agent,)})}
    block = blocks.get(agent)
    environment = _environment(block) if block is not None and isinstance(block.config, Mapping) else None
    if block is None or not isinstance(environment, str):
        return None
    for other in blocks_in({environment: settings.get(environment)}):
        allowed = other.config.get("allowed_agents") if isinstance(other.config, Mapping) else None
        if allowed and block.implementation not in allowed:
            return UnsupportedAgentPairingError(
                f"The agent '{agent}' is a {block.implementation}, but '{environment}' allows {', '.join(allowed)}. "
                f"To try it all the same: +{WAIVER}=true."
            )
    return None
