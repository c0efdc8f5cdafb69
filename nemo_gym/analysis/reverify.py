"""Verify stored rollouts again with the current verifier, and report changed rewards. No model is called.

It also completes rollouts from a `_failures` file that failed after the model had answered."""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson
from pydantic import Field, ValidationError

from nemo_gym.analysis.dataset_rows import ChangedRows, Dataset, StoredFailure, StoredRollout
from nemo_gym.client.call_log import Call, CallKind
from nemo_gym.client.server_client import CookieJar, ServerClient, ServerReply
from nemo_gym.common.atomic_files import atomic_write, check_writable
from nemo_gym.common.deadline import timeout
from nemo_gym.common.exceptions import raise_first_error
from nemo_gym.common.paths import find
from nemo_gym.common.redaction import redact
from nemo_gym.config.keys import ROLLOUT_INDEX_KEY_NAME, ROW_FIELDS, TASK_INDEX_FIELD, TASK_INDEX_KEY_NAME
from nemo_gym.config.types import CommandConfig
from nemo_gym.config.validation import error_lines
from nemo_gym.errors import Cause, ConfigError, RolloutError
from nemo_gym.llm_api.base import JsonObject, type_of
from nemo_gym.llm_api.builders import response_of, tool_output
from nemo_gym.llm_api.json_codec import encode
from nemo_gym.llm_api.stored_tokens import encode_stored
from nemo_gym.participants import ENVIRONMENT, USER
from nemo_gym.rollouts.attempts import parse_scored
from nemo_gym.rollouts.store import StoredLine, failures_path, read_records, read_rollouts, scored_path
from nemo_gym.rollouts.types import (
    METADATA_FIELDS,
    REPEAT_INDEX_KEY_NAME,
    ROW_HASH_KEY_NAME,
    TOKENS_KEY_NAME,
    RowKey,
    add_row_fields,
    hash_row,
    task_index_of,
    wants_no_row_fields,
)
from nemo_gym.server.tools import PARTICIPANT_COOKIE, POLICY, offered_tools
from nemo_gym.training.token_file import moved_place

if TYPE_CHECKING:
    from omegaconf import DictConfig

NEXT_MESSAGE = "next_message"
_CALL, _OUTPUT = "function_call", "function_call_output"
_WITHOUT_MESSAGE = ("incomplete", "silent", "max_steps")


class Verified(NamedTuple):
    """The result of a verification."""

    record: JsonObject
    """The reply of the environment, with a finite reward."""
    tool_outputs: list[str]
    """The replies of the tools, call by call."""
    seconds: float
    """Time of the verification itself, without the calls before it."""


async def verified(
    client: ServerClient,
    environment: str,
    row: JsonObject,
    calls: Iterable[Call],
    response: Callable[[list[str]], JsonObject],
    *,
    timeout_s: float,
    what: str,
) -> Verified:
    """Open a session with the row, make the calls, and verify the response to them."""
    jar, outputs = CookieJar(), []
    async with timeout(timeout_s, what=what), client.sessions(jar):
        await client.call(environment, "/seed_session", encode(row), answer=ServerReply, cause="environment", jar=jar)
        for call in calls:
            own = jar if not call.participant else CookieJar({**jar, PARTICIPANT_COOKIE: call.participant})
            reply = await client.send(environment, call.name, call.request.encode(), cause="tool", jar=own)
            outputs.append(reply.text)
        body, started = encode({**row, "response": response(outputs)}), time.perf_counter()
        reply = await client.call(
            environment, "/verify", body, answer=ServerReply, cause="verifier", jar=jar, ends_session=True
        )
        record = parse_scored(reply)
        return Verified(record, outputs, time.perf_counter() - started)


async def verify_items(
    client: ServerClient,
    environment: str,
    row: JsonObject,
    items: Sequence[JsonObject],
    *,
    timeout_s: float,
    what: str,
) -> Verified:
    """Verify output items. Each tool call that the row allows is made, and its current reply follows it."""
    offered = offered_tools(row["responses_create_params"].get("tools"))
    made = [item for item in items if item["type"] == _CALL and item["name"] in offered]

    def with_outputs(outputs: list[str]) -> JsonObject:
        replies, all_items = iter(outputs), []
        for item in items:
            all_items.append(item)
            if item in made:
                all_items.append(tool_output(next(replies), call_id=item["call_id"]))
        return response_of(*all_items)

    calls = [_environment_call(item["name"], item["arguments"]) for item in made]
    return await verified(client, environment, row, calls, with_outputs, timeout_s=timeout_s, what=what)


def calls_in_record(row: JsonObject, record: JsonObject) -> list[Call]:
    """All calls of a rollout that reached the environment, in their order."""
    response = record["response"]
    harness = response.get("harness")
    if harness:  # its own names for tools need not be the environment's
        made = harness["tool_calls"]
        return [_environment_call(call["name"], call["arguments"], call["output"]) for call in made]
    participants = [_Participant(response.get("participant") or POLICY, _offered(record), response["output"])]
    for name, other in (response.get("participants") or {}).items():
        participants.append(_Participant(name, _offered(other), other["response"]["output"]))
    turns = response.get("turns")
    if turns is None:
        return list(_tool_calls(participants[0], participants[0].items))
    calls: list[Call] = []
    for turn in range(turns + 1):
        for participant in participants:
            calls += _tool_calls(participant, [item for item in participant.items if item.get("turn") == turn])
        if all(participant.name != USER for participant in participants):
            calls += _next_message(row, record, participants, turn)
    return calls


def is_repeated(call: Call, reply: str) -> bool:
    """True if a new reply to a call of `calls_in_record` says the same as the old one."""
    return (_message_in(reply) if call.kind == "message" else reply) == call.reply


def _environment_call(
    name: str, arguments: str, reply: str = "", participant: str = POLICY, kind: CallKind = "tool"
) -> Call:
    caller = "" if participant == POLICY else participant
    return Call(name=f"/{name}", kind=kind, participant=caller, request=arguments, reply=reply)


class _Participant(NamedTuple):
    name: str
    offered: list[str]
    items: list[JsonObject]


def _offered(record: JsonObject) -> list[str]:
    return offered_tools(record["responses_create_params"].get("tools"))


def _tool_calls(participant: _Participant, items: list[JsonObject]) -> Iterator[Call]:
    outputs = _outputs_of_calls(items)
    for place, item in enumerate(items):
        if place in outputs and item["name"] in participant.offered:
            yield _environment_call(item["name"], item["arguments"], outputs[place], participant.name)


def _outputs_of_calls(items: list[JsonObject]) -> dict[int, str]:
    """Map the position of each call to its output. Endpoints may reuse an id, also within a reply, so outputs
    belong, in order, to the nearest calls before them that have their id and no output yet."""
    waiting: defaultdict[str, list[int]] = defaultdict(list)
    found: dict[int, str] = {}
    relevant = [(place, item) for place, item in enumerate(items) if type_of(item) in (_CALL, _OUTPUT)]
    for kind, group in groupby(relevant, key=lambda one: type_of(one[1])):
        places = defaultdict(list)
        for place, item in group:
            places[item["call_id"]].append(place)
        for call_id, same_id in places.items():
            calls = waiting[call_id]
            if kind == _CALL:
                calls += same_id
            else:
                outputs = [_text(items[place]["output"]) for place in same_id]
                found |= zip(calls[-len(outputs) :], outputs, strict=False)
                del calls[-len(outputs) :]
    return found


def _next_message(row: JsonObject, record: JsonObject, participants: list[_Participant], turn: int) -> Iterator[Call]:
    """Yield the call of `next_message` after a turn, if there was one."""
    response = record["response"]
    found = [(each, item) for each in participants for item in each.items if item.get("turn") == turn]
    replies = [item["content"] for _, item in found if item["produced_by"] == ENVIRONMENT]
    if turn == 0 and not replies and response["turns"]:
        return  # the row began with a message of the user
    if turn == response["turns"] and response["ended_by"] in _WITHOUT_MESSAGE:
        return
    own = [(each, item) for each, item in found if item["produced_by"] != ENVIRONMENT]
    acting = own[0][0] if own else participants[0]
    body = {
        **row,
        "responses_create_params": record["responses_create_params"],
        "response": response_of(*(item for each, item in own if each is acting)),
        "turn": turn,
        "participant": acting.name,
    }
    reply = encode(replies[0] if replies else None).decode()
    yield _environment_call(NEXT_MESSAGE, encode(body).decode(), reply, acting.name, "message")


def _message_in(reply: str) -> str:
    try:
        message = orjson.loads(reply)["message"]
        return encode(None if message is None else message["content"]).decode()
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return reply


def _text(output: object) -> str:
    return output if isinstance(output, str) else encode(output).decode()


OLD_REWARD_KEY_NAME = "_old_reward"
TOOL_OUTPUTS_CHANGED_KEY_NAME = "_tool_outputs_changed"
SHOWN_CHANGES = 10
_INDICES = frozenset((TASK_INDEX_KEY_NAME, ROLLOUT_INDEX_KEY_NAME))

EnvironmentOf = Callable[[Mapping[str, Any]], str]
"""Returns the name of the environment of a row."""


class ReverifyConfig(CommandConfig):
    """Verify stored rollouts again with the current verifier, and show which rewards changed.

    Given a `_failures` file, it completes the rollouts that failed after the model had answered, unless they have been
    scored since: append the output to that of `ng_collect_rollouts`. The exit code is 0 if all rewards are unchanged,
    and 1 if not. With config_paths this command starts the environment itself; without, it uses the servers of a
    running `ng_run`.
    """

    rollouts_jsonl_fpath: str
    """The output of `ng_collect_rollouts`, or its `_failures` file."""

    input_jsonl_fpath: str
    """The dataset that the rollouts were collected from, or their `_materialized_inputs` file. The verifier may need
    fields that records do not have."""

    output_jsonl_fpath: str
    """Output file for the rollouts with their new rewards. The previous reward is in `_old_reward`."""

    agent_name: str | None = None
    """Use the environment of this agent. If neither this nor resources_server_name is set, each row's `agent_ref`."""

    resources_server_name: str | None = None
    """Name of the environment in the config."""

    replay_tools: bool = True
    """Call the tools again as the model did, to restore the state of the environment."""

    allow_changed_rows: bool = False
    """Continue if a row changed since the rollouts were collected, for example because its answer was corrected.
    Rollouts of rows that were removed are failures."""

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
    """A rollout that was verified again."""

    old: float | None
    """None if it had failed."""
    record: JsonObject
    """The reply of the environment."""
    tool_calls: int
    tool_outputs_changed: int


class Change(NamedTuple):
    """A changed reward. The larger change sorts first."""

    minus_size: float
    task_index: int
    repeat_index: int
    old: float
    new: float


@dataclass(slots=True)
class ReverifyReport:
    """Counts of a reverification, and the largest changes."""

    tolerance: float
    rescored: int = 0
    completed: int = 0
    """Rollouts that had failed and are scored now."""
    unusable: int = 0
    """Failed rollouts without a response."""
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
        """Number of rollouts whose reward changed or could not be computed."""
        return self.up + self.down + self.failed.total()

    def add(self, rescored: Rescored, *, task_index: int, repeat_index: int) -> None:
        old, new = rescored.old, rescored.record["reward"]
        self.tool_calls += rescored.tool_calls
        self.tool_outputs_changed += rescored.tool_outputs_changed
        if old is None:
            self.completed += 1
            return
        self.rescored += 1
        self._old, self._new = self._old + old, self._new + new
        if abs(new - old) > self.tolerance:
            self.up += new > old
            self.down += new < old
            changes = [*self.largest, Change(-abs(new - old), task_index, repeat_index, old, new)]
            self.largest = sorted(changes)[:SHOWN_CHANGES]


async def reverify_rollouts(
    config: ReverifyConfig, client: ServerClient, environment_of: EnvironmentOf
) -> ReverifyReport:
    """Verify every rollout again and write the outcomes."""
    rollouts, rows = find(config.rollouts_jsonl_fpath, what="file of rollouts"), config.input_jsonl_fpath
    output = Path(config.output_jsonl_fpath)
    failures, report = failures_path(output), ReverifyReport(config.tolerance)
    todo = completable(rollouts, report)
    for path in (output, failures):
        check_writable(path, overwrite=config.overwrite, sources=(rollouts, find(rows, what="dataset")))
    with (
        Dataset(rows) as dataset,
        atomic_write(output) as scored,
        atomic_write(failures) as failed,
    ):
        changed_rows = ChangedRows(dataset, rollouts)
        index_of = changed_rows.index_of if config.allow_changed_rows else dataset.index_of

        async def verify_again(stored: StoredLine) -> None:
            metadata = metadata_of(stored.record)
            if TOKENS_KEY_NAME in metadata:
                metadata[TOKENS_KEY_NAME] = moved_place(metadata[TOKENS_KEY_NAME], rollouts.parent, output.parent)
            try:
                index = index_of(stored)
                metadata |= row_metadata(stored.record, dataset, index)
                row = dataset.row(index)
                found = await rescore(client, environment_of(row), row, stored, config)
                line = rescored_line(found, metadata, dataset.line(index))
            except RolloutError as error:
                report.failed[error.cause] += 1
                failure = {"cause": error.cause, "message": redact(str(error)), "server": error.server}
                failed.write(orjson.dumps({**failure, **metadata}) + b"\n")
            else:
                task, repeat = metadata[TASK_INDEX_FIELD], metadata.get(REPEAT_INDEX_KEY_NAME, 0)
                report.add(found, task_index=task, repeat_index=repeat)
                scored.write(line + b"\n")

        async def work() -> None:
            for stored in todo:
                await verify_again(stored)

        with raise_first_error():
            async with asyncio.TaskGroup() as workers:
                for _ in range(config.num_samples_in_parallel):
                    workers.create_task(work())
    report.changed_rows = changed_rows.count
    if not report.failed:
        failures.unlink()
    return report


def metadata_of(record: Mapping[str, Any]) -> JsonObject:
    """Return the fields that the collector adds to a record, except those of its row. A failure gets the same
    fields as a scored record."""
    of_row = record["row"].keys() - METADATA_FIELDS - _INDICES if is_failure(record) else record.get(ROW_FIELDS) or ()
    metadata = {name: value for name, value in record.items() if name.startswith("_") and name not in of_row}
    metadata.pop(ROW_FIELDS, None)
    if is_failure(record):
        metadata |= {"_attempts": record.get("attempt", 1), "_retries": 0, "_seconds": record.get("seconds")}
    return metadata


def row_metadata(record: Mapping[str, Any], dataset: Dataset, index: int) -> JsonObject:
    """Return the task index of a record, unchanged so that it names one row in all of the output, and the hash of the
    row that it is verified with."""
    task_index = task_index_of(record)
    metadata: JsonObject = {TASK_INDEX_FIELD: index if task_index is None else task_index}
    return metadata if dataset.is_materialized else {**metadata, ROW_HASH_KEY_NAME: hash_row(dataset.line(index))}


def rescored_line(found: Rescored, metadata: JsonObject, row: bytes) -> bytes:
    """Return the record as the collector writes it, with the fields of its row."""
    reply = {name: value for name, value in found.record.items() if name not in METADATA_FIELDS | metadata.keys()}
    record = encode_stored(reply)
    if not wants_no_row_fields(found.record):
        record = add_row_fields(record, reply.keys() | metadata.keys(), row)
    changes = {OLD_REWARD_KEY_NAME: found.old, TOOL_OUTPUTS_CHANGED_KEY_NAME: found.tool_outputs_changed}
    return b"%b,%b" % (record[:-1], orjson.dumps({**metadata, **changes})[1:])


def completable(path: Path, report: ReverifyReport) -> Iterator[StoredLine]:
    """Yield the records to verify: all scored rollouts and, of a `_failures` file, the last attempt with a response
    for each rollout that has not been scored since."""
    offset_of: dict[RowKey, int | None] = {}
    for stored in read_records(path):
        key = _row_key(stored.record)
        if key is not None and is_failure(stored.record):
            answered = stored.record.get("response") is not None
            offset_of[key] = stored.offset if answered else offset_of.get(key)
    for key in _scored_keys(path) if offset_of else ():
        offset_of.pop(key, None)
    offsets = set(offset_of.values())
    report.unusable = sum(offset is None for offset in offset_of.values())
    for stored in read_rollouts(path):
        if not is_failure(stored.record):
            yield stored
        elif stored.offset in offsets:
            yield StoredLine(stored.offset, stored.place, {**stored.record["row"], **stored.record})


def is_failure(record: Mapping[str, Any]) -> bool:
    """True for a line of a `_failures` file."""
    return "cause" in record and "reward" not in record and isinstance(record.get("row"), dict)


def _scored_keys(failures: Path) -> set[RowKey]:
    """Return the keys of the rows in the output beside a `_failures` file."""
    output = scored_path(failures)
    if output is None or not output.exists():
        return set()
    keys = (_row_key(stored.record) for stored in read_records(output))
    return {key for key in keys if key is not None}


def _row_key(record: Mapping[str, Any]) -> RowKey | None:
    try:
        return record[TASK_INDEX_FIELD], record[REPEAT_INDEX_KEY_NAME], record[ROW_HASH_KEY_NAME]
    except KeyError:
        return None


async def rescore(
    client: ServerClient, environment: str, row: JsonObject, stored: StoredLine, config: ReverifyConfig
) -> Rescored:
    """Restore the environment's state by repeating the tool calls, and verify."""
    record = stored.record
    kind = StoredFailure if is_failure(record) else StoredRollout
    try:
        old = kind.model_validate(record).reward
    except ValidationError as error:
        raise RolloutError("input", f"{stored.place} is not a rollout: {'; '.join(error_lines(error))}") from error
    calls = calls_in_record(row, record) if config.replay_tools else []
    found = await verified(
        client,
        environment,
        {**row, "responses_create_params": record["responses_create_params"]},
        calls,
        lambda _tool_outputs: record["response"],
        timeout_s=config.rollout_timeout_s,
        what=f"Verifying {stored.place}",
    )
    changed = sum(not is_repeated(call, now) for now, call in zip(found.tool_outputs, calls, strict=True))
    return Rescored(old, found.record, len(calls), changed)


def environment_finder(config: ReverifyConfig, settings: "DictConfig") -> EnvironmentOf:
    """Return a function that names the environment of a row: from the command, from its agent, or the only one."""
    from nemo_gym.config.loading import get_first_server_config_dict, server_instances

    @cache
    def of_agent(agent: str | None) -> str:
        if agent is None:
            names = [one.name for one in server_instances(settings) if one.server_type == "resources_servers"]
            if len(names) == 1:
                return names[0]
            found = ", ".join(names)
            raise ConfigError(f"The config has several environments. Give +resources_server_name, one of: {found}.")
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
