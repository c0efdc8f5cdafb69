"""The protocol between the host and the agent in a sandbox: framed requests and replies, each a list of byte fields.

Output of a sandbox is hostile, so the format has only lengths and bytes, which are checked when read."""

import os
import struct

HEADER = struct.Struct(">IBI")
"""Request id, kind, length of the payload."""
OVERHEAD_BYTES = 8192
"""Maximum size of a reply without its content: lengths, codes, the reason of a refusal."""
BYTES_PER_CHARACTER = 6
"""Maximum bytes per character in a report of a Python session: a lone surrogate is escaped."""
MAX_TEXT = 200_000
"""Maximum characters of a value or an error that a session reports."""
_COUNT = struct.Struct(">I")

READY, EXEC, PROGRAM, PYTHON, WRITE, READ, CANCEL = range(7)
RESULT, FAILED = 16, 17

OPTIONS = struct.Struct(">III")
"""Limits of a job: wall time in ms, CPU time in ms, bytes of output kept per stream."""
OUTCOME = struct.Struct(">iBBQ")
"""Outcome of a job: exit code (negative: signal), the limit that ended it, truncated output, CPU time in µs."""

NO_LIMIT, TIME, CPU, MEMORY, PROCESSES, DISK, CANCELLED = range(7)
"""The limit that ended a job."""


class FrameError(Exception):
    """Bytes that are not a frame."""


def pack(*fields: bytes) -> bytes:
    lengths = [len(field) for field in fields]
    return struct.pack(f">{len(fields) + 1}I", len(fields), *lengths) + b"".join(fields)


def max_report_bytes(output: int) -> int:
    """Return the maximum size of a session's report, for this limit of characters on each of two streams."""
    return BYTES_PER_CHARACTER * 2 * (output + MAX_TEXT)


def unpack(payload: bytes, expected: int | None = None) -> list[bytes]:
    """Return the fields of a payload. Raises FrameError if their number is not `expected`."""
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
    """Read exactly `count` bytes, or raise EOFError."""
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
