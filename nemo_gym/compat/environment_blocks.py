"""The `environment_servers` of configurations of the public NeMo Gym.

There, a collection calls an environment server and that calls the agent. Here a collection calls agents, so a block of
`legacy_agent`, which only forwards, is another name for its agent and starts nothing. Any other environment server is
started, and gets the rows of its agent."""

import logging
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf

from nemo_gym.config.keys import ALIASES_KEY_NAME, ENVIRONMENT_SERVERS, value_at
from nemo_gym.errors import ConfigError

logger = logging.getLogger(__name__)

RELAY = "legacy_agent"
AGENTS = "responses_api_agents"


class EnvironmentBlock(NamedTuple):
    """An environment server of a configuration."""

    name: str
    implementation: str
    settings: Mapping[str, Any]

    @property
    def agent(self) -> str | None:
        """The agent whose rows it plays: its `agent_server`, else the only agent that it names."""
        own = value_at(self.settings, ("agent_server", "name"))
        if isinstance(own, str):
            return own
        named = [value["name"] for value in self.settings.values() if is_agent_ref(value)]
        return named[0] if len(named) == 1 else None


def is_agent_ref(value: Any) -> bool:
    """True for a reference to an agent."""
    return isinstance(value, Mapping) and value.get("type") == AGENTS and isinstance(value.get("name"), str)


def use_environment_servers(config: DictConfig, renamed: Mapping[str, str]) -> None:
    """Drop relays, in place, and keep which server has which agent. An agent that was renamed by being inherited from
    is renamed in the servers that name it."""
    blocks = list(_blocks(config))
    for block in blocks:
        for key, value in block.settings.items():
            if is_agent_ref(value) and value["name"] not in config and value["name"] in renamed:
                config[block.name][ENVIRONMENT_SERVERS][block.implementation][key].name = renamed[value["name"]]
    aliases = {block.name: block.agent for block in _blocks(config) if block.agent is not None}
    for block in blocks:
        if block.implementation == RELAY:
            del config[block.name]
            agent = aliases.get(block.name)
            if agent is not None and agent != "???" and agent not in config:
                logger.warning(
                    "the environment server '%s' is of the agent '%s', which is not there", *block[:1], agent
                )
    if aliases:
        config[ALIASES_KEY_NAME] = aliases


def _blocks(config: DictConfig) -> Iterator[EnvironmentBlock]:
    raw: Any = OmegaConf.to_container(config, resolve=False)
    for name, block in raw.items():
        inner = value_at(block, (ENVIRONMENT_SERVERS,))
        if not isinstance(inner, Mapping):
            continue
        if len(inner) != 1:
            raise ConfigError(f"{name}.{ENVIRONMENT_SERVERS} has {len(inner)} implementations; expected one.")
        for implementation, settings in inner.items():
            yield EnvironmentBlock(str(name), str(implementation), settings if isinstance(settings, Mapping) else {})
