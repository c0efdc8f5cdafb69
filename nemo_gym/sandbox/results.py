"""Replies of an agent, read as results. They come out of a sandbox: nothing in them is taken on trust."""

import struct
from dataclasses import dataclass

from nemo_gym.sandbox.contract import RUNTIME_FAILURE, ExecResult, LimitName, PythonResult
from nemo_gym.sandbox.inside import frames
from nemo_gym.sandbox.inside.frames import FrameError, unpack

_LIMIT_NAMES: dict[int, LimitName] = {
    frames.TIME: "time",
    frames.CPU: "cpu",
    frames.MEMORY: "memory",
    frames.PROCESSES: "processes",
    frames.DISK: "disk",
}


@dataclass(slots=True)
class JobOutcome:
    code: int
    reason: int
    is_truncated: bool
    cpu_s: float
    stdout: bytes
    stderr: bytes


def job_outcome(payload: bytes) -> JobOutcome:
    head, stdout, stderr = unpack(payload, 3)
    code, reason, truncated, cpu_us = _head(head)
    return JobOutcome(code, reason, bool(truncated), cpu_us / 1e6, stdout, stderr)


def _head(head: bytes) -> tuple[int, int, int, int]:
    try:
        code, reason, truncated, cpu_us = frames.OUTCOME.unpack(head)
    except struct.error as error:
        raise FrameError(str(error)) from error
    return code, reason, truncated, cpu_us


def exec_result(payload: bytes) -> ExecResult:
    parts = job_outcome(payload)
    is_late = parts.reason in (frames.TIME, frames.CANCELLED)
    code = RUNTIME_FAILURE if is_late else parts.code if parts.code >= 0 else 128 - parts.code
    return ExecResult(
        stdout=parts.stdout.decode(errors="replace"),
        stderr=parts.stderr.decode(errors="replace"),
        return_code=code,
        error_type="timeout" if is_late else None,
        limit=_LIMIT_NAMES.get(parts.reason),
        is_truncated=parts.is_truncated,
        cpu_s=parts.cpu_s,
    )


def python_result(payload: bytes) -> PythonResult:
    """The session's report. The process it comes from runs code of the model's and may have sent anything."""
    head, report = unpack(payload, 2)
    limit = _LIMIT_NAMES.get(_head(head)[1])
    try:
        texts = [field[1:].decode(errors="replace") if field else None for field in unpack(report, 5)]
    except FrameError:
        return lost_session(limit)
    stdout, stderr, result, error_text, error_type = texts
    return PythonResult(stdout or "", stderr or "", result, error_text, error_type, limit)


def lost_session(limit: LimitName | None = None) -> PythonResult:
    """The result of code whose process ended."""
    error = "The Python process ended." if limit is None else f"The {limit} limit was exceeded."
    return PythonResult("", "", None, error, "SessionLost", limit, is_lost=True)
