"""Which agents a configuration has, and what a name that is not one of them means."""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nemo_gym.common.paths import nearest
from nemo_gym.config.tree import blocks_in
from nemo_gym.errors import ConfigError

PEEKED_ROWS = 20


def agents_of(settings: Mapping[str, Any]) -> dict[str, str | None]:
    """The agents of a configuration, each with the environment it acts in."""
    blocks = (block for block in blocks_in(settings) if block.server_type == "responses_api_agents")
    return {block.name: _environment(block.config) for block in blocks}


def check_agent(name: str, settings: Mapping[str, Any]) -> None:
    """Raise unless `name` is an agent, with the agents there are."""
    agents = agents_of(settings)
    if agents and name not in agents:
        listed = (f"{agent} (of {environment})" if environment else agent for agent, environment in agents.items())
        raise ConfigError(f"No agent is called '{name}'. Agents: {', '.join(listed)}.{nearest(name, agents)}")


def check_rows_name_agents(dataset: Path, settings: Mapping[str, Any]) -> None:
    """Raise if no agent is given and the rows do not name theirs either."""
    with dataset.open("rb") as lines:
        rows = [line for line in itertools.islice(lines, PEEKED_ROWS) if line.startswith(b"{")]
    if rows and not any(b'"agent_ref"' in row for row in rows):
        listed = ", ".join(agents_of(settings))
        raise ConfigError(
            f"The rows of {dataset} do not name their agent (`agent_ref`). Pass +agent_name=<agent>"
            f"{f'; agents: {listed}' if listed else ''}."
        )


def _environment(config: Any) -> str | None:
    reference = config.get("resources_server") if isinstance(config, Mapping) else None
    return reference.get("name") if isinstance(reference, Mapping) else None
