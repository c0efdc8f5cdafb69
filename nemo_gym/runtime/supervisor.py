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

from nemo_gym.client.head import WorkerAddress
from nemo_gym.client.pool import HttpClient
from nemo_gym.common.redaction import one_line, redact
from nemo_gym.common.retry import backoff_s
from nemo_gym.common.words import exit_reason
from nemo_gym.errors import StartupError, UpstreamError
from nemo_gym.runtime.stack import StackSpec
from nemo_gym.runtime.worker import EXIT_CONFIG, READY

logger = logging.getLogger(__name__)

WORKER_MODULE = "nemo_gym.rollouts.worker"
"""The program of a worker."""
LAST_LINES = 40
STOP_AFTER_S = 5.0
"""Longer than uvicorn_runner.GRACE_S, which requests in flight get."""
KILL_AFTER_S = 3.0
HUNG_AFTER_S = 120.0
"""A worker that answers no request for this long is killed and restarted. Collectors give it up after a minute."""
PINGS_PER_LIMIT = 12
MAX_DEATHS = 60
DEATHS_WITHIN_S = 300.0
"""A few rows that kill their worker, or somebody who does, stay far below this. A worker that cannot live does not."""
MAX_BACKOFF_ATTEMPT = 3
_READY_LINE = one_line(READY)


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
        hung_after_s: float = HUNG_AFTER_S,
    ) -> None:
        self.label, self.spec, self._address, self._python, self._echo = label, spec, address, python, echo
        self._hung_after_s = hung_after_s
        self.started_at = 0.0
        self.ready = asyncio.Event()
        """Set while the worker serves."""
        self._was_ready = False
        self._process: asyncio.subprocess.Process | None = None
        self._last: deque[str] = deque(maxlen=LAST_LINES)
        self._restarts = Restarts()
        self._stopping = False

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process and self._process.returncode is None else None

    @property
    def address(self) -> WorkerAddress:
        """Where it is, as the head server lists it."""
        return self._address._replace(pid=self.pid)

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
        pinging = asyncio.create_task(self._kill_when_hung(process.pid))
        try:
            await self._read_output(process.stdout)
        finally:
            pinging.cancel()
            self.ready.clear()
        code = await process.wait()
        _signal_group(process.pid, signal.SIGKILL)
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
            else:
                self._last.append(line)
                self._echo(f"({self.label}) {line}")

    async def _kill_when_hung(self, pid: int) -> None:
        """It may be stopped, or a handler may block its event loop for ever. The second ping is for a process that was
        stopped itself: the reply to the first one may be there."""
        await self.ready.wait()
        limit_s, url = self._hung_after_s, self._address.url
        while await _answers(url, limit_s) or await _answers(url, limit_s / 10):  # noqa: ASYNC110
            await asyncio.sleep(limit_s / PINGS_PER_LIMIT)
        logger.error("%s (process %d) has not answered for %g s; killing it", self.label, pid, limit_s)
        _signal_group(pid, signal.SIGKILL)


async def _answers(url: str, timeout_s: float) -> bool:
    """True if the worker answers a request, whatever it says."""
    async with HttpClient() as http:
        try:
            await http.fetch("GET", f"{url}/health", timeout_s=timeout_s, use_proxy=False)
        except UpstreamError as error:  # else it refused the connection
            return error.cause != "timeout"
    return True


def _signal_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def default_echo(line: str) -> None:
    sys.stderr.write(f"{line}\n")
