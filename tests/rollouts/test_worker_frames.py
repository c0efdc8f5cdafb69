"""Whatever a worker sends, each rollout that it was asked for has exactly one outcome, and none that is not valid."""

import asyncio
import math
from functools import partial
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from nemo_gym.client.call_log import Call
from nemo_gym.client.head import WorkerAddress
from nemo_gym.errors import RolloutError
from nemo_gym.rollouts.call_log import LogRequest
from nemo_gym.rollouts.dispatch import WorkerPool
from nemo_gym.rollouts.types import Outcome, Row
from nemo_gym.rollouts.worker_protocol import (
    LENGTHS,
    MAX_FRAME_BYTES,
    VERSION,
    Kind,
    ProtocolError,
    outcome_frame,
    read_outcome,
    read_row,
    row_frame,
)
from tests.polling import PATIENCE_S
from tests.raw_server import raw_server

NUMBER = 0
LONG_S = 3600.0
ROW = Row(3, 0, "0" * 16, "agent", b"{}", LONG_S)
SCORED = Outcome(
    ROW, b'{"reward":0.5,"said":"hello"}', values={"reward": 0.5, "said": "hello"}, tokens=[1, 2, 3, 6], seconds=0.5
)
FAILED = Outcome.failed(ROW, RolloutError("tool", "it broke", server="weather"), seconds=1.5)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda item: st.lists(item, max_size=3) | st.dictionaries(st.text(max_size=5), item, max_size=3),
    max_leaves=5,
)


def frame(head: Any, body: bytes = b"") -> bytes:
    encoded = orjson.dumps(head)
    return LENGTHS.pack(len(encoded), len(body)) + encoded + body


def read(head: list[Any], body: bytes) -> Outcome:
    return read_outcome(orjson.loads(orjson.dumps(head)), body, ROW)


@pytest.mark.parametrize("outcome", [SCORED, FAILED])
def test_an_outcome_that_was_sent_is_read_as_it_was(outcome: Outcome) -> None:
    found = read(*outcome_frame(NUMBER, outcome))
    assert outcome_frame(NUMBER, found) == outcome_frame(NUMBER, outcome)
    assert found.line() == outcome.line()


SCORED_HEAD = outcome_frame(NUMBER, SCORED)[0]
BAD_RECORDS = [
    b"",
    b"{}",
    b"not JSON",
    b'"reward"',
    b"[0.5]",
    b'{"reward":0.5',
    b'{"reward":0.5}{"reward":0.5}',
    b'{"reward":0.5,\n"said":"hello"}',
    b'{"reward":0.5}\n',
    b'{"reward":0.5}\r',
    b' {"reward":0.5}',
    b'{"reward":0.5} ',
    b'{"reward":0.25}',
    b'{"reward":NaN}',
    b'{"reward":1e999}',
    b'{"reward":"0.5"}',
    b'{"reward":null}',
    b'{"reward":0.5,"said":"\xff"}',
    b'{"reward":0.5,"said":"\n"}',
    b'{"reward":0.5,"said":%b1%b}' % (b"[" * 200_000, b"]" * 200_000),
]


@pytest.mark.parametrize("record", BAD_RECORDS)
def test_a_record_that_is_not_one_line_of_json_with_its_reward_is_refused(record: bytes) -> None:
    with pytest.raises(ProtocolError):
        read(SCORED_HEAD, record)


@pytest.mark.parametrize("tokens", [[1], [1] * 5])
def test_an_outcome_with_another_number_of_token_counts_is_refused(tokens: list[int]) -> None:
    head, record = outcome_frame(NUMBER, replace(SCORED, tokens=tokens))
    with pytest.raises(ProtocolError):
        read(head, record)


@given(st.sampled_from([SCORED, FAILED]), st.integers(0, 8), JSON, st.sampled_from(["replace", "insert", "delete"]))
@settings(deadline=None, max_examples=500)
def test_a_changed_head_is_refused_or_still_an_outcome(outcome: Outcome, index: int, item: Any, change: str) -> None:
    head, body = outcome_frame(NUMBER, outcome)
    head = [*head]
    place = min(index, len(head) - 1)
    head[place : place + (change != "insert")] = [] if change == "delete" else [item]
    if head[:1] != [Kind.OUTCOME]:
        return  # no outcome
    try:
        found = read(head, body)
    except ProtocolError:
        return
    check(found)


@given(st.binary(max_size=40), st.integers(0, 30), st.integers(0, 30))
@settings(deadline=None, max_examples=500)
def test_a_changed_record_is_refused_or_still_a_record(noise: bytes, start: int, end: int) -> None:
    try:
        found = read(SCORED_HEAD, SCORED.record[:start] + noise + SCORED.record[end:])
    except ProtocolError:
        return
    check(found)


def check(outcome: Outcome) -> None:
    """An outcome can be written, and read again."""
    line = outcome.line()
    written = orjson.loads(line)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    if outcome.error is None:
        assert math.isfinite(written["reward"])
        assert written["reward"] == outcome.values["reward"]


async def outcome_from_worker_that_sends(
    sent: bytes, *, times: int = 1, log: LogRequest | None = None
) -> list[Outcome]:
    """The outcomes of rows that are all answered with these bytes, after which the worker hangs up."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(frame([Kind.HELLO, VERSION, 0, 1, 100, ["agent"]]))
        received = b""
        while received.count(b'"agent"') < times:
            received += await reader.readexactly(1)
        writer.write(sent)
        await writer.drain()
        writer.close()
        await reader.read()

    async with raw_server(serve) as port:
        pool = WorkerPool(partial(asyncio.sleep, 0, [WorkerAddress(0, "", f"127.0.0.1:{port}", ("agent",))]))
        async with asyncio.timeout(PATIENCE_S), pool.connected():
            asked = (pool.attempt(ROW, log) for _ in range(times))
            return await asyncio.gather(*asked)


ERROR = outcome_frame(NUMBER, FAILED)[0][-1]
GOOD = frame(*outcome_frame(NUMBER, SCORED))
SENT: dict[str, bytes] = {
    "nothing": b"",
    "a body that is not JSON": frame(SCORED_HEAD, b"no JSON"),
    "a body with a line break": frame(SCORED_HEAD, b'{"reward":0.5,\n"said":"hello"}'),
    "a short head": frame([Kind.OUTCOME, NUMBER]),
    "no number": frame([Kind.OUTCOME]),
    "a number that is a list": frame([Kind.OUTCOME, [NUMBER], *SCORED_HEAD[2:]], SCORED.record),
    "an unknown number": frame(outcome_frame(NUMBER + 1, SCORED)[0], SCORED.record),
    "wrong types": frame([Kind.OUTCOME, NUMBER, "0", None, {}, [], 1, "no", None], SCORED.record),
    "an unknown cause": frame([*SCORED_HEAD[:-1], {**ERROR, "cause": "magic"}]),
    "an unknown field": frame([*SCORED_HEAD[:-1], {**ERROR, "id": 7}]),
    "a failure without fields": frame([*SCORED_HEAD[:-1], {}]),
    "a failure without a record or an error": frame(SCORED_HEAD),
    "a failure with a record": frame([*SCORED_HEAD[:-1], ERROR], SCORED.record),
    "an unknown kind": frame([99, NUMBER]),
    "a hello without agents": frame([Kind.HELLO, VERSION]),
    "a hello with wrong agents": frame([Kind.HELLO, VERSION, 0, 1, 5, [["agent"]]]),
    "stages that are none": frame([Kind.STAGES, 5]),
    "no list": frame({"kind": 5}),
    "no JSON": LENGTHS.pack(4, 0) + b"nope",
    "too much": LENGTHS.pack(MAX_FRAME_BYTES, 1),
    "half a frame": GOOD[:-5],
}


@pytest.mark.parametrize("sent", SENT.values(), ids=SENT)
async def test_what_is_no_valid_outcome_is_a_lost_worker(sent: bytes) -> None:
    (outcome,) = await outcome_from_worker_that_sends(sent)
    assert outcome.error is not None
    assert (outcome.error.code, outcome.error.cause, outcome.error.retryable) == ("worker_lost", "environment", True)


CALL = Call(
    name="env/add 0 1", attempt=1, attempt_id="a", reply="3", task_index=3, repeat_index=0, row_hash=ROW.row_hash
)


def log_to(lines: list[bytes]) -> LogRequest:
    return LogRequest("a", "record", ["policy_model"], "hash", b"stored\n", lines.append)


async def test_a_call_is_logged_before_the_outcome_of_its_attempt() -> None:
    lines: list[bytes] = []
    sent = frame([Kind.CALL, NUMBER], CALL.line()) + frame([Kind.CALL, 7], CALL.line()) + GOOD
    (outcome,) = await outcome_from_worker_that_sends(sent, log=log_to(lines))
    assert outcome.error is None
    assert lines == [CALL.line()]


@pytest.mark.parametrize(
    "line",
    [
        *(b"", b"no JSON\n", CALL.line()[:-1], CALL.line() * 2, CALL.line().replace(b"{", b"{\n")),
        *(replace(CALL, task_index=4).line(), replace(CALL, attempt_id="b").line()),
    ],
)
async def test_what_is_no_call_of_the_attempt_is_a_lost_worker(line: bytes) -> None:
    lines: list[bytes] = []
    (outcome,) = await outcome_from_worker_that_sends(frame([Kind.CALL, NUMBER], line) + GOOD, log=log_to(lines))
    assert outcome.error is not None
    assert (outcome.error.code, lines) == ("worker_lost", [])


def test_a_row_with_stored_calls_is_read_as_it_was_sent() -> None:
    sent: list[tuple[int, bytes]] = []
    row = replace(ROW, attempt=2)
    head, body = row_frame(NUMBER, row, log_to([]))
    number, found, log = read_row(
        orjson.loads(orjson.dumps(head)), body, lambda number, line: sent.append((number, line))
    )
    assert log is not None
    log.write(b"line")
    assert sent == [(NUMBER, b"line")]
    assert (number, found, log[:5]) == (NUMBER, row, log_to([])[:5])
    with pytest.raises(ProtocolError):
        read_row(head[:-1], body, lambda number, line: None)


async def test_an_outcome_that_is_not_valid_costs_no_other_rollout_and_a_second_one_does_not_count() -> None:
    other = frame(outcome_frame(NUMBER + 1, SCORED)[0], SCORED.record)
    bad = frame(SCORED_HEAD, b"no JSON")
    lost, scored = await outcome_from_worker_that_sends(bad + GOOD + other + other, times=2)
    assert lost.error is not None
    assert scored.error is None
    assert orjson.loads(scored.record)["reward"] == 0.5


@given(
    st.lists(st.sampled_from([GOOD, *SENT.values()]) | st.binary(max_size=30), max_size=4).map(b"".join),
    st.integers(0, 200),
)
@settings(deadline=None, max_examples=100)
def test_every_stream_of_bytes_ends_each_rollout_once(sent: bytes, cut: int) -> None:
    (outcome,) = asyncio.run(outcome_from_worker_that_sends(sent[: len(sent) - cut] if cut < 50 else sent))
    check(outcome)
    assert outcome.error is None or outcome.error.code in ("worker_lost", None)
