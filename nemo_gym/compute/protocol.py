"""What the pool and its processes send each other, as frames on sockets."""

import struct
from enum import IntEnum
from typing import NamedTuple
from zlib import crc32

FRAME = struct.Struct(">BQI")
"""The header of a frame: its kind, and the length and checksum of its payload. The checksum detects a frame that a
worker did not finish before it died."""

MAX_PAYLOAD_BYTES = 64 * 2**20
MAX_TEXT_CHARS = 5_000


class Kind(IntEnum):
    """The kind of a frame. FORK goes to the fork server with the worker's end of a connection; EXITED comes back."""

    FORK = 0
    TASK = 1
    STARTED = 2
    VALUE = 3
    RAISED = 4
    OUT_OF_MEMORY = 5
    FAILED = 6
    INTERPRETER_FAILED = 7
    EXITED = 8


class Module(NamedTuple):
    """A module by its name, and the server folder it is from, if any."""

    name: str
    folder: str | None = None


class ForkRequest(NamedTuple):
    """The modules to import before the fork, and the memory limit of the worker."""

    modules: tuple[Module, ...]
    memory_bytes: int


class Task(NamedTuple):
    """A function by its name, and its pickled arguments."""

    module: Module
    function: str
    arguments: bytes


def frame_bytes(kind: Kind, payload: bytes | str = b"") -> bytes:
    """A frame as it is sent. A payload that is too large becomes an error; a text is shortened."""
    data = payload.encode(errors="replace")[:MAX_TEXT_CHARS] if isinstance(payload, str) else payload
    if len(data) > MAX_PAYLOAD_BYTES:
        kind, data = Kind.FAILED, b"returned %d bytes; the limit is %d." % (len(data), MAX_PAYLOAD_BYTES)
    return FRAME.pack(kind, len(data), crc32(data)) + data


class WorkerLostError(Exception):
    """A worker was lost before it started its task, so another one can try."""


class WorkerDiedError(Exception):
    """A worker ended, or was stuck, while it was running its task."""


class TimeLimits(NamedTuple):
    """Limits on the CPU time and the wall-clock time of a task. Only the first is a property of the task itself."""

    cpu_s: float
    wall_s: float


class Frame(NamedTuple):
    kind: Kind
    payload: bytes
