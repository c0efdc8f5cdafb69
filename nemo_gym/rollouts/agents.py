"""Which agents a configuration has, and what a name that is not one of them means."""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from nemo_gym.common.paths import nearest
from nemo_gym.config.blocks import blocks_in
from nemo_gym.errors import ConfigError

PEEKED_ROWS = 20
_KINDS = {"resources_servers": "an environment", "responses_api_models": "a model"}


def agents_of(settings: Mapping[str, Any]) -> dict[str, str | None]:
    """The agents of a configuration, each with the environment it acts in."""
    blocks = (block for block in blocks_in(settings) if block.server_type == "responses_api_agents")
    return {block.name: _environment(block.config) for block in blocks}


def check_agent(name: str, settings: Mapping[str, Any]) -> None:
    """Raise unless `name` is an agent, with what it is instead and the agent that is probably meant."""
    agents = agents_of(settings)
    if name in agents or not agents:
        return
    kinds = {block.name: block.server_type for block in blocks_in(settings)}
    folders = {block.implementation: block.name for block in blocks_in(settings) if block.server_type in _KINDS}
    server = name if name in kinds else folders.get(name, "")
    if server:
        own = [agent for agent, environment in agents.items() if environment == server] or list(agents)
        is_are = "its agent is" if kinds[server] == "resources_servers" and len(own) == 1 else "the agents are"
        listed = ", ".join(f"'{agent}'" for agent in own)
        raise ConfigError(f"agent_name is '{name}', which is {_KINDS[kinds[server]]}; {is_are} {listed}.")
    hint = nearest(name, agents) or (f" Did you mean '{next(iter(agents))}'?" if len(agents) == 1 else "")
    raise ConfigError(f"No agent is called '{name}'. Agents: {', '.join(agents)}.{hint}")


def check_rows_name_agents(dataset: Path, settings: Mapping[str, Any]) -> None:
    """Raise if no agent is given and the rows do not name theirs either."""
    with dataset.open("rb") as lines:
        rows = [line for line in itertools.islice(lines, PEEKED_ROWS) if line.strip()]
    if any(b'"agent_ref"' in row for row in rows) or not all(map(_is_object, rows)):
        return
    listed = ", ".join(agents_of(settings))
    raise ConfigError(
        f"The rows of {dataset} do not name their agent (`agent_ref`). Pass +agent_name=<agent>"
        f"{f'; agents: {listed}' if listed else ''}."
    )


def _is_object(row: bytes) -> bool:
    try:
        return isinstance(orjson.loads(row), dict)
    except ValueError:
        return False


def _environment(config: Any) -> str | None:
    reference = config.get("resources_server") if isinstance(config, Mapping) else None
    return reference.get("name") if isinstance(reference, Mapping) else None
