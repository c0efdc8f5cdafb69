"""One rollout: up to a few attempts, each of which ends as scored or as a failure with a cause."""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from functools import lru_cache, partial
from typing import Any

import msgspec
import orjson
from msgspec.structs import replace
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from nemo_gym.base_resources_server import check_finite_numbers, check_reward
from nemo_gym.client.server_client import ServerClient, ServerReply
from nemo_gym.common import tracing
from nemo_gym.common.deadline import lease_time
from nemo_gym.common.exceptions import exception_repr, is_meant_for_task
from nemo_gym.common.logging import RateLimitedLog
from nemo_gym.common.retry import backoff_s, track_retries
from nemo_gym.config.keys import (
    ATTEMPT_INDEX_KEY_NAME,
    NG_FAILURE_CLASS_KEY,
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
from nemo_gym.rollouts.call_log import AttemptLog, LogRequest, MakeAttempt
from nemo_gym.rollouts.config import RolloutCollectionConfig
from nemo_gym.rollouts.metrics import setup_message
from nemo_gym.rollouts.process_losses import LOST_CODES, LostRows, RowLosses
from nemo_gym.rollouts.store import WriteOutcome
from nemo_gym.rollouts.types import (
    ANSWER_FIELDS,
    METADATA_FIELDS,
    NoResult,
    Outcome,
    RecordMetrics,
    Row,
    Scored,
    add_row_fields,
    record_metrics,
    single_line_record,
    wants_no_row_fields,
)

logger = logging.getLogger(__name__)
rate_limited_log = RateLimitedLog(logger)

_INDICES = f'{{"{TASK_INDEX_KEY_NAME}":%d,"{ROLLOUT_INDEX_KEY_NAME}":%d,'.encode()
_ATTEMPT_INDEX = f'"{ATTEMPT_INDEX_KEY_NAME}":%d,'.encode()

_CAUSE_OF_FAILURE: dict[str, Cause] = {"judge_failed": "judge", "timeout_exceeded": "timeout"}

MAX_OUTAGE_S = 600.0
"""How long rows wait for a model endpoint that was reached before, beyond what its model server waits itself."""

Run = Callable[[Row], Awaitable[Outcome]]


def retrying_run(make_attempt: MakeAttempt, config: RolloutCollectionConfig, write: WriteOutcome) -> Run:
    """The function that makes a rollout of a row: it retries what is retryable and writes each failed attempt.
    Raises SetupError if a model endpoint is set up so that no rollout can succeed, or
    does not come back."""
    has_scored, unreachable_since, lost_rows, timeout_s = False, math.inf, LostRows(), config.rollout_timeout_s

    async def run(row: Row) -> Outcome:
        nonlocal has_scored, unreachable_since
        number, charged, throttled, losses = 1, 0, 0, RowLosses(row.id.row_hash)
        while True:
            make = partial(make_attempt, row, timeout_s=timeout_s, number=number)
            outcome = await lost_rows.dispatch(make, losses)
            if throttled:
                outcome = replace(outcome, throttled=outcome.throttled + throttled)
            if isinstance(outcome, Scored):
                has_scored, unreachable_since = True, math.inf
                return outcome
            is_outage, is_lost = outcome.code == UNREACHABLE_CODE, outcome.code in LOST_CODES
            if is_outage:
                unreachable_since = min(unreachable_since, lease_time())
            if outcome.code in SETUP_CODES and (not has_scored or lease_time() - unreachable_since > MAX_OUTAGE_S):
                raise SetupError(setup_message(outcome))
            charged += not is_outage and not is_lost
            if not outcome.retryable or charged == config.max_attempts:
                return outcome
            if is_lost and not lost_rows.may_retry(losses, outcome):
                return outcome
            throttled = outcome.throttled
            await write(replace(outcome, is_final=False))
            pause_s = 0.0 if is_lost else backoff_s(number)
            failed = f"task {row.id.task_index} has no result ({outcome.cause}): {outcome.message[:300]}"
            rate_limited_log.warning(
                outcome.cause, "%s; attempt %d of %d, next in %.1f s", failed, number, config.max_attempts, pause_s
            )
            await asyncio.sleep(pause_s)
            number += 1

    return run


def observed_attempt(
    client: ServerClient, row: Row, *, timeout_s: float, number: int, log: LogRequest | None = None
) -> Coroutine[Any, Any, Outcome]:
    """As `attempt`, with its calls logged and traced if that is on."""
    running = attempt(client, row, timeout_s=timeout_s, number=number)
    if log is not None:
        running = _logged(running, AttemptLog(row.id, number, log))
    if tracing.active is None:
        return running
    place = {"task_index": row.id.task_index, "repeat_index": row.id.repeat_index, "attempt": number}
    attributes: dict[str, str | int] = {f"nemo_gym.{name}": value for name, value in place.items()}
    return tracing.traced(
        running, "rollout", attributes={**attributes, "nemo_gym.agent": row.agent}, describe=_describe
    )


async def _logged(running: Awaitable[Outcome], log: AttemptLog) -> Outcome:
    with log.running():
        return await running


def _describe(outcome: Outcome) -> dict[str, Any]:
    if isinstance(outcome, Scored):
        return {"nemo_gym.outcome": "scored", "nemo_gym.reward": float(outcome.metrics.values.get("reward", 0.0))}
    return {"nemo_gym.outcome": outcome.cause, "error": outcome.message}


async def attempt(client: ServerClient, row: Row, *, timeout_s: float, number: int = 1) -> Outcome:
    """One attempt at a rollout. Every error is an outcome, so one row cannot end the others."""
    started = time.monotonic_ns()
    with track_retries() as retry_stats:
        try:
            reply = await call_agent(client, row.agent, with_indices(row, number), timeout_s=timeout_s)
            scored = scored_record(reply)
            record, fields = scored.record, scored.fields
            if ROW_FIELDS not in fields and row.id.task_index >= 0:  # with it an environment says that it wants none
                record = add_row_fields(record, fields, row.body)
        except RolloutError as error:
            failure = error
        except ConfigError as error:
            failure = no_such_agent(row.agent, error)
        except BaseException as error:
            if is_meant_for_task(error):
                raise
            logger.exception("rollout of row %d failed", row.id.task_index)
            failure = RolloutError("internal", exception_repr(error))
        else:
            stats, seconds = retry_stats, _seconds_since(started)
            return Scored(row.id, record, scored.metrics, number, stats.retries, stats.throttled, seconds)
    return NoResult.of(
        row,
        failure.cause,
        str(failure),
        seconds=_seconds_since(started),
        server=failure.server,
        code=failure.code,
        attempt=number,
        retryable=failure.retryable,
        response=as_json(failure.response),
        status=failure.status,
        throttled=retry_stats.throttled,
    )


def as_json(response: Any) -> Any:
    """The response of a failed rollout. It is a live object if a timeout around the agent ended the rollout."""
    return orjson.loads(encode(response)) if isinstance(response, BaseModel) else response


def _seconds_since(started_ns: int) -> float:
    """To the microsecond, as records have it."""
    return (time.monotonic_ns() - started_ns) // 1000 / 1e6


def with_indices(row: Row, number: int = 1) -> bytes:
    """The row as it is sent: with the indices that agents and environments read. Those that it brings itself stay:
    they come later, and of two values the last one counts."""
    rest = row.body[1:]
    if rest.lstrip()[:1] == b"}" or row.body[:1] != b"{" or row.id.task_index < 0:
        return row.body
    attempt_index = b"" if number == 1 else _ATTEMPT_INDEX % (number - 1)
    return b"".join((_INDICES % (row.id.task_index, row.id.repeat_index), attempt_index, rest))


def call_agent(client: ServerClient, agent: str, body: Any, *, timeout_s: float) -> Coroutine[Any, Any, ServerReply]:
    """The reply of an agent to a row. Raises ConfigError if there is no such agent."""
    return client.call(agent, "/run", body, answer=ServerReply, timeout_s=timeout_s, what="The rollout")


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
    if NG_FAILURE_CLASS_KEY in result or NG_NO_PERSIST_KEY in result:
        raise _reported_failure(result, reply.server)
    check_reward(result.get("reward"), server=reply.server)
    return result


def _reported_failure(result: Mapping[str, Any], server: str) -> RolloutError:
    """The failure that an agent or environment reports in its reply. The reward beside it does not count."""
    kind = str(result.get(NG_FAILURE_CLASS_KEY) or "no_persist")
    detail = result.get(NG_JUDGE_ERROR_KEY) or f"The reply says that the rollout failed: {kind}"
    cause = _CAUSE_OF_FAILURE.get(kind, "environment")
    error = RolloutError(cause, str(detail), server=server, retryable=not result.get(NG_TERMINAL_KEY), code=kind)
    error.response = result.get("response")
    return error


class ScoredRecord(msgspec.Struct, frozen=True):
    """A record on one line, its metrics, and the names of its fields."""

    record: bytes
    metrics: RecordMetrics
    fields: Collection[str]


def scored_record(reply: ServerReply) -> ScoredRecord:
    """The record in an agent's reply. A live object is not decoded again for its metrics."""
    live = _live_record(reply)
    if live is not None:
        return live
    fields = parse_scored(reply)
    record = single_line_record(reply.content(), fields)
    if not wants_no_row_fields(fields):
        fields.pop(ROW_FIELDS, None)
    return ScoredRecord(record, record_metrics(fields), fields)


_JSON_SCALARS = frozenset((str, int, float, bool, type(None)))
_JSON_CONTAINERS = (dict, list, NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming, BaseModel)
"""What is looked for first is found at once; whether an object is of any class of pydantic's takes long."""
_SPECIAL_FIELDS = frozenset((NG_FAILURE_CLASS_KEY, NG_NO_PERSIST_KEY, ROW_FIELDS, *METADATA_FIELDS))
_NO_FIELD = FieldInfo()


def _live_record(reply: ServerReply) -> ScoredRecord | None:
    """The record of a model whose JSON has the same names and values; None for anything else."""
    value = reply.value
    if not _is_record(type(value)):  # type: ignore[arg-type]
        return None
    extra = value.__pydantic_extra__
    fields: dict[str, Any] = {**value.__dict__, **extra} if extra else value.__dict__
    if not _SPECIAL_FIELDS.isdisjoint(fields):
        return None
    values: dict[str, Any] = {}
    for name, item in fields.items():
        if type(item) in _JSON_SCALARS and not (type(item) is int and abs(item) >= 2**63):
            values[name] = item
        elif name in ANSWER_FIELDS or not isinstance(item, _JSON_CONTAINERS):
            return None
    check_reward(values.get("reward"), server=reply.server)
    response: NeMoGymResponse = fields["response"]
    metrics = RecordMetrics(values, _tokens(response.usage), _is_cut_off(response))
    return ScoredRecord(reply.content(), metrics, fields)


def _tokens(usage: NeMoGymResponseUsage | None) -> tuple[int | None, ...]:
    if usage is None:
        return ()
    reasoning = usage.output_tokens_details.reasoning_tokens
    return usage.input_tokens, usage.output_tokens, reasoning, usage.total_tokens


def _is_cut_off(response: NeMoGymResponse) -> bool:
    """As `is_cut_off` of the response as JSON."""
    if response.incomplete_details is not None or response.status == "incomplete":
        return True
    extra = response.__pydantic_extra__
    return bool(extra) and extra.get("ended_by") == "max_steps"  # type: ignore[union-attr]


@lru_cache(maxsize=512)
def _is_record(kind: type) -> bool:
    """True for a model whose JSON has the same names and values, with a response as usual."""
    return has_plain_json(kind) and kind.model_fields.get("response", _NO_FIELD).annotation is NeMoGymResponse  # type: ignore[attr-defined]
