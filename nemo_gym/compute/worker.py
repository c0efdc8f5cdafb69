"""The processes of a pool as it sees them: a fork server and connections to the workers that it forks.

A pool imports this when it needs its first process."""

import asyncio
import contextlib
import os
import pickle
import socket
import subprocess
import sys
import time
from pathlib import Path
from zlib import crc32

from nemo_gym.common.words import exit_reason
from nemo_gym.compute.protocol import (
    FRAME,
    MAX_PAYLOAD_BYTES,
    ForkRequest,
    Frame,
    Kind,
    TimeLimits,
    WorkerDiedError,
    WorkerLostError,
    frame_bytes,
)

START_TIMEOUT_S = 120.0
"""Time limit for the fork and all imports. Slow ones take seconds on an idle machine."""
MIN_WAIT_S = 0.01
"""The shortest wait for an answer. One such wait follows after a limit is exceeded, since the event loop may have been
too busy to read an answer that was in time."""
_CLOSED = "its connection was closed"
_PROGRAM = "from nemo_gym.compute.fork_server import main; main()"


class Worker:
    """The connection to one worker, which runs one task at a time. Closing it kills the worker."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._head = b""
        """The header of a frame whose payload was not there when the wait for it ended."""
        self._cpu_total_s = 0.0 if sys.platform == "linux" else time.monotonic()
        self.cpu_s = 0.0
        """CPU time of the last task, with what the process did before it since the one before."""

    async def run(self, task: bytes, limits: TimeLimits) -> Frame:
        """Run a task and return its outcome, or raise TimeoutError if it exceeds its CPU time. The limits apply to the
        function alone, not to its import."""
        self._writer.write(frame_bytes(Kind.TASK, task))
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                first = await self._frame()
        except (TimeoutError, WorkerDiedError) as error:
            raise WorkerLostError(str(error) or f"it did not start within {START_TIMEOUT_S:g} s") from error
        if first.kind is not Kind.STARTED:
            return first
        pid = int(first.payload)
        try:
            return await self._outcome(pid, limits)
        finally:
            total_s = _cpu_time_s(pid)
            self.cpu_s, self._cpu_total_s = max(0.0, total_s - self._cpu_total_s), total_s

    async def _outcome(self, pid: int, limits: TimeLimits) -> Frame:
        cpu_end, wall_end = _cpu_time_s(pid) + limits.cpu_s, time.monotonic() + limits.wall_s
        cpu_left_s, wall_left_s = limits
        while True:
            # A process cannot use more CPU time than passes on the wall, so there is nothing to check before.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(min(cpu_left_s, wall_left_s), MIN_WAIT_S)):
                    return await self._frame()
            if cpu_left_s <= 0:
                raise TimeoutError
            if wall_left_s <= 0:
                raise WorkerDiedError(f"it took longer than {limits.wall_s:g} s of wall-clock time")
            cpu_left_s, wall_left_s = cpu_end - _cpu_time_s(pid), wall_end - time.monotonic()

    async def _frame(self) -> Frame:
        try:
            self._head = self._head or await self._reader.readexactly(FRAME.size)
            kind, length, checksum = FRAME.unpack(self._head)
            payload = await self._reader.readexactly(min(length, MAX_PAYLOAD_BYTES))
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise WorkerDiedError(_CLOSED) from error
        self._head = b""
        if crc32(payload) != checksum:
            raise WorkerDiedError(_CLOSED)
        if kind == Kind.EXITED:
            raise WorkerDiedError(f"its worker ended with {exit_reason(int(payload))}")
        return Frame(Kind(kind), payload)

    def close(self) -> None:
        self._writer.transport.abort()


class ForkServerProcess:
    """A running fork server. Its workers die with it."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _PROGRAM, str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=_environment(),
            )

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    async def fork(self, request: ForkRequest) -> Worker:
        """A new worker. It takes tasks at once, though it may not be running yet."""
        frame, (ours, theirs) = frame_bytes(Kind.FORK, pickle.dumps(request)), socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._control, [frame], [theirs.fileno()])
            except OSError as error:
                ours.close()
                self.close()
                raise WorkerLostError(f"the fork server is gone ({error})") from error
        return Worker(*await asyncio.open_unix_connection(sock=ours))

    def close(self) -> None:
        self._control.close()
        self._process.kill()
        self._process.wait()


def _cpu_time_s(pid: int) -> float:
    """Return the CPU time that a process has used. Where that is unknown, it counts as busy all the time."""
    if sys.platform != "linux":
        return time.monotonic()
    with contextlib.suppress(OSError):
        return time.clock_gettime((~pid << 3) | 2)  # the clock id that clock_getcpuclockid(3) returns
    return 0.0  # it has ended, which its connection will report


def _environment() -> dict[str, str]:
    """Processes see the modules that this one sees, and have one hash seed, so that equal tasks give equal results."""
    paths = (path or str(Path.cwd()) for path in sys.path)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONHASHSEED": "0"}
