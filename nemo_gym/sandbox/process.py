"""One sandbox on this machine: the process that confines it, and requests to the agent inside."""

import asyncio
import contextlib
import itertools
import logging
import os
import shutil
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from nemo_gym.sandbox.contract import (
    RUNTIME_FAILURE,
    ExecResult,
    LimitName,
    Limits,
    PythonResult,
    SandboxCreateError,
    SandboxError,
)
from nemo_gym.sandbox.inside import frames
from nemo_gym.sandbox.inside.frames import OVERHEAD_BYTES, FrameError, frame, max_report_bytes, pack, unpack
from nemo_gym.sandbox.launcher import HostProcess, Launch

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


T = TypeVar("T")

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 60.0
REPLY_GRACE_S = 20.0
"""How long after an action's own limit the agent may still be silent before the sandbox is given up."""
REMOVE_ATTEMPTS = 100
"""Each opens at least one level of folders that were made unreadable."""
CHUNK_BYTES = 4 * 2**20
MAX_DOWNLOAD_BYTES = 128 * 2**20


class SandboxGoneError(SandboxError):
    """The sandbox ended, stopped answering, or sent what no agent sends. It is closed."""


class SandboxRefusedError(SandboxError):
    """The agent could not do what it was asked for: nothing was run. The sandbox goes on."""


class _Waiting(NamedTuple):
    """A request that the agent has not replied to. One that was given up stays here until then."""

    reply: "asyncio.Future[tuple[int, bytes]]"
    max_bytes: int
    """The most that its reply can have."""


class SandboxProcess:
    """A running sandbox. All methods may be called at the same time, except that a Python session takes turns."""

    def __init__(
        self,
        launch: Launch,
        limits: Limits,
        env: Mapping[str, str],
        *,
        workdir_name: str | None = None,
        ended: "Callable[[SandboxProcess], None]" = lambda _: None,
    ) -> None:
        """`workdir_name` is the path that callers use for the work folder, where that cannot be its real path."""
        self.limits, self.env, self.workdir = limits, dict(env), str(launch.settings["workdir"])
        self._launch, self._workdir_name, self._ended = launch, workdir_name, ended
        self._requests = itertools.count(1)
        self._waiting: dict[int, _Waiting] = {}
        self._turn = asyncio.Lock()
        self._process: HostProcess | None = None
        self._transport: asyncio.WriteTransport | None = None
        self._closing: asyncio.Future[None] | None = None

    @property
    def pid(self) -> int:
        """The process that confines the sandbox, as the host sees it."""
        return self._process.pid if self._process else 0

    @property
    def is_alive(self) -> bool:
        return self._transport is not None and self._closing is None and not self._transport.is_closing()

    async def start(self, *, timeout_s: float = START_TIMEOUT_S) -> None:
        ours, theirs = socket.socketpair()
        errors = os.memfd_create("sandbox-errors", os.MFD_CLOEXEC)
        ready = self._expect(0, OVERHEAD_BYTES)
        try:
            async with asyncio.timeout(timeout_s):
                with theirs:
                    self._process = await self._launch.start(ours, theirs, errors)
                self._transport, _ = await asyncio.get_running_loop().create_unix_connection(
                    lambda: _Frames(self._max_bytes, self._received, self._lost), sock=ours
                )
                self._transport.write(self._launch.first_bytes())
                kind, payload = await ready
            if kind != frames.READY:
                raise SandboxGoneError(payload.decode(errors="replace"))
        except BaseException as error:
            ready.cancel()  # nobody waits for it any more
            if self._transport is None:  # otherwise closing the transport closes the socket
                ours.close()
            await asyncio.shield(self.close())
            if isinstance(error, SandboxGoneError | OSError | TimeoutError):
                said = os.pread(errors, 2000, 0).decode(errors="replace").strip()
                raise SandboxCreateError(f"The sandbox did not start: {said or error!r}") from error
            raise
        finally:
            os.close(errors)

    async def exec(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout_s: float | None = None,
    ) -> ExecResult:
        """Run a command in the sandbox."""
        return await self._job(frames.EXEC, argv, cwd=cwd, env=env, stdin=stdin, timeout_s=timeout_s)

    async def program(
        self,
        source: str,
        *args: str,
        stdin: bytes = b"",
        timeout_s: float | None = None,
        output_bytes: int | None = None,
    ) -> ExecResult:
        """Run Python source as a program in a process of its own, forked from an interpreter that is already up."""
        return await self._job(
            frames.PROGRAM, [source, *args], stdin=stdin, timeout_s=timeout_s, output_bytes=output_bytes
        )

    async def python(self, code: str, *, timeout_s: float | None = None) -> PythonResult:
        """Run code in the stateful session, after all that was run there before. If the code ends the sandbox, the
        result says that its process is lost."""
        wall_s = timeout_s or self.limits.wall_s
        payload = pack(self._options(wall_s), code.encode("utf-8", "replace"))
        reply_bytes = max_report_bytes(self.limits.output_bytes)
        async with self._turn:
            self._check_alive()
            try:
                return await self._ask(frames.PYTHON, payload, python_result, wall_s=wall_s, reply_bytes=reply_bytes)
            except SandboxGoneError:
                return lost_session()

    async def write_file(self, path: str, content: bytes) -> None:
        for at in range(0, max(len(content), 1), CHUNK_BYTES):
            mode = b"a" if at else b"w"
            part = content[at : at + CHUNK_BYTES]
            await self._file_job(frames.WRITE, pack(self._absolute(path), mode, part), f"write {path}")

    async def read_file(self, path: str, *, max_bytes: int = MAX_DOWNLOAD_BYTES) -> bytes:
        payload = pack(self._absolute(path), str(max_bytes).encode())
        return await self._file_job(frames.READ, payload, f"read {path}", max_bytes=max_bytes)

    def close(self) -> "asyncio.Future[None]":
        """End everything in the sandbox. The result is there when all its processes are gone."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        return self._closing

    async def _close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        if self._process is not None:
            await self._process.ended()
        if self._launch.folder is not None:
            await asyncio.to_thread(remove_folder, self._launch.folder)
        self._ended(self)

    async def _job(
        self,
        kind: int,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout_s: float | None = None,
        output_bytes: int | None = None,
    ) -> ExecResult:
        wall_s = timeout_s or self.limits.wall_s
        names = {**self.env, **(env or {})}
        payload = pack(
            self._options(wall_s, output_bytes),
            self._absolute(cwd or self.workdir),
            stdin,
            pack(*(text.encode("utf-8", "surrogateescape") for pair in names.items() for text in pair)),
            pack(*(text.encode("utf-8", "surrogateescape") for text in argv)),
        )
        reply_bytes = 2 * (output_bytes or self.limits.output_bytes)
        try:
            return await self._ask(kind, payload, exec_result, wall_s=wall_s, reply_bytes=reply_bytes)
        except (SandboxGoneError, SandboxRefusedError) as error:
            return ExecResult(stdout="", stderr=str(error), return_code=RUNTIME_FAILURE, error_type="sandbox")

    async def _file_job(self, kind: int, payload: bytes, what: str, *, max_bytes: int = 0) -> bytes:
        outcome = await self._ask(kind, payload, job_outcome, wall_s=60.0, reply_bytes=max_bytes)
        if outcome.code:
            raise SandboxError(f"Could not {what} in the sandbox: {outcome.stderr.decode(errors='replace').strip()}")
        return outcome.stdout

    def _options(self, wall_s: float, output_bytes: int | None = None) -> bytes:
        wall_ms, cpu_ms = (max(1, int(limit * 1000)) for limit in (wall_s, self.limits.cpu_s))
        return frames.OPTIONS.pack(wall_ms, cpu_ms, output_bytes or self.limits.output_bytes)

    def _absolute(self, path: str) -> bytes:
        named = Path(path)
        if self._workdir_name and named.is_relative_to(self._workdir_name):
            named = named.relative_to(self._workdir_name)
        return os.fsencode(self.workdir / named)

    def _expect(self, request: int, max_bytes: int) -> "asyncio.Future[tuple[int, bytes]]":
        reply: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        self._waiting[request] = _Waiting(reply, max_bytes)
        return reply

    def _check_alive(self) -> asyncio.WriteTransport:
        if not self.is_alive or self._transport is None:
            raise SandboxGoneError("The sandbox has ended.")
        return self._transport

    async def _ask(
        self, kind: int, payload: bytes, read: Callable[[bytes], T], *, wall_s: float, reply_bytes: int
    ) -> T:
        """The agent's reply. An action whose caller is cancelled is ended in the sandbox, too."""
        transport = self._check_alive()
        request = next(self._requests)
        reply = self._expect(request, reply_bytes + OVERHEAD_BYTES)
        transport.write(frame(request, kind, payload))
        try:
            async with asyncio.timeout(wall_s + REPLY_GRACE_S):
                answered, content = await reply
        except TimeoutError as error:
            self.close()
            raise SandboxGoneError("The sandbox stopped answering and was ended.") from error
        except asyncio.CancelledError:
            if self.is_alive:
                transport.write(frame(0, frames.CANCEL, pack(str(request).encode())))
            raise
        if answered != frames.RESULT:
            raise SandboxRefusedError(f"The sandbox refused: {content[:500].decode(errors='replace')}")
        try:
            return read(content)
        except FrameError as error:
            self.close()
            raise SandboxGoneError(f"The sandbox sent an invalid reply and was ended: {error}.") from error

    def _max_bytes(self, request: int) -> int:
        """The most that a reply to a request can have; -1 if no reply is expected."""
        return self._waiting[request].max_bytes if request in self._waiting else -1

    def _received(self, request: int, kind: int, payload: bytes) -> None:
        reply = self._waiting.pop(request).reply
        if not reply.done():
            reply.set_result((kind, payload))

    def _lost(self) -> None:
        for waiting in self._waiting.values():
            if not waiting.reply.done():
                waiting.reply.set_exception(SandboxGoneError("The sandbox ended."))
        self._waiting.clear()
        if self._closing is None:
            self.close()


class _Frames(asyncio.Protocol):
    """Cuts what an agent sends into frames. One that answers no request, or is too long, ends the connection before it
    is read."""

    def __init__(
        self,
        max_bytes: Callable[[int], int],
        received: Callable[[int, int, bytes], None],
        lost: Callable[[], None],
    ) -> None:
        self._max_bytes, self._received, self._lost = max_bytes, received, lost
        self._buffer = bytearray()
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= frames.HEADER.size:
            request, kind, length = frames.HEADER.unpack_from(self._buffer)
            if length > self._max_bytes(request):
                assert self._transport is not None
                self._transport.abort()
                return
            end = frames.HEADER.size + length
            if len(self._buffer) < end:
                return
            payload = bytes(self._buffer[frames.HEADER.size : end])
            del self._buffer[:end]
            self._received(request, kind, payload)

    def connection_lost(self, _error: Exception | None) -> None:
        self._lost()


def remove_folder(folder: Path) -> None:
    """Remove a folder that hostile code has had the run of. Links in it are not followed."""

    def make_writable(_function: Any, path: str, _error: Any) -> None:
        with contextlib.suppress(OSError):
            os.chmod(os.path.dirname(path), 0o700)
            if os.path.isdir(path) and not os.path.islink(path):
                os.chmod(path, 0o700)

    for _ in range(REMOVE_ATTEMPTS):
        shutil.rmtree(folder, onerror=make_writable)
        if not folder.exists():
            return
    logger.warning("the sandbox folder %s could not be removed", folder)
