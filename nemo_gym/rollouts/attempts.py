"""One rollout: up to a few attempts, each of which ends as scored or as a failure with a cause."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

import orjson

from nemo_gym.base_resources_server import check_reward
from nemo_gym.client.server_client import ServerClient, ServerReply
from nemo_gym.common.logging import RateLimitedLog
from nemo_gym.common.retry import backoff_s
from nemo_gym.common.retry_stats import track_retries
from nemo_gym.errors import ConfigError, RolloutError
from nemo_gym.rollouts.config import RolloutCollectionConfig
from nemo_gym.rollouts.recording import recording_context
from nemo_gym.rollouts.store import WriteOutcome
from nemo_gym.rollouts.stragglers import DurationPercentiles, with_straggler_policy
from nemo_gym.rollouts.types import NoResult, Outcome, Row, Scored, raw_json_or_text, single_line_record

logger = logging.getLogger(__name__)
rate_limited_log = RateLimitedLog(logger)

Run = Callable[[Row], Awaitable[Outcome]]


def retrying_run(client: ServerClient, config: RolloutCollectionConfig, write: WriteOutcome) -> Run:
    """The function that makes a rollout of a row: it retries what is retryable, writes each failed attempt, and
    applies the straggler policy."""

    async def run(row: Row) -> Outcome:
        number = 1
        while True:
            outcome = await attempt(client, row, timeout_s=config.rollout_timeout_s, number=number)
            if isinstance(outcome, Scored) or number == config.max_attempts or not outcome.retryable:
                return outcome
            await write(replace(outcome, is_final=False))
            pause_s = backoff_s(number)
            failed = f"row {row.id.task_index} has no result ({outcome.cause}): {outcome.message[:300]}"
            rate_limited_log.warning(
                outcome.cause, "%s; attempt %d of %d, next in %.1f s", failed, number, config.max_attempts, pause_s
            )
            await asyncio.sleep(pause_s)
            number += 1

    if config.straggler_percentile is None:
        return run
    return with_straggler_policy(
        run, durations=DurationPercentiles(), percentile=config.straggler_percentile, action=config.straggler_action
    )


async def attempt(client: ServerClient, row: Row, *, timeout_s: float, number: int = 1) -> Outcome:
    """One attempt at a rollout. Every error is an outcome, so one row cannot end the others."""
    started_at, started = time.time(), time.monotonic()
    with track_retries() as retry_stats, recording_context(row.id, number) if client.tap else contextlib.nullcontext():
        try:
            reply = await run_agent(client, row.agent, row.body, timeout_s=timeout_s)
            result = parse_scored(reply)
            record, figures = single_line_record(reply.content(), result), numeric_fields(result)
        except RolloutError as error:
            failure = error
        except Exception as error:
            logger.exception("rollout of row %d failed", row.id.task_index)
            failure = RolloutError("internal", repr(error))
        else:
            seconds = round(time.monotonic() - started, 6)
            return Scored(row.id, record, figures, attempts=number, retries=retry_stats.retries, seconds=seconds)
    return NoResult(
        row.id,
        failure.cause,
        str(failure),
        failure.server,
        failure.code,
        attempt=number,
        started_at=started_at,
        seconds=time.monotonic() - started,
        row=raw_json_or_text(row.body),
        retryable=failure.retryable,
        response=failure.response,
    )


async def run_agent(client: ServerClient, agent: str, body: Any, *, timeout_s: float) -> ServerReply:
    """The reply of an agent to a row. An agent that does not exist is an error of the row that names it."""
    try:
        return await client.call(agent, "/run", body, answer=ServerReply, timeout_s=timeout_s, what="The rollout")
    except ConfigError as error:
        raise RolloutError("input", str(error), server=agent) from error


def parse_scored(reply: ServerReply) -> dict[str, Any]:
    """The reply of an agent or a verifier as an object with a finite reward; anything else raises RolloutError."""
    try:
        result = orjson.loads(reply.content())
    except (ValueError, TypeError) as error:
        raise RolloutError("internal", f"The reply is not JSON: {error}.", server=reply.server) from error
    if not isinstance(result, dict):
        raise RolloutError("internal", f"The reply is {result!r:.300}; expected an object.", server=reply.server)
    check_reward(result.get("reward"), server=reply.server)
    return result


def numeric_fields(record: Mapping[str, Any]) -> dict[str, Any]:
    """The small part of a record that metrics need, so that the rest is neither kept nor decoded twice."""
    small = {name: value for name, value in record.items() if not isinstance(value, dict | list)}
    response = record.get("response")
    return {**small, "response": {"usage": response.get("usage")} if isinstance(response, dict) else None}
