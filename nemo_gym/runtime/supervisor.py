"""One worker process: start it, forward its output, restart it when it dies, stop it."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from nemo_gym.client.head import BlockedRollout, WorkerAddress
from nemo_gym.common.interrupts import interrupts
from nemo_gym.common.redaction import one_line, redact
from nemo_gym.common.retry import backoff_s
from nemo_gym.common.words import exit_reason
from nemo_gym.errors import StartupError
from nemo_gym.runtime.stack import StackSpec
from nemo_gym.runtime.worker import EXIT_CONFIG, READY
from nemo_gym.server.guard_process import BLOCKED

logger = logging.getLogger(__name__)

WORKER_MODULE = "nemo_gym.rollouts.worker"
"""The program of a worker."""
LAST_LINES = 40
STOP_AFTER_S = 5.0
"""Longer than uvicorn_runner.GRACE_S, which requests in flight get."""
KILL_AFTER_S = 3.0
MAX_DEATHS = 60
DEATHS_WITHIN_S = 300.0
"""A few rows that kill their worker, or somebody who does, stay far below this. A worker that cannot live does not."""
MAX_BACKOFF_ATTEMPT = 3
_READY_LINE, _BLOCKED_LINE = one_line(READY), one_line(BLOCKED)


@dataclass(slots=True)
class Restarts:
    """Decides whether a worker that died is restarted: not if it died too often within a few minutes."""

    deaths: deque[float] = field(default_factory=deque)

    def pause_after(self, now: float) -> float | None:
        """The pause before the next start, or None to give up."""
        self.deaths.append(now)
        while self.deaths[0] < now - DEATHS_WITHIN_S:
            self.deaths.popleft()
        return None if len(self.deaths) > MAX_DEATHS else backoff_s(min(len(self.deaths), MAX_BACKOFF_ATTEMPT)) / 2


class WorkerProcess:
    """Starts a worker, keeps its last lines of output, restarts it when it dies, and stops it."""

    def __init__(
        self,
        label: str,
        spec: StackSpec,
        address: WorkerAddress,
        *,
        python: str,
        echo: Callable[[str], None],
    ) -> None:
        self.label, self.spec, self._address, self._python, self._echo = label, spec, address, python, echo
        self.started_at = 0.0
        self.ready = asyncio.Event()
        """Set while the worker serves."""
        self._was_ready = False
        self._process: asyncio.subprocess.Process | None = None
        self._last: deque[str] = deque(maxlen=LAST_LINES)
        self._blocked: BlockedRollout | None = None
        self._restarts = Restarts()
        self._stopping = False

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process and self._process.returncode is None else None

    @property
    def address(self) -> WorkerAddress:
        """Where it is, as the head server lists it."""
        return self._address._replace(pid=self.pid, blocked=self._blocked)

    @property
    def names(self) -> str:
        return ", ".join(f"'{server}'" for server in self._address.servers)

    async def watch(self) -> None:
        """Keep the worker running until `stop`. Raises StartupError if restarting it makes no sense."""
        while not self._stopping:
            code = await self._run_once()
            if self._stopping:
                return
            words = "\n".join(f"  {line}" for line in self._last) or "  (it printed nothing)"
            ended = f"The worker with {self.names} ended with {exit_reason(code)}. Its last output:\n{words}"
            if code == EXIT_CONFIG:  # what it printed says all
                raise StartupError("\n".join(self._last))
            if not self._was_ready:
                raise StartupError(ended)
            pause = self._restarts.pause_after(time.monotonic())
            if pause is None:
                raise StartupError(f"{ended}\nIt died more than {MAX_DEATHS} times within {DEATHS_WITHIN_S:g} s.")
            logger.error("%s\nRestarting it in %.1f s.", ended, pause)
            await asyncio.sleep(pause)

    async def stop(self) -> None:
        """Stop the worker and all it started: close its standard input, then SIGTERM, then SIGKILL."""
        self._stopping = True
        process = self._process
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        for limit_s, number in ((STOP_AFTER_S, signal.SIGTERM), (KILL_AFTER_S, signal.SIGKILL)):
            try:
                await asyncio.wait_for(process.wait(), limit_s)
                break
            except TimeoutError:
                logger.warning("the worker with %s does not stop; sending %s", self.names, number.name)
                _signal_group(process.pid, number)
        await process.wait()
        _signal_group(process.pid, signal.SIGKILL)
        interrupts.process_groups.discard(process.pid)

    async def _run_once(self) -> int:
        self._last.clear()
        fds = [*(server.fd for server in self.spec.servers), self.spec.http_fd, self.spec.rows_fd]
        self._process = process = await asyncio.create_subprocess_exec(
            self._python,
            "-m",
            WORKER_MODULE,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            pass_fds=[fd for fd in fds if fd is not None],
            start_new_session=True,
        )
        self.started_at = time.time()
        if process.stdin is None or process.stdout is None:
            raise AssertionError("standard input and output are pipes")
        # a process that is killed at once has closed its pipe; uvloop says that with a RuntimeError
        with contextlib.suppress(ConnectionError, RuntimeError):
            process.stdin.write(self.spec.to_json() + b"\n")
            await process.stdin.drain()
        interrupts.process_groups.add(process.pid)
        reading = asyncio.create_task(self._read_output(process.stdout))
        try:
            code = await process.wait()
            _signal_group(process.pid, signal.SIGKILL)  # a child that the worker forked keeps its output open
            await reading
        finally:
            reading.cancel()
            self.ready.clear()
        interrupts.process_groups.discard(process.pid)
        return code

    async def _read_output(self, stdout: asyncio.StreamReader) -> None:
        """Line by line, however long: an overlong one is cut, not an error."""
        while True:
            try:
                data = await stdout.readline()
            except ValueError:
                data = b"... (a line too long to show)\n"
            if not data:
                return
            line = one_line(redact(data.decode(errors="replace").rstrip("\n")))
            if line == _READY_LINE:
                self._was_ready = True
                self.ready.set()
            elif line.startswith(_BLOCKED_LINE) and (process := self._process) is not None:
                *name, place = line.removeprefix(_BLOCKED_LINE).split(" ", 3)
                self._blocked = BlockedRollout(process.pid, " ".join(name), place)
            else:
                self._last.append(line)
                self._echo(f"({self.label}) {line}")


def _signal_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def default_echo(line: str) -> None:
    sys.stderr.write(f"{line}\n")
