"""The protocol between the host and the agent in a sandbox: framed requests and replies, each a list of byte fields.

What comes out of a sandbox is hostile, so the format has nothing to execute: lengths and bytes, checked on reading."""

import os
import struct

HEADER = struct.Struct(">IBI")
"""Request id, kind, length of the payload."""
OVERHEAD_BYTES = 8192
"""The most that a reply has besides what was asked for: lengths, codes, the reason of a refusal."""
BYTES_PER_CHARACTER = 6
"""At most, in a report of a Python session: a lone surrogate is written as an escape."""
MAX_TEXT = 200_000
"""Characters of a value's or an error's text that a session reports."""
_COUNT = struct.Struct(">I")

READY, EXEC, PROGRAM, PYTHON, WRITE, READ, CANCEL = range(7)
RESULT, FAILED = 16, 17

OPTIONS = struct.Struct(">III")
"""Of a job: wall time in ms, CPU time in ms, bytes of output kept per stream."""
OUTCOME = struct.Struct(">iBBQ")
"""Of a job: exit code (negative: signal), which limit ended it, whether output was cut, CPU time in µs."""

NO_LIMIT, TIME, CPU, MEMORY, PROCESSES, DISK, CANCELLED = range(7)
"""The limit that ended a job."""


class FrameError(Exception):
    """Bytes that are not a frame."""


def pack(*fields: bytes) -> bytes:
    lengths = [len(field) for field in fields]
    return struct.pack(f">{len(fields) + 1}I", len(fields), *lengths) + b"".join(fields)


def max_report_bytes(output: int) -> int:
    """The most that a session reports of code that may print so many characters to each of two streams."""
    return BYTES_PER_CHARACTER * 2 * (output + MAX_TEXT)


def unpack(payload: bytes, expected: int | None = None) -> list[bytes]:
    """The fields of a payload; with `expected`, which what comes out of a sandbox is read with, exactly so many."""
    try:
        (count,) = _COUNT.unpack_from(payload)
        if count * 4 > len(payload) or expected not in (None, count):
            raise FrameError(f"{count} fields in {len(payload)} bytes")
        lengths = struct.unpack_from(f">{count}I", payload, 4)
    except struct.error as error:
        raise FrameError(str(error)) from error
    fields, at = [], 4 + 4 * count
    for length in lengths:
        fields.append(payload[at : at + length])
        at += length
    if at != len(payload):
        raise FrameError(f"fields of {at} bytes in a payload of {len(payload)}")
    return fields


def frame(request: int, kind: int, payload: bytes) -> bytes:
    return HEADER.pack(request, kind, len(payload)) + payload


def read_exactly(fd: int, count: int) -> bytes:
    """So many bytes, or EOFError."""
    parts, missing = [], count
    while missing:
        part = os.read(fd, min(missing, 2**20))
        if not part:
            raise EOFError
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def write_all(fd: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]
