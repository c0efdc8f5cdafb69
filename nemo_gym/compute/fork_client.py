"""The server's side of its compute processes: orders to the fork_server, tasks to the workers, and their ends."""

import asyncio
import contextlib
import itertools
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from nemo_gym.compute.fork_server import ENDING, FRAME, MAX_PAYLOAD_BYTES, ORDER, ForkRequest, Kind

START_WITHIN_S = 120.0
"""For imports, the slowest of which take seconds on an idle machine."""
SECOND_LOOK_S = 0.01
_PROGRAM = "from nemo_gym.compute.fork_server import main; main()"
_BROKEN = (asyncio.IncompleteReadError, ConnectionError)


class NotStartedError(Exception):
    """A worker was lost, or never was, before it began its task, so another may try."""


class WorkerDiedError(Exception):
    """A worker was lost in the middle of its task."""


class CpuTimeExceededError(Exception):
    """A task used more CPU time than it may."""


class WallTimeExceededError(Exception):
    """A task did not use up its CPU time, but took too long all the same: it waits, or the machine is overloaded."""


class TimeLimits(NamedTuple):
    """How much CPU time a task may use, and how long it may take. Whether an answer is right must not depend on how
    busy the machine is, so only the first is a property of the task."""

    cpu_s: float
    wall_s: float


class Frame(NamedTuple):
    kind: Kind
    payload: bytes


class Worker:
    """One worker: tasks go out, answers come in, one at a time."""

    def __init__(
        self, fork_server: "ForkServer", number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ):
        self._fork_server, self._number, self._reader, self._writer = fork_server, number, reader, writer
        self._head: tuple[int, int] | None = None
        self.pid: int | None = None
        """Known once it has been forked."""
        self._ending: asyncio.Future[int | None] | None = None

    async def ask(self, task: bytes, limits: TimeLimits) -> Frame:
        """The answer to a task. The limits are on the function alone; its import comes before."""
        try:
            async with asyncio.timeout(START_WITHIN_S):
                self._writer.write(FRAME.pack(Kind.TASK, len(task)) + task)
                await self._writer.drain()
                first = await self.frame()
        except TimeoutError as error:
            raise NotStartedError(f"its import did not end within {START_WITHIN_S:g} s.") from error
        except _BROKEN as error:
            raise NotStartedError("the worker died before it began.") from error
        try:
            return first if first.kind is not Kind.STARTED else await self._outcome(limits)
        except _BROKEN as error:
            raise WorkerDiedError from error

    async def _outcome(self, limits: TimeLimits) -> Frame:
        cpu_clock, wall_clock = _cpu_clock(self.pid), time.monotonic
        cpu_end, wall_end = cpu_clock() + limits.cpu_s, wall_clock() + limits.wall_s
        left_s = min(limits)
        while left_s > 0:
            # CPU time never passes faster than wall time, so there is no need to look at the clock before.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(left_s, SECOND_LOOK_S)):
                    return await self.frame()
            left_s = min(cpu_end - cpu_clock(), wall_end - wall_clock())
        # The answer may be there, unseen, if our own loop was too busy to look.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SECOND_LOOK_S):
                return await self.frame()
        raise CpuTimeExceededError if cpu_clock() >= cpu_end else WallTimeExceededError

    async def frame(self) -> Frame:
        """The next thing it tells."""
        if self._head is None:
            self._head = FRAME.unpack(await self._reader.readexactly(FRAME.size))
        kind, length = self._head
        if length > MAX_PAYLOAD_BYTES:
            raise ConnectionResetError(f"a worker announced {length} bytes")
        payload = await self._reader.readexactly(length)
        self._head = None
        return Frame(Kind(kind), payload)

    def has_ended(self) -> bool:
        return self._reader.at_eof()

    def kill(self) -> "asyncio.Future[int | None]":
        """End the worker at once. When it is gone the result tells the code it ended with, if that is known."""
        if self._ending is None:
            self._writer.transport.abort()
            self._ending = self._fork_server.end(self._number, self.pid)
        return self._ending


class ForkServer:
    """The process that workers are forked from."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _PROGRAM, str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=_environment(),
            )
        self._control.setblocking(False)
        self._loop.add_reader(self._control, self._hear)
        self._numbers = itertools.count()
        self._endings: dict[int, asyncio.Future[int | None]] = {}
        self.is_gone = False

    async def fork(self, birth: ForkRequest) -> Worker:
        """A new worker, ready for its first task."""
        number, order = next(self._numbers), pickle.dumps(birth)
        ours, theirs = socket.socketpair()
        with theirs:
            self._tell(ORDER.pack(number, len(order)) + order, theirs)
        worker = Worker(self, number, *await asyncio.open_unix_connection(sock=ours))
        try:
            async with asyncio.timeout(START_WITHIN_S):
                worker.pid = int.from_bytes((await worker.frame()).payload)
        except TimeoutError as error:
            self.close()
            raise NotStartedError(f"no worker came up within {START_WITHIN_S:g} s.") from error
        except _BROKEN as error:
            raise NotStartedError("no worker came up.") from error
        finally:
            if worker.pid is None:
                worker.kill()
        return worker

    def end(self, number: int, pid: int | None) -> "asyncio.Future[int | None]":
        """Kill a worker. It is not reaped before the fork_server is told, so its process id is still its own."""
        ending = self._endings[number] = self._loop.create_future()
        if pid is not None and not self.is_gone:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(NotStartedError):  # with a fork_server that is gone all endings are told
            self._tell(ORDER.pack(number, 0))
        return ending

    def _tell(self, order: bytes, handed_over: socket.socket | None = None) -> None:
        try:
            socket.send_fds(self._control, [order], [] if handed_over is None else [handed_over.fileno()])
        except OSError as error:
            self.close()
            raise NotStartedError(f"the process that starts workers is gone ({error}).") from error

    def _hear(self) -> None:
        """Read which workers have ended, or that the fork_server has."""
        try:
            told = self._control.recv(ENDING.size * 100)
        except OSError:
            told = b""
        for number, code in ENDING.iter_unpack(told):
            self._resolve(number, code)
        if not told:
            self.close()

    def close(self) -> None:
        """End the fork_server. Workers that are left die with it."""
        if not self.is_gone:
            self.is_gone = True
            self._loop.remove_reader(self._control)
            self._control.close()
            self._process.kill()
            self._process.wait()
        for number in list(self._endings):
            self._resolve(number, None)

    def _resolve(self, number: int, code: int | None) -> None:
        ending = self._endings.pop(number, None)
        if ending is not None and not ending.done():
            ending.set_result(code)


def _cpu_clock(pid: int | None) -> Callable[[], float]:
    """The CPU time that a process has used. Where the system does not tell, it counts as busy all the time."""
    if sys.platform != "linux" or pid is None:
        return time.monotonic
    clock = (~pid << 3) | 2  # as clock_getcpuclockid(3) makes it

    def seconds() -> float:
        try:
            return time.clock_gettime(clock)
        except OSError:  # it has ended, as its connection will tell
            return 0.0

    return seconds


def _environment() -> dict[str, str]:
    """What the processes see: the modules this one sees, and one hash seed, so that equal tasks give equal results."""
    paths = (path or str(Path.cwd()) for path in sys.path)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONHASHSEED": "0"}
