"""Find the server that plays a row of the public NeMo Gym: its agent, or the environment server in front of it.

A row names its agent in `agent_ref`, or in `task_source` who declares its dataset. `agent_map` and `fan_out` send it
to other agents. A row with `task_id` and `task_input` goes to the environment server of its task set."""

import itertools
import json
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from nemo_gym.client.server_client import ServerClient
from nemo_gym.common.atomic_files import atomic_write
from nemo_gym.compat.agent_swap import allowed_agents_error
from nemo_gym.compat.environment_blocks import AGENTS
from nemo_gym.compat.episodes import is_materialized_task_row
from nemo_gym.compat.rollout_functions import DispatchLatencyTracker
from nemo_gym.config.keys import (
    AGENT_REF_KEY_NAME,
    ALIASES_KEY_NAME,
    ENVIRONMENT_SERVER_KEY_NAME,
    NG_FAILURE_CLASS_KEY,
    NG_NO_PERSIST_KEY,
    TASK_SOURCE_KEY_NAME,
    ServerBlock,
    blocks_in,
)
from nemo_gym.errors import ConfigError, RolloutError
from nemo_gym.llm_api.base import JsonObject
from nemo_gym.llm_api.json_codec import encode
from nemo_gym.rollouts.config import OTHER_AGENTS, RolloutCollectionConfig
from nemo_gym.rollouts.dataset import dataset_path
from nemo_gym.rollouts.store import routed_inputs_path

Run = Callable[[JsonObject], Awaitable[tuple[JsonObject, JsonObject]]]
NOT_ANSWERED = frozenset((429, 502, 503, 504))
"""Statuses that say that an agent was not reached."""


class AmbiguousEnvironmentServerError(ConfigError):
    """Several environment servers are in front of one agent."""


@dataclass(frozen=True)
class RowRouter:
    """Chooses who plays a row, by the configuration of the servers."""

    settings: Mapping[str, Any]
    agent_map: Mapping[str, str] = field(default_factory=dict)
    """Other agents, by the agent or `task_source` that a row names; `_default` for all others."""
    fan_out: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Several agents that each get a copy."""
    environment_server: str | None = None
    """Plays all rows."""
    taskset_routes: Mapping[str, str] = field(default_factory=dict)
    """The environment server of each task set."""

    @classmethod
    def of(cls, config: RolloutCollectionConfig, settings: Mapping[str, Any]) -> "RowRouter":
        default = {OTHER_AGENTS: config.agent_name} if config.agent_name else {}
        agents = {**(settings.get("agent_map") or {}), **default, **config.agent_map}
        server = config.environment_server_name
        return cls(settings, agents, config.fan_out, server, config.environment_server_routes)

    def copies(self, row: JsonObject) -> Iterator[JsonObject]:
        """Yield the row for each server that plays it. It is the same object if nothing is to be changed."""
        if is_materialized_task_row(row):
            yield {**row, ENVIRONMENT_SERVER_KEY_NAME: self._server_of_taskset(row)}
        elif self.environment_server is not None:
            agent = self._aliases.get(self.environment_server)
            yield self._sent_to(self.environment_server, row if agent is None else _for_agent(row, agent))
        else:
            for agent in self._agents_of(row):
                yield self._sent_to(self._server_of_agent(agent), _for_agent(row, agent))

    @property
    def agent_of_all_rows(self) -> str | None:
        """The agent that gets every row as it is. None if that depends on the row, or an environment server does."""
        if self.agent_map.keys() != {OTHER_AGENTS} or self.fan_out or self.environment_server or self.taskset_routes:
            return None
        name = self.agent_map[OTHER_AGENTS]
        agent = self._aliases.get(name, name)
        return agent if self._server_of_agent(agent) == agent else None

    def _sent_to(self, server: str, row: JsonObject) -> JsonObject:
        return {**row, ENVIRONMENT_SERVER_KEY_NAME: server} if server in self._environment_servers else row

    def _server_of_taskset(self, row: JsonObject) -> str:
        taskset = row["task_id"].get("taskset")
        if taskset not in self.taskset_routes:
            raise ValueError(f"The row is of the task set '{taskset}', which environment_server_routes does not name")
        return str(self.taskset_routes[taskset])

    def _agents_of(self, row: JsonObject) -> Sequence[str]:
        named = _agent_named_in(row)
        source = row.get(TASK_SOURCE_KEY_NAME)
        names = [name for name in (named, source) if isinstance(name, str)]
        for name in (*names, OTHER_AGENTS):
            if name in self.fan_out:
                return self.fan_out[name]
            if name in self.agent_map:
                return [self.agent_map[name]]
        if named is not None:
            return [self._aliases.get(named, named)]
        if isinstance(source, str):
            return [self.agent_of_source(source)]
        raise ValueError("The row has no `agent_ref` with a `name` and no `task_source`, and no agent_name is given")

    def agent_of_source(self, source: str) -> str:
        """Return the agent that plays the rows of who declares their dataset. Raises ValueError if that is not one."""
        if source in self._agents or source in self._aliases:
            return self._aliases.get(source, source)
        datasets = (self._blocks[source].config.get("datasets") or ()) if source in self._blocks else ()
        pinned = {str(each["agent"]) for each in datasets if each.get("agent")}
        using = {name for name, block in self._agents.items() if _resources_server(block) == source}
        found = sorted(pinned or using)
        if len(found) != 1:
            listed = ", ".join(found) or "none"
            raise ValueError(
                f"The agents of the task_source '{source}' are: {listed}. Pass '+agent_map={{{source}: <agent>}}'"
            )
        return found[0]

    def _server_of_agent(self, agent: str) -> str:
        error = allowed_agents_error(self.settings, agent)
        if error is not None:
            raise error
        fronts = [name for name, fronted in self._aliases.items() if fronted == agent]
        servers = [name for name in fronts if name in self._environment_servers]
        if servers and len(fronts) > 1:
            listed = ", ".join(fronts)
            raise AmbiguousEnvironmentServerError(
                f"The agent '{agent}' has several environment servers: {listed}. Pass +environment_server_name."
            )
        return servers[0] if servers else agent

    @cached_property
    def _blocks(self) -> dict[str, ServerBlock]:
        return {block.name: block for block in blocks_in(self.settings)}

    @cached_property
    def _agents(self) -> dict[str, ServerBlock]:
        return {name: block for name, block in self._blocks.items() if block.server_type == AGENTS}

    @cached_property
    def _environment_servers(self) -> frozenset[str]:
        return frozenset(name for name, block in self._blocks.items() if block.server_type == "environment_servers")

    @cached_property
    def _aliases(self) -> Mapping[str, str]:
        return self.settings.get(ALIASES_KEY_NAME) or {}


def _agent_named_in(row: JsonObject) -> str | None:
    reference = row.get(AGENT_REF_KEY_NAME)
    name = reference.get("name") if isinstance(reference, Mapping) else None
    return name if isinstance(name, str) else None


def _for_agent(row: JsonObject, agent: str) -> JsonObject:
    return row if _agent_named_in(row) == agent else {**row, AGENT_REF_KEY_NAME: {"type": AGENTS, "name": agent}}


def _resources_server(block: ServerBlock) -> str | None:
    reference = block.config.get("resources_server")
    return reference.get("name") if isinstance(reference, Mapping) else None


# A collection


def route_dataset(config: RolloutCollectionConfig, settings: Mapping[str, Any]) -> RolloutCollectionConfig:
    """Write the rows with the servers that play them beside the output, and return the options with that file. If
    nothing is to be changed, return the options as they are."""
    router, dataset = RowRouter.of(config, settings), dataset_path(config)
    agent = router.agent_of_all_rows
    if agent is not None:
        return config.model_copy(update={"agent_name": agent})
    if all(line == sent for line, sent in _routed_lines(router, dataset, config)):
        return config
    target = routed_inputs_path(Path(config.output_jsonl_fpath))
    target.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(target) as file:
        for _, sent in _routed_lines(router, dataset, config):
            file.write(sent + b"\n")
    return config.model_copy(update={"input_jsonl_fpath": str(target), "agent_name": None, "limit": None})


def _routed_lines(router: RowRouter, dataset: Path, config: RolloutCollectionConfig) -> Iterator[tuple[bytes, bytes]]:
    """Yield each line as it is, with a line that is sent instead."""
    with dataset.open("rb") as file:
        lines = ((number, line) for number, raw in enumerate(file, 1) if (line := raw.strip()))
        for number, line in itertools.islice(lines, config.limit or None):
            row = _row_in(line)
            try:
                if row is not None and is_materialized_task_row(row) and config.changes_rows:
                    raise ValueError("A row with `task_input` is sent as it is: no overrides, prompts or seeds")
                for sent in () if row is None else router.copies(row):
                    yield line, line if sent is row else encode(sent)
            except ValueError as error:
                raise ConfigError(f"{config.input_jsonl_fpath}:{number}: {error}.") from error
            if row is None:
                yield line, line


def _row_in(line: bytes) -> JsonObject | None:
    """A line that is no row is reported when it is run."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


# Trainers


def router_of(client: ServerClient, environment_server: str | None = None) -> Callable[[Any], Any]:
    """Return the function that names the server of a trainer's row. It raises RolloutError if there is none."""
    settings: Any = OmegaConf.to_container(OmegaConf.create(client.global_config_dict))
    agents, routes = settings.get("agent_map") or {}, settings.get("environment_server_routes") or {}
    router = RowRouter(settings, agents, environment_server=environment_server, taskset_routes=routes)

    def route(row: Any) -> Any:
        if not isinstance(row, Mapping):
            return row
        try:
            return next(router.copies(dict(row)))
        except ValueError as error:
            raise RolloutError("input", f"{error}.", retryable=False) from error

    return route


def with_limits(
    run: Run, *, failures_are_results: bool, budget_s: float | None, margin_s: float | None, tracker: Any
) -> Run:
    """Return `run` with the options of `run_examples` that public trainers pass: failures as results, and no rollout
    that is started too late to end within the budget."""
    latencies: DispatchLatencyTracker = tracker or DispatchLatencyTracker()
    started = time.monotonic()

    async def limited(row: JsonObject) -> tuple[JsonObject, JsonObject]:
        began = time.monotonic()
        if budget_s is not None and began - started > budget_s - (latencies.drain_margin(margin_s) or 0.0):
            latencies.record_drained()
            return row, {NG_FAILURE_CLASS_KEY: "cancelled", NG_NO_PERSIST_KEY: True, "_ng_dispatch_drained": True}
        try:
            result = await run(row)
        except RolloutError as error:
            if not failures_are_results:
                raise
            return row, _failed(error)
        latencies.record(time.monotonic() - began)
        return result

    return limited


def _failed(error: RolloutError) -> JsonObject:
    kind = "agent_request_failed" if error.status in NOT_ANSWERED else "agent_run_error"
    fields = {"type": type(error).__name__, "message": str(error), "http_status": error.status}
    body = error.response_content.decode(errors="replace")
    named = {f"_ng_failure_{name}": value for name, value in {**fields, "response_body": body}.items()}
    return {NG_FAILURE_CLASS_KEY: kind, **named}
