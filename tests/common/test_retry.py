"""One policy decides what is retried, after which pause, and when to give up."""

import asyncio
import re
from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.common.deadline import fresh_deadline
from nemo_gym.common.retry import (
    MAX_RETRY_AFTER_S,
    RETRIED_STATUSES,
    backoff_s,
    is_retryable,
    is_unsent,
    parse_retry_after,
    pause_before_retry,
    retry,
    track_retries,
)
from nemo_gym.errors import ConnectError, OverloadedError, RolloutError, UpstreamError


@given(attempt=st.integers(1, 5000), chance=st.floats(0, 1), asked=st.none() | st.floats(0, 1e6))
def test_pauses_grow_up_to_a_limit_and_honour_what_the_server_asks(
    attempt: int, chance: float, asked: float | None
) -> None:
    pause = backoff_s(attempt, chance=chance, retry_after_s=asked)
    assert 0 < pause <= MAX_RETRY_AFTER_S
    assert pause >= min(asked or 0.0, MAX_RETRY_AFTER_S)
    assert backoff_s(attempt + 1, chance=chance) >= backoff_s(attempt, chance=chance)


@given(value=st.none() | st.text() | st.floats().map(str) | st.datetimes().map(str))
def test_whatever_a_server_asks_for_is_a_pause_or_nothing(value: str | None) -> None:
    asked = parse_retry_after(value)
    assert asked is None or not asked < 0


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *(("2.5", 2.5), ("-1", 0), ("", None), ("soon", None), ("Mon", None), (None, None)),
        *((formatdate(1000 + later, usegmt=True), max(0, later)) for later in (100, -100)),
    ],
)
def test_a_pause_is_given_in_seconds_or_by_the_clock(value: str | None, expected: float | None) -> None:
    assert parse_retry_after(value, now=1000) == expected


@pytest.mark.parametrize(
    ("error", "retryable", "unsent"),
    [
        *((UpstreamError("x", status, ""), True, False) for status in (0, *sorted(RETRIED_STATUSES))),
        *((UpstreamError("x", status, ""), False, False) for status in (200, 307, 400, 401, 404, 422, 501)),
        (UpstreamError("x", 0, "", cause="timeout"), False, False),
        (ConnectError("x", 0, ""), True, True),
        (OverloadedError("full"), False, True),
        (RolloutError("model", "no"), False, False),
        (ValueError("a mistake"), False, False),
    ],
)
def test_only_what_may_pass_is_retried(error: Exception, retryable: bool, unsent: bool) -> None:
    assert (is_retryable(error), is_unsent(error)) == (retryable, unsent)


def test_there_is_no_pause_after_the_last_attempt_nor_beyond_the_deadline() -> None:
    error = UpstreamError("x", 503, "", retry_after_s=20)
    assert pause_before_retry(error, 1, max_tries=2, retryable=is_retryable, left_s=21) == 20
    assert pause_before_retry(error, 2, max_tries=2, retryable=is_retryable, left_s=21) is None
    assert pause_before_retry(error, 1, max_tries=2, retryable=is_retryable, left_s=19) is None


async def test_attempts_are_repeated_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    errors = [UpstreamError("http://here", 503, "busy"), UpstreamError("http://here", 429, "slow down")]

    async def attempt() -> str:
        if errors:
            raise errors.pop(0)
        return "done"

    with track_retries() as stats:
        assert await retry(attempt, max_tries=3) == "done"
    assert stats.retries == 2
    assert re.search(r"http://here .*503: busy; .*1 of 3", caplog.text)


async def test_the_error_is_raised_when_nothing_helps() -> None:
    made = 0

    async def attempt() -> None:
        nonlocal made
        made += 1
        await asyncio.sleep(0)
        raise UpstreamError("x", 503, "", retry_after_s=30)

    with fresh_deadline(5), pytest.raises(UpstreamError):
        await retry(attempt, max_tries=9)
    assert made == 1
