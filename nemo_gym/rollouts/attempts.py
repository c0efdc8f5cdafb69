"""Make one rollout: up to a few attempts, each ending as scored or as a failure with a cause."""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from contextvars import Context, copy_context
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import orjson
from msgspec.structs import replace
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from nemo_gym.client.call_log import Routing, current_rollout, rollout_context, running_call
from nemo_gym.client.server_client import ServerClient, ServerReply
from nemo_gym.common import tracing
from nemo_gym.common.deadline import lease_time
from nemo_gym.common.exceptions import exception_repr, is_meant_for_task
from nemo_gym.common.logging import RateLimitedLog
from nemo_gym.common.retry import backoff_s, track_retries
from nemo_gym.common.rewards import check_finite_numbers, check_reward
from nemo_gym.config.keys import (
    ATTEMPT_INDEX_KEY_NAME,
    FAILURE_KIND,
    FAILURE_REASON,
    MASK_SAMPLE,
    NG_FAILURE_CLASS_KEY,
    NG_FAILURE_MESSAGE_KEY,
    NG_JUDGE_ERROR_KEY,
    NG_NO_PERSIST_KEY,
    NG_TERMINAL_KEY,
    ROLLOUT_INDEX_KEY_NAME,
    ROW_FIELDS,
    TASK_INDEX_KEY_NAME,
)
from nemo_gym.errors import SETUP_CODES, UNREACHABLE_CODE, Cause, ConfigError, RolloutError, SetupError
from nemo_gym.llm_api.json_codec import encode, has_plain_json
from nemo_gym.llm_api.responses import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming, NeMoGymResponseUsage
from nemo_gym.llm_api.stored_tokens import PROMPT_NAME, encode_stored, expand_prompts, read_record
from nemo_gym.rollouts.metrics import setup_message
from nemo_gym.rollouts.process_losses import LOST_CODES, LostRows, RowLosses
from nemo_gym.rollouts.store import WriteOutcome
from nemo_gym.rollouts.types import (
    ANSWER_FIELDS,
    FAILURE_FIELDS,
    METADATA_FIELDS,
    NO_DATASET,
    Outcome,
    Row,
    add_row_fields,
    metric_fields,
    single_line_record,
    wants_no_row_fields,
)

if TYPE_CHECKING:
    from nemo_gym.rollouts.call_log import AttemptLog, LogRequest

logger = logging.getLogger(__name__)
rate_limited_log = RateLimitedLog(logger)

_INDICES = f'{{"{TASK_INDEX_KEY_NAME}":%d,"{ROLLOUT_INDEX_KEY_NAME}":%d,'.encode()
_ATTEMPT_INDEX = f'"{ATTEMPT_INDEX_KEY_NAME}":%d,'.encode()

_CAUSE_OF_FAILURE: dict[str, Cause] = {"judge_failed": "judge", "timeout_exceeded": "timeout"}

MAX_OUTAGE_S = 600.0
"""Time that rows wait for a model endpoint that was reached before, after its model server has given up."""

Run = Callable[[Row], Awaitable[Outcome]]


class MakeAttempt(Protocol):
    """Makes one attempt at a rollout, in this process or in a worker."""

    async def __call__(self, row: Row, log: "LogRequest | None" = None) -> Outcome: ...


class InFlight(msgspec.Struct):
    """A rollout that is being made, by a collector or a worker."""

    number: int
    row: Row
    generation: int = 0
    """The limiter's generation when the rollout started."""
    started: float = msgspec.field(default_factory=time.monotonic)
    context: Context = msgspec.field(default_factory=copy_context)
    """The context of its task. It has the call that the rollout waits for, if the servers are in this process."""
    task: "asyncio.Task[None] | None" = None
    is_cancelled: bool = False
    """True if the user cancelled it."""
    is_abandoned: bool = False
    """True if it ignored its timeout, so that nobody waits for it any more."""

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Start its task."""
        task = asyncio.get_running_loop().create_task(work, name=f"rollout {self.number}", context=self.context)
        self.task = task
        return task

    def cancel(self) -> bool:
        """Cancel its task. Return False if it has ended already."""
        return self.task is not None and self.task.cancel()

    def stage(self, now: float) -> dict[str, Any]:
        """Return the innermost request that the rollout waits for. Empty if the servers are in another process."""
        call = self.context.get(running_call)
        if call is None or not call.stage:
            return {}
        place = {"stage": call.stage, "server": call.server, "path": call.path}
        return {**place, "stage_seconds": now - call.started}


def retrying_run(make_attempt: MakeAttempt, write: WriteOutcome, *, max_attempts: int) -> Run:
    """The function that makes a rollout of a row: it retries what is retryable and writes each failed attempt.
    Raises SetupError if a model endpoint is set up so that no rollout can succeed, or
    does not come back."""
    has_scored, unreachable_since, lost_rows = False, math.inf, LostRows()

    async def run(row: Row) -> Outcome:
        nonlocal has_scored, unreachable_since
        charged, throttled, losses = 0, 0, RowLosses(row.row_hash)
        while True:
            outcome = await lost_rows.dispatch(partial(make_attempt, row), losses)
            outcome.throttled += throttled
            error = outcome.error
            if error is None:
                has_scored, unreachable_since = True, math.inf
                return outcome
            is_outage, is_lost = error.code == UNREACHABLE_CODE, error.code in LOST_CODES
            if is_outage:
                unreachable_since = min(unreachable_since, lease_time())
            if error.code in SETUP_CODES and (not has_scored or lease_time() - unreachable_since > MAX_OUTAGE_S):
                raise SetupError(setup_message(error))
            charged += not is_outage and not is_lost
            if not error.retryable or charged == max_attempts:
                return outcome
            if is_lost and not lost_rows.may_retry(losses, error):
                return outcome
            throttled, outcome.is_final = outcome.throttled, False
            await write(outcome)
            pause_s = 0.0 if is_lost else backoff_s(row.attempt)
            failed = f"task {row.task_index} has no result ({error.cause}): {str(error)[:300]}"
            rate_limited_log.warning(
                error.cause, "%s; attempt %d of %d, next in %.1f s", failed, row.attempt, max_attempts, pause_s
            )
            await asyncio.sleep(pause_s)
            row = replace(row, attempt=row.attempt + 1)

    return run


def observed_attempt(client: ServerClient, row: Row, log: "LogRequest | None" = None) -> Coroutine[Any, Any, Outcome]:
    """As `attempt`, with its calls logged and traced if that is on."""
    running = attempt(client, row)
    if log is not None:
        running = _logged(client, running, row, log.attempt(row))
    elif client.local and (routing := row.routing) is not None:
        running = _routed(running, routing)
    if tracing.active is None:
        return running
    place = {"task_index": row.task_index, "repeat_index": row.repeat_index, "attempt": row.attempt}
    attributes: dict[str, str | int] = {f"nemo_gym.{name}": value for name, value in place.items()}
    return tracing.traced(
        running, "rollout", attributes={**attributes, "nemo_gym.agent": row.agent}, describe=_describe
    )


async def _routed(running: Coroutine[Any, Any, Outcome], routing: Routing) -> Outcome:
    with rollout_context(None, routing=routing):
        return await running


async def _logged(client: ServerClient, running: Coroutine[Any, Any, Outcome], row: Row, log: "AttemptLog") -> Outcome:
    try:
        await log.check_restorable(client)
    except RolloutError as error:
        running.close()
        return Outcome.failed(row, error)
    with log.running():
        return await running


def _describe(outcome: Outcome) -> dict[str, Any]:
    if outcome.error is None:
        return {"nemo_gym.outcome": "scored", "nemo_gym.reward": float(outcome.values.get("reward", 0.0))}
    return {"nemo_gym.outcome": outcome.error.cause, "error": str(outcome.error)}


async def attempt(client: ServerClient, row: Row) -> Outcome:
    """One attempt at a rollout. Every error is an outcome, so one row cannot end the others."""
    started = time.monotonic_ns()
    with track_retries() as retry_stats:
        try:
            outcome = read_reply(await call_agent(client, row, with_indices(row)), row)
            outcome.retries, outcome.throttled = retry_stats.retries, retry_stats.throttled
            outcome.seconds = _seconds_since(started)
            if rollout := current_rollout():
                outcome.step_seconds = rollout.step_seconds
            return outcome
        except RolloutError as error:
            failure = error
            failure.response = as_json(error.response)
        except ConfigError as error:
            failure = no_such_agent(row.agent, error)
        except BaseException as error:
            if is_meant_for_task(error):
                raise
            logger.exception("rollout of row %d failed", row.task_index)
            failure = RolloutError("internal", exception_repr(error))
    return Outcome.failed(row, failure, seconds=_seconds_since(started), throttled=retry_stats.throttled)


def as_json(response: Any) -> Any:
    """The response of a failed rollout. It is a live object if a timeout around the agent ended the rollout."""
    return orjson.loads(encode(response)) if isinstance(response, BaseModel) else response


def _seconds_since(started_ns: int) -> float:
    """Return the seconds since then, to the microsecond, as records have them."""
    return (time.monotonic_ns() - started_ns) // 1000 / 1e6


def with_indices(row: Row) -> bytes:
    """The row as it is sent: with the indices that agents and environments read. Those that it brings itself stay:
    they come later, and of two values the last one counts."""
    rest = row.body[1:]
    if rest.lstrip()[:1] == b"}" or row.body[:1] != b"{" or row.task_index == NO_DATASET:
        return row.body
    attempt_index = b"" if row.attempt == 1 else _ATTEMPT_INDEX % (row.attempt - 1)
    return b"".join((_INDICES % (row.task_index, row.repeat_index), attempt_index, rest))


def call_agent(client: ServerClient, row: Row, body: bytes) -> Coroutine[Any, Any, ServerReply]:
    """The reply of an agent to a row. Raises ConfigError if there is no such agent."""
    return client.call(row.agent, "/run", body, answer=ServerReply, timeout_s=row.timeout_s, what="The rollout")


def no_such_agent(agent: str, error: ConfigError) -> RolloutError:
    """An agent that does not exist is an error of the row that names it."""
    return RolloutError("input", str(error), server=agent)


def parse_scored(reply: ServerReply) -> dict[str, Any]:
    """The reply of an agent or a verifier as an object with a finite reward; anything else raises RolloutError."""
    content = b""
    try:
        content = reply.content()
        result = orjson.loads(content)
    except (ValueError, TypeError) as error:
        check_finite_numbers(content, server=reply.server)
        raise RolloutError("internal", f"The reply is not JSON: {error}.", server=reply.server) from error
    if not isinstance(result, dict):
        raise RolloutError("internal", f"The reply is {result!r:.300}; expected an object.", server=reply.server)
    is_failed = result.get(MASK_SAMPLE) is True and result.get(FAILURE_KIND)
    if is_failed or NG_FAILURE_CLASS_KEY in result or NG_NO_PERSIST_KEY in result:
        raise _reported_failure(result, reply.server)
    check_reward(result.get("reward"), server=reply.server)
    return result


def _reported_failure(result: Mapping[str, Any], server: str) -> RolloutError:
    """The failure that an agent or environment reports in its reply. The reward beside it does not count."""
    kind = str(result.get(NG_FAILURE_CLASS_KEY) or result.get(FAILURE_KIND) or "no_persist")
    given = (result.get(key) for key in (NG_JUDGE_ERROR_KEY, NG_FAILURE_MESSAGE_KEY, FAILURE_REASON))
    detail = next(filter(None, given), f"The rollout failed: {kind}")
    cause = _CAUSE_OF_FAILURE.get(kind, "environment")
    error = RolloutError(cause, str(detail), server=server, retryable=not result.get(NG_TERMINAL_KEY), code=kind)
    error.response = result.get("response")
    return error


def read_reply(reply: ServerReply, row: Row) -> Outcome:
    """The outcome of a rollout in its agent's reply. A live object is not decoded again for its metrics. Raises
    RolloutError if it has no result."""
    outcome = _read_live(reply, row)
    if outcome is None:
        fields, content = parse_scored(reply), reply.content()
        record = single_line_record(encode_stored(fields) if PROMPT_NAME in content else content, fields)
        has_no_row_fields = wants_no_row_fields(fields)
        fields.pop(ROW_FIELDS, None)
        if not has_no_row_fields:
            record = _with_row_fields(record, fields, row)
        outcome = Outcome(row, record, **metric_fields(fields))
    return outcome


def _with_row_fields(record: bytes, fields: Collection[str], row: Row) -> bytes:
    return record if row.task_index == NO_DATASET else add_row_fields(record, fields, row.body)


def scored_fields(reply: ServerReply, row: Row) -> dict[str, Any]:
    """The fields of the record in an agent's reply, for a trainer. All its calls have all their prompt ids."""
    live = _read_live(reply, row)
    fields: dict[str, Any] = expand_prompts(parse_scored(reply)) if live is None else read_record(live.record)
    return fields


_JSON_SCALARS = frozenset((str, int, float, bool, type(None)))
_JSON_CONTAINERS = (dict, list, NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming, BaseModel)
"""The common classes first, since isinstance with a pydantic class is slow."""
_SPECIAL_FIELDS = frozenset((NG_FAILURE_CLASS_KEY, NG_NO_PERSIST_KEY, ROW_FIELDS, *METADATA_FIELDS))
_NO_FIELD = FieldInfo()


def _read_live(reply: ServerReply, row: Row) -> Outcome | None:
    """The outcome with the record of a model whose JSON has the same names and values; None for anything else."""
    value = reply.value
    if not _is_record(type(value)):  # type: ignore[arg-type]
        return None
    extra = value.__pydantic_extra__
    fields: dict[str, Any] = {**value.__dict__, **extra} if extra else value.__dict__
    if not _SPECIAL_FIELDS.isdisjoint(fields) or fields.get(MASK_SAMPLE) is True:
        return None
    values: dict[str, Any] = {}
    for name, item in fields.items():
        if name in FAILURE_FIELDS:
            continue
        if type(item) in _JSON_SCALARS and not (type(item) is int and abs(item) >= 2**63):
            values[name] = item
        elif name in ANSWER_FIELDS or not isinstance(item, _JSON_CONTAINERS):
            return None
    check_reward(values.get("reward"), server=reply.server)
    response: NeMoGymResponse = fields["response"]
    record = _with_row_fields(encode_stored(value), fields, row)
    return Outcome(row, record, values=values, tokens=_tokens(response.usage), is_cut_off=_is_cut_off(response))


def _tokens(usage: NeMoGymResponseUsage | None) -> tuple[int | None, ...]:
    if usage is None:
        return ()
    reasoning = usage.output_tokens_details.reasoning_tokens
    return usage.input_tokens, usage.output_tokens, reasoning, usage.total_tokens


def _is_cut_off(response: NeMoGymResponse) -> bool:
    """True if a token or step limit ended the rollout: `is_cut_off` for a live response."""
    if response.incomplete_details is not None or response.status == "incomplete":
        return True
    extra = response.__pydantic_extra__
    return bool(extra) and extra.get("ended_by") == "max_steps"  # type: ignore[union-attr]


@lru_cache(maxsize=512)
def _is_record(kind: type) -> bool:
    """True for a model whose JSON has the same names and values, with a response as usual."""
    return has_plain_json(kind) and kind.model_fields.get("response", _NO_FIELD).annotation is NeMoGymResponse  # type: ignore[attr-defined]
