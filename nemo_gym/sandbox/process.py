"""One sandbox on this machine: start the agent inside, as a new process or as a fork of a running one, and send it
requests."""

import asyncio
import contextlib
import functools
import itertools
import logging
import marshal
import os
import shutil
import signal
import socket
import struct
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from nemo_gym.common.outside_work import report_cpu_time
from nemo_gym.sandbox.contract import (
    MAX_DOWNLOAD_BYTES,
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

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 5.0
"""Time for an agent to end before it is killed."""
FORKS_AT_ONCE = 64
"""Each fork sends two open files to the fork server, and the kernel limits those in flight."""
_MODULES = ("frames", "confine", "programs", "jobs", "agent")
"""Each imports only those before it."""
BOOT = """\
import marshal,os,sys
os.dup2(int(sys.argv[1]),3)
os.closerange(4,65536)
def read(n):
    b=b""
    while len(b)<n:
        p=os.read(3,n-len(b))
        if not p: os._exit(1)
        b+=p
    return b
modules=marshal.loads(read(int.from_bytes(read(4),"big")))
settings=marshal.loads(read(int.from_bytes(read(4),"big")))
for name in ("nemo_gym","nemo_gym.sandbox","nemo_gym.sandbox.inside"):
    sys.modules[name]=type(sys)(name)
for name,code in modules:
    module=sys.modules[name]=type(sys)(name)
    setattr(sys.modules["nemo_gym.sandbox.inside"],name.rpartition(".")[2],module)
    exec(code,module.__dict__)
sys.modules["nemo_gym.sandbox.inside.agent"].main(settings)
"""


def boot_command(python: str) -> list[str]:
    return [python, "-I", "-S", "-c", BOOT]


@functools.cache
def _agent_code() -> bytes:
    """Compile the agent's modules once. Sandboxes have the same interpreter."""
    folder = Path(__file__).parent / "inside"
    modules = []
    for name in _MODULES:
        source = (folder / f"{name}.py").read_text()
        modules.append((f"nemo_gym.sandbox.inside.{name}", compile(source, f"<sandbox {name}>", "exec", optimize=2)))
    return marshal.dumps(tuple(modules))


def _with_length(part: bytes) -> bytes:
    return len(part).to_bytes(4, "big") + part


class HostProcess:
    """The first process of a sandbox, seen from the host. It keeps no file open."""

    def __init__(self, pid: int, popen: "subprocess.Popen[bytes] | None" = None) -> None:
        self.pid, self._popen = pid, popen
        self._started_at = _start_time(pid)

    async def ended(self) -> None:
        """Wait for a process to end, and kill it after a time limit."""
        if self._started_at is None if self._popen is None else self._popen.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            pidfd = os.pidfd_open(self.pid)
            try:
                # The fork server reaps a forked agent, so its pid may belong to another process by now.
                if self._popen is not None or _start_time(self.pid) == self._started_at:
                    await _exited(pidfd)
            finally:
                os.close(pidfd)
        if self._popen is not None:
            self._popen.wait()


async def _exited(pidfd: int) -> None:
    loop = asyncio.get_running_loop()
    gone = loop.create_future()
    loop.add_reader(pidfd, lambda: None if gone.done() else gone.set_result(None))
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await asyncio.shield(gone)
        if not gone.done():
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            await gone
    finally:
        loop.remove_reader(pidfd)


def _start_time(pid: int) -> bytes | None:
    """Return the start time of a process in clock ticks, which together with the pid identifies it."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19]
    except OSError:
        return None


def spawn(argv: list[str], control: socket.socket, errors: int, fds: list[int]) -> "subprocess.Popen[bytes]":
    """Start an interpreter that receives its code on `control`. `fds` are closed here after it has inherited them."""
    try:
        return subprocess.Popen(
            [*argv, str(control.fileno())],
            pass_fds=[control.fileno(), *fds],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env={},
            cwd="/",
            start_new_session=True,
        )
    finally:
        for fd in fds:
            os.close(fd)


class ForkServer:
    """A process that holds a started interpreter with the agent's code and forks an agent for each sandbox.

    It never sees requests to a sandbox, and never runs model-written code."""

    def __init__(self, launch: "Launch") -> None:
        self._slots = asyncio.Semaphore(FORKS_AT_ONCE)
        self.has_worked = self._has_ended = False
        self._control, theirs = socket.socketpair()
        errors = os.open(os.devnull, os.O_RDWR)
        try:
            with theirs:
                self._popen = spawn(launch.argv, theirs, errors, launch.fds)
            try:
                self._control.sendall(launch.first_bytes())  # fits into the socket's buffer, so it does not block
            except OSError:
                self._has_ended = True  # the first fork reports it
        except BaseException:
            self._control.close()
            raise
        finally:
            os.close(errors)

    @property
    def is_alive(self) -> bool:
        return not self._has_ended and self._popen.poll() is None

    async def fork(self, ours: socket.socket, theirs: socket.socket, errors: int) -> HostProcess:
        """Fork an agent that is controlled through `theirs`."""
        async with self._slots:
            try:
                socket.send_fds(self._control, [b"\0"], [theirs.fileno(), errors])
                theirs.close()  # so that this connection ends with the server
                pidfd = await _received_fd(ours)
            except (OSError, EOFError) as error:
                self._has_ended = True
                raise SandboxCreateError("The fork server has ended.") from error
        try:
            process = HostProcess(_pid_of(pidfd))
        finally:
            os.close(pidfd)
        self.has_worked = True
        return process

    async def close(self) -> None:
        self._control.close()
        await HostProcess(self._popen.pid, self._popen).ended()


@dataclass(slots=True)
class Launch:
    """Command and settings that start the agent of one sandbox."""

    argv: list[str]
    """Ends with the interpreter's command; the control socket's number is appended."""
    settings: dict[str, Any]
    fds: list[int] = field(default_factory=list)
    """Open files that the process inherits. They are closed here afterwards."""
    folder: Path | None = None
    """A folder of the host that is removed with the sandbox."""
    server: ForkServer | None = None
    """The fork server, if the agent is forked instead."""

    async def start(self, ours: socket.socket, theirs: socket.socket, errors: int) -> HostProcess:
        if self.server is not None:
            return await self.server.fork(ours, theirs, errors)
        popen = spawn(self.argv, theirs, errors, self.fds)
        return HostProcess(popen.pid, popen)

    def first_bytes(self) -> bytes:
        """Return what the new process reads first: its code, unless it is a fork, and its settings."""
        settings = _with_length(marshal.dumps(self.settings))
        return settings if self.server is not None else _with_length(_agent_code()) + settings


async def _received_fd(connection: socket.socket) -> int:
    """Receive the open file that comes with the next byte."""
    loop = asyncio.get_running_loop()
    connection.setblocking(False)
    readable = loop.create_future()
    loop.add_reader(connection, lambda: None if readable.done() else readable.set_result(None))
    try:
        await readable
    finally:
        loop.remove_reader(connection)
    content, fds, _flags, _address = socket.recv_fds(connection, 1, 1)
    if not content:
        raise EOFError
    if not fds:
        raise SandboxCreateError("The fork server could not fork: too many processes, or no memory.")
    return fds[0]


def _pid_of(pidfd: int) -> int:
    """Return the pid of a process on the host, which differs from the pid in the sandbox."""
    lines = Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pid:"))


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
    """Decode the report of a session. Its process runs model-written code and may have sent anything."""
    head, report = unpack(payload, 2)
    _code, reason, _truncated, cpu_us = _head(head)
    limit = _LIMIT_NAMES.get(reason)
    try:
        texts = [field[1:].decode(errors="replace") if field else None for field in unpack(report, 5)]
    except FrameError:
        return lost_session(limit)._replace(cpu_s=cpu_us / 1e6)
    stdout, stderr, result, error_text, error_type = texts
    return PythonResult(stdout or "", stderr or "", result, error_text, error_type, limit, cpu_s=cpu_us / 1e6)


def lost_session(limit: LimitName | None = None) -> PythonResult:
    """Return the result of code whose process ended."""
    error = "The Python process ended." if limit is None else f"The {limit} limit was exceeded."
    return PythonResult("", "", None, error, "SessionLost", limit, is_lost=True)


T = TypeVar("T")


START_TIMEOUT_S = 60.0
REPLY_GRACE_S = 20.0
"""Time after an action's limit in which the agent must reply before the sandbox is ended."""
REMOVE_ATTEMPTS = 100
"""Each attempt opens at least one level of unreadable folders."""
CHUNK_BYTES = 4 * 2**20


class SandboxGoneError(SandboxError):
    """The sandbox ended, stopped answering, or sent an invalid reply. It is closed."""


class SandboxRefusedError(SandboxError):
    """The agent refused a request, and nothing was run. The sandbox stays usable."""


class _Waiting(NamedTuple):
    """A request without a reply yet. A cancelled request stays here until its reply."""

    reply: "asyncio.Future[tuple[int, bytes]]"
    max_bytes: int
    """Maximum size of its reply."""


class SandboxProcess:
    """A running sandbox. All methods may be called concurrently. Calls of the Python session wait for each other."""

    def __init__(
        self,
        launch: Launch,
        limits: Limits,
        env: Mapping[str, str],
        *,
        workdir_name: str | None = None,
        ended: "Callable[[SandboxProcess], None]" = lambda _: None,
    ) -> None:
        """`workdir_name` is the path that callers use for the work folder, if its real path differs."""
        self.limits, self.env, self.workdir = limits, dict(env), str(launch.settings["workdir"])
        self._launch, self._workdir_name, self._ended = launch, workdir_name, ended
        self._requests = itertools.count(1)
        self._waiting: dict[int, _Waiting] = {}
        self._session_lock = asyncio.Lock()
        self._process: HostProcess | None = None
        self._transport: asyncio.WriteTransport | None = None
        self._closing: asyncio.Future[None] | None = None

    @property
    def pid(self) -> int:
        """Host pid of the sandbox's first process."""
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
            ready.cancel()  # nothing waits for it now
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
        """Run Python source as a program in a new process, forked from a running interpreter."""
        return await self._job(
            frames.PROGRAM, [source, *args], stdin=stdin, timeout_s=timeout_s, output_bytes=output_bytes
        )

    async def python(self, code: str, *, timeout_s: float | None = None) -> PythonResult:
        """Run code in the stateful session. If the code ends the sandbox, `is_lost` of the result is true."""
        wall_s = timeout_s or self.limits.wall_s
        payload = pack(self._options(wall_s), code.encode("utf-8", "replace"))
        reply_bytes = max_report_bytes(self.limits.output_bytes)
        async with self._session_lock:
            self._check_alive()
            try:
                found = await self._ask(frames.PYTHON, payload, python_result, wall_s=wall_s, reply_bytes=reply_bytes)
            except SandboxGoneError:
                return lost_session()
        report_cpu_time("sandbox Python session", found.cpu_s)
        return found

    async def write_file(self, path: str, content: bytes) -> None:
        for at in range(0, max(len(content), 1), CHUNK_BYTES):
            mode = b"a" if at else b"w"
            part = content[at : at + CHUNK_BYTES]
            await self._file_job(frames.WRITE, pack(self._absolute(path), mode, part), f"write {path}")

    async def read_file(self, path: str, *, max_bytes: int = MAX_DOWNLOAD_BYTES) -> bytes:
        payload = pack(self._absolute(path), str(max_bytes).encode())
        return await self._file_job(frames.READ, payload, f"read {path}", max_bytes=max_bytes)

    def close(self) -> "asyncio.Future[None]":
        """End the sandbox. The returned future completes when all its processes have ended."""
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
            found = await self._ask(kind, payload, exec_result, wall_s=wall_s, reply_bytes=reply_bytes)
            report_cpu_time(f"sandbox {'program' if kind == frames.PROGRAM else 'command'}", found.cpu_s)
            return found
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
        """Send a request and return the decoded reply. If the caller is cancelled, the action is also ended in the
        sandbox."""
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
        """Return the maximum size of the reply to a request; -1 if no reply is expected."""
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
    """Splits the bytes of an agent into frames. A frame that is too long, or answers no request, ends the connection
    before it is read."""

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
    """Remove a folder that hostile code may have changed. Links in it are not followed."""

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
