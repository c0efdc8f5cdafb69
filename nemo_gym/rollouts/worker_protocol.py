"""The protocol between a collector and a worker: frames over one TCP connection, many rollouts at a time.

A frame is two lengths, a JSON list and a body of bytes. The collector sends a hello, then rows; the worker answers
the hello when its servers are ready, then sends an outcome for each row, in any order. Frames sent in one turn of the
event loop leave in one write, if they are small. There is no connection per rollout, so a worker's descriptors are for
its model."""

import asyncio
import contextlib
import os
import struct
from collections.abc import Callable, Mapping
from enum import IntEnum
from functools import partial
from typing import Annotated, Any

import msgspec
import orjson

from nemo_gym.common.forks import close_in_forks
from nemo_gym.common.rewards import check_reward
from nemo_gym.errors import Cause, GymError, RolloutError
from nemo_gym.llm_api.json_codec import encode
from nemo_gym.rollouts.call_log import LogRequest, ModelGate
from nemo_gym.rollouts.types import Outcome, Row, is_masked

VERSION = 8
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
    OUTCOME = 5
    """Worker: number, retries, throttled, seconds, values of the metrics, tokens, cut off, seconds of its steps, and
    of an attempt without a result the fields of its error. The body is the record."""
    PING = 7
    PONG = 8
    DRAINING = 9
    """Worker: it is about to stop, so send no more rows. Collector: the rows before this frame were the last."""
    STAGES = 10
    """Collector: which stage are your rollouts in? Worker: the stages of the oldest, by number."""
    CALL = 11
    """Worker: number. The body is a line for the call log."""
    PAUSE = 12
    """Collector: true to hold new model calls of its rollouts, false to go on. Worker: the same, when it is done."""
    VERSION = 13
    """Collector: the policy version of the model calls of its rollouts from now on."""


class ProtocolError(GymError):
    """The peer sent an invalid frame."""


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
        """The largest frame that is accepted. It may be raised once the peer is known."""
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
        except (ProtocolError, RecursionError) as error:  # which the text of an error about deep JSON may raise, too
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
        with contextlib.suppress(OSError):  # it is full, or the peer is gone: the transport will know
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


def frame(head: list[Any], body: bytes = b"") -> bytes:
    """A whole frame, for a socket."""
    encoded = _encoded(head)
    return LENGTHS.pack(len(encoded), len(body)) + encoded + body


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


def row_frame(number: int, row: Row, log: LogRequest | None) -> tuple[list[Any], bytes]:
    """The frame that asks for an attempt. `number` names the request on its connection."""
    place = (row.task_index, row.repeat_index, row.row_hash)
    head = [Kind.ROW, number, row.agent, *place, row.timeout_s, row.attempt]
    if log is None:
        return head, row.body
    return [*head, len(row.body), log.attempt_id, log.mode, log.models, log.models_hash], row.body + log.stored


def read_row(
    head: list[Any], body: bytes, write_call: Callable[[int, bytes], None], gate: ModelGate | None = None
) -> tuple[int, Row, LogRequest | None]:
    """The number and row of a request. Its calls are logged with `write_call`, which gets the number, and those of
    models wait for the gate."""
    if tuple(map(type, head)) not in (_ROW_TYPES, _LOGGED_ROW_TYPES):
        raise ProtocolError(f"the row {head!r:.200}")
    number, agent, task, repeat, row_hash, timeout_s, attempt, *logging = head[1:]
    log = None
    if logging:
        size, attempt_id, mode, models, models_hash = logging
        log = LogRequest(attempt_id, mode, models, models_hash, body[size:], partial(write_call, number), gate)
        body = body[:size]
    return number, Row(task, repeat, row_hash, agent, body, timeout_s, attempt), log


_ROW_TYPES = (int, int, str, int, int, str, float, int)
_LOGGED_ROW_TYPES = (*_ROW_TYPES, int, str, str, list, str)


def outcome_frame(number: int, outcome: Outcome) -> tuple[list[Any], bytes]:
    """The frame with the outcome of a request."""
    counts = (outcome.retries, outcome.throttled, outcome.seconds)
    metrics = (outcome.values, outcome.tokens, outcome.is_cut_off, outcome.step_seconds)
    return [Kind.OUTCOME, number, *counts, *metrics, _error_fields(outcome)], outcome.record


def _error_fields(outcome: Outcome) -> dict[str, Any] | None:
    error = outcome.error
    if error is None:
        return None
    fields = {name: getattr(error, name) for name in ("cause", "server", "code", "retryable", "response", "status")}
    return {**fields, "message": str(error), "started_at": outcome.started_at}


_Count = Annotated[int, msgspec.Meta(ge=0)]
TOKEN_COUNTS = 4
"""Number of token counts: input, output, reasoning and total."""


class _Error(msgspec.Struct, forbid_unknown_fields=True):
    cause: Cause
    message: str
    server: str | None
    code: str | None
    started_at: float
    retryable: bool
    response: Any
    status: int


class _Head(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """The list of a frame with an outcome, to check it by."""

    kind: int
    number: int
    retries: _Count
    throttled: _Count
    seconds: Annotated[float, msgspec.Meta(ge=0)]
    values: dict[str, Any]
    tokens: Annotated[list[Any], msgspec.Meta(max_length=TOKEN_COUNTS)]
    is_cut_off: bool
    step_seconds: list[dict[str, float]]
    error: _Error | None


def read_outcome(head: list[Any], body: bytes, row: Row) -> Outcome:
    """The outcome in a frame. Raises ProtocolError if it is not valid."""
    try:
        found = msgspec.convert(head, _Head)
        if len(found.tokens) not in (0, TOKEN_COUNTS):
            raise ProtocolError(f"{len(found.tokens)} counts of tokens; expected none or {TOKEN_COUNTS}")
        if found.error is None:
            _check_record(body, found.values)
        elif body:
            raise ProtocolError("a record beside an error")
    except (ValueError, RecursionError, RolloutError, ProtocolError) as error:
        raise ProtocolError(f"an outcome that is not valid: {error}") from error
    outcome = Outcome(row, body, seconds=found.seconds, retries=found.retries, throttled=found.throttled)
    if found.error is None:
        outcome.values, outcome.tokens, outcome.is_cut_off = found.values, found.tokens, found.is_cut_off
        outcome.step_seconds = found.step_seconds
    else:
        outcome.error, outcome.started_at = _read_error(found.error), found.error.started_at
    return outcome


def _read_error(sent: _Error) -> RolloutError:
    error = RolloutError(
        sent.cause, sent.message, server=sent.server, retryable=sent.retryable, code=sent.code, status=sent.status
    )
    error.response = sent.response
    return error


class _Reward(msgspec.Struct):
    reward: float | bool


_reward_in = msgspec.json.Decoder(_Reward).decode
"""Reads over all other fields, which takes a quarter of the time of decoding them."""


def _check_record(record: bytes, values: Mapping[str, Any]) -> None:
    """Raise unless the record is a JSON object on one line with a finite reward: that of its values, if it is not
    masked."""
    found = _reward_in(record).reward
    record.decode()  # which the decoder does not check in fields that it reads over
    if record[:1] != b"{" or record[-1:] != b"}" or b"\n" in record or b"\r" in record:
        raise ProtocolError("a record that is not an object on one line")
    check_reward(found)
    if not is_masked(values) and found != values.get("reward"):
        raise ProtocolError(f"the reward {values.get('reward')!r:.100} beside a record with {found!r}")
