"""Score stored rollouts anew, with the verifier as it is now, and tell what moved. No model is asked."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson
from pydantic import Field, ValidationError

from nemo_gym.analysis.records import Dataset, StoredLine, StoredRollout, read_records
from nemo_gym.analysis.verify_stored import offered_tools, verified
from nemo_gym.client.server_client import ServerClient
from nemo_gym.common.atomic_files import atomic_write, check_writable
from nemo_gym.common.exception_groups import raise_first_error
from nemo_gym.common.paths import find
from nemo_gym.common.redaction import process_redactor
from nemo_gym.config.error_messages import error_lines
from nemo_gym.config.keys import TASK_INDEX_KEY_NAME
from nemo_gym.config.types import CommandConfig
from nemo_gym.errors import Cause, ConfigError, RolloutError
from nemo_gym.llm_api.base import JsonObject, type_of
from nemo_gym.llm_api.json_codec import encode
from nemo_gym.rollouts.output_files import failures_path
from nemo_gym.rollouts.types import REPEAT_INDEX_KEY_NAME, ROW_HASH_KEY_NAME, hash_row

if TYPE_CHECKING:
    from omegaconf import DictConfig

OLD_REWARD_KEY_NAME = "_old_reward"
TOOL_OUTPUTS_CHANGED_KEY_NAME = "_tool_outputs_changed"
SHOWN_CHANGES = 10

EnvironmentOf = Callable[[Mapping[str, Any]], str]
"""Tells the name of the environment that a row is for."""


class ReverifyConfig(CommandConfig):
    """Score stored rollouts again with the current verifier and show which rewards changed.

    The exit code is 0 if no reward changed, otherwise 1. With config_paths, this command starts the environment
    itself; without, it uses the servers of the running `ng_run`.
    """

    rollouts_jsonl_fpath: str
    """What `ng_collect_rollouts` wrote."""

    input_jsonl_fpath: str
    """The dataset that the rollouts were collected from. The verifier may need fields that records do not have."""

    output_jsonl_fpath: str
    """Output file for the rollouts with their new rewards. The previous reward is in `_old_reward`."""

    agent_name: str | None = None
    """Use the environment of this agent. If neither this nor resources_server_name is set, each row's `agent_ref`."""

    resources_server_name: str | None = None
    """Name of the environment in the config."""

    replay_tools: bool = True
    """Call the tools again as the model did, to restore the state of the environment."""

    allow_changed_rows: bool = False
    """Continue if a row changed since the rollouts were collected, for example because its answer was corrected."""

    num_samples_in_parallel: int = Field(default=64, ge=1)
    """Number of rollouts in flight."""

    rollout_timeout_s: float = Field(default=3600.0, gt=0)
    """Time limit for one rollout, in seconds."""

    tolerance: float = Field(default=1e-9, ge=0)
    """Rewards that differ by at most this much count as unchanged."""

    max_moved: int = Field(default=0, ge=0)
    """Exit with code 0 if at most this many rewards changed or could not be computed."""

    overwrite: bool = False
    """Overwrite an existing output file."""


class Rescored(NamedTuple):
    """A rollout scored anew."""

    old: float
    record: JsonObject
    """What the environment answers now."""
    tool_calls: int
    tool_outputs_changed: int


class Change(NamedTuple):
    """A reward that moved. The larger change sorts first."""

    minus_size: float
    task_index: int
    repeat_index: int
    old: float
    new: float


@dataclass(slots=True)
class ReverifyReport:
    """What moved."""

    tolerance: float
    rescored: int = 0
    up: int = 0
    down: int = 0
    failed: Counter[Cause] = field(default_factory=Counter)
    changed_rows: int = 0
    tool_calls: int = 0
    tool_outputs_changed: int = 0
    largest: list[Change] = field(default_factory=list)
    """The largest changes, the largest one first."""
    _old: float = 0.0
    _new: float = 0.0

    @property
    def means(self) -> tuple[float, float]:
        """The mean reward before and after, over the rollouts that have both."""
        return self._old / max(1, self.rescored), self._new / max(1, self.rescored)

    @property
    def unconfirmed(self) -> int:
        """How many rollouts do not have the reward they had."""
        return self.up + self.down + self.failed.total()

    def add(self, rescored: Rescored, *, task_index: int, repeat_index: int) -> None:
        old, new = rescored.old, rescored.record["reward"]
        self.rescored += 1
        self._old, self._new = self._old + old, self._new + new
        self.tool_calls += rescored.tool_calls
        self.tool_outputs_changed += rescored.tool_outputs_changed
        if abs(new - old) > self.tolerance:
            self.up += new > old
            self.down += new < old
            changes = [*self.largest, Change(-abs(new - old), task_index, repeat_index, old, new)]
            self.largest = sorted(changes)[:SHOWN_CHANGES]


async def reverify_rollouts(
    config: ReverifyConfig, client: ServerClient, environment_of: EnvironmentOf
) -> ReverifyReport:
    """Score every rollout anew and write down the outcomes."""
    rollouts, rows = find(config.rollouts_jsonl_fpath, what="file of rollouts"), config.input_jsonl_fpath
    output = Path(config.output_jsonl_fpath)
    failures, report, todo = failures_path(output), ReverifyReport(config.tolerance), read_records(rollouts)
    for path in (output, failures):
        check_writable(path, overwrite=config.overwrite, sources=(rollouts, find(rows, what="dataset")))
    with (
        Dataset(rows, allow_changed=config.allow_changed_rows) as dataset,
        atomic_write(output) as scored,
        atomic_write(failures) as failed,
    ):
        redactor = process_redactor()

        async def work() -> None:
            for stored in todo:
                index = dataset.index_of(stored)
                row = dataset.row(index)
                marks = {name: value for name, value in stored.record.items() if name.startswith("_")}
                marks |= {TASK_INDEX_KEY_NAME: index, ROW_HASH_KEY_NAME: hash_row(dataset.line(index))}
                try:
                    found = await rescore(client, environment_of(row), row, stored, config)
                except RolloutError as error:
                    report.failed[error.cause] += 1
                    failure = {"cause": error.cause, "message": str(error), "server": error.server}
                    failed.write(redactor.json(orjson.dumps({**failure, **marks})) + b"\n")
                else:
                    report.add(found, task_index=index, repeat_index=marks.get(REPEAT_INDEX_KEY_NAME, 0))
                    told = {OLD_REWARD_KEY_NAME: found.old, TOOL_OUTPUTS_CHANGED_KEY_NAME: found.tool_outputs_changed}
                    scored.write(redactor.json(orjson.dumps({**found.record, **marks, **told})) + b"\n")

        with raise_first_error():
            async with asyncio.TaskGroup() as workers:
                for _ in range(config.num_samples_in_parallel):
                    workers.create_task(work())
    report.changed_rows = dataset.changed
    if not report.failed:
        failures.unlink()
    return report


async def rescore(
    client: ServerClient, environment: str, row: JsonObject, stored: StoredLine, config: ReverifyConfig
) -> Rescored:
    """Bring the environment to where the rollout left it, and have it verify."""
    record = stored.record
    try:
        old = StoredRollout.model_validate(record).reward
    except ValidationError as error:
        raise RolloutError("input", f"{stored.place} is no scored rollout: {'; '.join(error_lines(error))}") from error
    calls = _calls(record) if config.replay_tools else []
    found = await verified(
        client,
        environment,
        {**row, "responses_create_params": record["responses_create_params"]},
        [call for call, _ in calls],
        lambda _tool_outputs: record["response"],
        timeout_s=config.rollout_timeout_s,
        what=f"Verifying {stored.place}",
    )
    changed = sum(now != then for now, (_, then) in zip(found.tool_outputs, calls, strict=True))
    return Rescored(old, found.record, len(calls), changed)


def _calls(record: JsonObject) -> list[tuple[JsonObject, str]]:
    """The tool calls that reached the environment, with their outputs: of tools that the row offers, and answered."""
    offered, items = offered_tools(record), record["response"]["output"]
    outputs = {item["call_id"]: _text(item["output"]) for item in items if type_of(item) == "function_call_output"}
    calls = [item for item in items if type_of(item) == "function_call" and item["name"] in offered]
    return [(call, outputs[call["call_id"]]) for call in calls if call["call_id"] in outputs]


def _text(output: Any) -> str:
    return output if isinstance(output, str) else encode(output).decode()


def environment_finder(config: ReverifyConfig, settings: "DictConfig") -> EnvironmentOf:
    """How to tell the environment of a row: as the command says, as the row's agent does, or the only one there is."""
    from nemo_gym.config.loading import get_first_server_config_dict, server_instances

    @cache
    def of_agent(agent: str | None) -> str:
        if agent is None:
            names = [one.name for one in server_instances(settings) if one.server_type == "resources_servers"]
            if len(names) == 1:
                return names[0]
            found = ", ".join(names)
            raise ConfigError(f"Which environment is to verify? Give +resources_server_name, one of: {found}.")
        try:
            return str(get_first_server_config_dict(settings, agent)["resources_server"]["name"])
        except (KeyError, TypeError) as error:
            found = f"The agent '{agent}' names no resources_server in its configuration."
            raise ConfigError(f"{found} Give +resources_server_name.") from error

    def environment_of(row: Mapping[str, Any]) -> str:
        reference = row.get("agent_ref")
        agent = config.agent_name or (reference.get("name") if isinstance(reference, Mapping) else None)
        return config.resources_server_name or of_agent(agent or None)

    return environment_of
