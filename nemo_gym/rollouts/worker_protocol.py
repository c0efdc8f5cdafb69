"""The protocol between a collector and a worker: frames over one TCP connection, many rollouts at a time.

A frame is two lengths, a JSON list and a body of bytes. The collector sends a hello, then rows; the worker answers
the hello when its servers are ready, then sends an outcome for each row, in any order. Frames sent in one turn of the
event loop leave in one write, if they are small. There is no connection per rollout, so a worker's descriptors are for
its model."""

import asyncio
import contextlib
import os
import struct
from collections.abc import Callable
from enum import IntEnum
from functools import partial
from typing import Annotated, Any

import msgspec
import orjson

from nemo_gym.base_resources_server import check_reward
from nemo_gym.common.forks import close_in_forks
from nemo_gym.errors import Cause, GymError, RolloutError
from nemo_gym.llm_api.json_codec import encode
from nemo_gym.rollouts.call_log import LogRequest
from nemo_gym.rollouts.types import NoResult, Outcome, RecordMetrics, Row, RowId, Scored, raw_json_or_text

VERSION = 6
LENGTHS = struct.Struct("!II")
MAX_HELLO_BYTES = 4096
MAX_FRAME_BYTES = 2**29
"""A record with the token ids and log-probs of a long rollout has tens of megabytes."""
MAX_TURN_BYTES = 2**16
"""Frames of this size together are sent at once, and after reading so much others have their turn: when thousands of
rollouts end in the same moment, their outcomes are handled as they come, not all held in memory first."""


class Kind(IntEnum):
    """The first item of every frame's list."""

    HELLO = 1
    """Collector: version, token. Worker: version, index, process id, rollouts it takes at once, servers."""
    REFUSED = 2
    """Worker: why the hello was not accepted."""
    ROW = 3
    """Collector: number, agent, task index, repeat index, row hash, timeout, attempt, and if its calls are to be
    logged, the length of the row and a LogRequest. The body is the row, then the lines of stored calls."""
    CANCEL = 4
    """Collector: the number of a row to cancel."""
    SCORED = 5
    """Worker: number, retries, throttled, seconds, values of the metrics, tokens, cut off. The body is the record."""
    NO_RESULT = 6
    """Worker: number, fields of the failure."""
    PING = 7
    PONG = 8
    DRAINING = 9
    """Worker: it is about to stop, so send no more rows. Collector: the rows before this frame were the last."""
    STAGES = 10
    """Collector: which stage are your rollouts in? Worker: the stages of the oldest, by number."""
    CALL = 11
    """Worker: number. The body is a line for the call log."""


class ProtocolError(GymError):
    """The other side sent an invalid frame."""


class FrameConnection(asyncio.Protocol):
    """Frames in both directions."""

    def __init__(
        self,
        on_frame: "Callable[[FrameConnection, list[Any], bytes], None]",
        on_lost: "Callable[[FrameConnection, Exception | None], None]",
        *,
        max_bytes: int = MAX_FRAME_BYTES,
    ) -> None:
        self._on_frame, self._on_lost = on_frame, on_lost
        self.max_bytes = max_bytes
        """The largest frame that is accepted. It may be raised once the other side is known."""
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        close_in_forks(transport.get_extra_info("socket").fileno())

    def data_received(self, data: bytes) -> None:
        received: bytes | bytearray = data  # usually frames are whole
        start = 0
        if self._received:
            self._received += data
            received = self._received
        try:
            while len(received) - start >= LENGTHS.size:
                head_bytes, body_bytes = LENGTHS.unpack_from(received, start)
                if head_bytes + body_bytes > self.max_bytes:
                    raise ProtocolError(f"a frame of {head_bytes + body_bytes} bytes; the limit is {self.max_bytes}")
                head, body = start + LENGTHS.size, start + LENGTHS.size + head_bytes
                if len(received) < body + body_bytes:
                    break
                start = body + body_bytes
                self._on_frame(self, _list(received[head:body]), bytes(received[body:start]))
        except ProtocolError as error:
            self._close(error)
        if received is data:
            self._received += data[start:]
        elif start:
            del self._received[:start]
        if len(data) >= MAX_TURN_BYTES and self._transport is not None:
            self._transport.pause_reading()
            self._loop.call_soon(self._resume_reading)

    def _resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        if self._transport is not None:
            self._transport = None
            self._on_lost(self, error)

    def send(self, head: list[Any], body: bytes = b"") -> None:
        """Send a frame, with all others of this turn of the event loop."""
        if not self._unsent:
            self._loop.call_soon(self._flush)
        encoded = _encoded(head)
        self._unsent += (LENGTHS.pack(len(encoded), len(body)), encoded, body)
        self._unsent_bytes += len(encoded) + len(body)
        if self._unsent_bytes >= MAX_TURN_BYTES:
            self._flush()

    def send_queued(self) -> None:
        """Send all queued frames now. A transport sends at the end of a turn, and code may block this one."""
        transport = self._transport
        if transport is None or transport.get_write_buffer_size() or transport.is_closing():
            return
        unsent, sent = b"".join(self._unsent), 0
        with contextlib.suppress(OSError):  # it is full, or the other side is gone: the transport will know
            sent = os.write(transport.get_extra_info("socket").fileno(), unsent)
        self._unsent, self._unsent_bytes = [], 0
        if sent < len(unsent):
            transport.write(unsent[sent:])

    def close(self) -> None:
        """Send all queued frames, then close."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def _flush(self) -> None:
        unsent, self._unsent, self._unsent_bytes = self._unsent, [], 0
        if unsent and self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(unsent))

    def _close(self, error: Exception) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()
            self._on_lost(self, error)


def _encoded(head: list[Any]) -> bytes:
    try:
        return orjson.dumps(head)
    except TypeError:
        return encode(head)  # a number beyond 64 bits, such as an endpoint may report


def _list(encoded: bytes | bytearray) -> list[Any]:
    try:
        found = orjson.loads(encoded)
    except ValueError as error:
        raise ProtocolError(f"a frame whose head is not JSON: {error}") from error
    if not isinstance(found, list) or not found:
        raise ProtocolError(f"a frame whose head is {found!r:.100}; expected a list")
    return found


class RowRequest(msgspec.Struct, frozen=True):
    """One attempt at a rollout, as a collector asks for it."""

    number: int
    """Names the request on its connection."""
    row: Row
    timeout_s: float
    attempt: int
    log: LogRequest | None = None


def row_frame(request: RowRequest) -> tuple[list[Any], bytes]:
    """The frame that asks for an attempt."""
    row, log = request.row, request.log
    place = (row.id.task_index, row.id.repeat_index, row.id.row_hash)
    head = [Kind.ROW, request.number, row.agent, *place, request.timeout_s, request.attempt]
    if log is None:
        return head, row.body
    return [*head, len(row.body), log.attempt_id, log.mode, log.models, log.models_hash], row.body + log.stored


def read_row(head: list[Any], body: bytes, write_call: Callable[[int, bytes], None]) -> RowRequest:
    """The request in a frame. Its calls are logged with `write_call`, which gets its number."""
    if tuple(map(type, head)) not in (_ROW_TYPES, _LOGGED_ROW_TYPES):
        raise ProtocolError(f"the row {head!r:.200}")
    number, agent, task, repeat, row_hash, timeout_s, attempt, *logging = head[1:]
    log = None
    if logging:
        size, attempt_id, mode, models, models_hash = logging
        log = LogRequest(attempt_id, mode, models, models_hash, body[size:], partial(write_call, number))
        body = body[:size]
    return RowRequest(number, Row(RowId(task, repeat, row_hash), agent, body), timeout_s, attempt, log)


_ROW_TYPES = (int, int, str, int, int, str, float, int)
_LOGGED_ROW_TYPES = (*_ROW_TYPES, int, str, str, list, str)


def outcome_frame(number: int, outcome: Outcome) -> tuple[list[Any], bytes]:
    """The frame with the outcome of a request."""
    if isinstance(outcome, Scored):
        counts = (outcome.retries, outcome.throttled)
        metrics = outcome.metrics
        return (
            [Kind.SCORED, number, *counts, outcome.seconds, metrics.values, metrics.tokens, metrics.is_cut_off],
            outcome.record,
        )
    return [Kind.NO_RESULT, number, {name: getattr(outcome, name) for name in _Failure.__struct_fields__}], b""


_Count = Annotated[int, msgspec.Meta(ge=0)]


class _ScoredHead(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    kind: int
    number: int
    retries: _Count
    throttled: _Count
    seconds: Annotated[float, msgspec.Meta(ge=0)]
    values: dict[str, Any]
    tokens: list[Any]
    is_cut_off: bool


class _Failure(msgspec.Struct, forbid_unknown_fields=True):
    """The fields of a NoResult that the collector does not know."""

    cause: Cause
    message: str
    server: str | None
    code: str | None
    started_at: float
    seconds: float
    retryable: bool
    response: Any
    status: int | None
    throttled: _Count


def read_outcome(head: list[Any], body: bytes, request: RowRequest) -> Outcome:
    """The outcome in a frame. Raises ProtocolError if it is not valid: the worker may be out of its mind."""
    try:
        if head[0] == Kind.NO_RESULT and len(head) == 3 and not body:
            failure = msgspec.convert(head[2], _Failure)
            return failed_attempt(request, **{name: getattr(failure, name) for name in _Failure.__struct_fields__})
        scored = msgspec.convert(head, _ScoredHead)
        _check_record(body, scored.values.get("reward"))
    except (ValueError, RolloutError, ProtocolError) as error:
        raise ProtocolError(f"an outcome that is not valid: {error}") from error
    metrics = RecordMetrics(scored.values, scored.tokens, scored.is_cut_off)
    return Scored(request.row.id, body, metrics, request.attempt, scored.retries, scored.throttled, scored.seconds)


class _Reward(msgspec.Struct):
    reward: float | bool


_reward_in = msgspec.json.Decoder(_Reward).decode
"""Reads over all other fields, which takes a quarter of the time of decoding them."""


def _check_record(record: bytes, reward: Any) -> None:
    """Raise unless the record is a JSON object on one line with this finite reward."""
    found = _reward_in(record).reward
    record.decode()  # which the decoder does not check in fields that it reads over
    if record[:1] != b"{" or record[-1:] != b"}" or b"\n" in record or b"\r" in record:
        raise ProtocolError("a record that is not an object on one line")
    check_reward(found)
    if found != reward:
        raise ProtocolError(f"the reward {reward!r:.100} beside a record with {found!r}")


def failed_attempt(request: RowRequest, **fields: Any) -> NoResult:
    """A failure of an attempt that this process did not make itself."""
    return NoResult(request.row.id, attempt=request.attempt, row=raw_json_or_text(request.row.body), **fields)
