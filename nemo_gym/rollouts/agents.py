"""Which agents a configuration has, and what a name that is not one of them means."""

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from nemo_gym.common.paths import nearest
from nemo_gym.errors import ConfigError

PEEKED_ROWS = 20
_KINDS = {"resources_servers": "an environment", "responses_api_models": "a model"}


def agents_of(settings: Mapping[str, Any]) -> dict[str, str | None]:
    """The agents of a configuration, each with the environment it acts in."""
    return {name: _environment(block) for kind, name, block in _servers(settings) if kind == "responses_api_agents"}


def check_agent(name: str, settings: Mapping[str, Any]) -> None:
    """Raise unless `name` is an agent, with what it is instead and the agent that is probably meant."""
    agents = agents_of(settings)
    if name in agents or not agents:
        return
    kinds = {server: kind for kind, server, _ in _servers(settings)}
    folders = {folder: server for kind, server, block in _servers(settings) for folder in block if kind in _KINDS}
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


def _servers(settings: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """The type, the name and the implementations of each server block."""
    for name, block in settings.items():
        for kind in ("responses_api_agents", *_KINDS):
            inner = block.get(kind) if isinstance(block, Mapping) else None
            if isinstance(inner, Mapping) and inner:
                yield kind, str(name), inner


def _environment(implementations: Mapping[str, Any]) -> str | None:
    block = next(iter(implementations.values()))
    reference = block.get("resources_server") if isinstance(block, Mapping) else None
    return reference.get("name") if isinstance(reference, Mapping) else None
