"""Starting the agent of a sandbox: as a process of its own, or as a fork of one that is already up."""

import asyncio
import contextlib
import functools
import marshal
import os
import signal
import socket
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nemo_gym.sandbox.contract import SandboxCreateError

CLOSE_TIMEOUT_S = 5.0
"""How long an agent that was told to end may take before it is killed."""
FORKS_AT_ONCE = 64
"""Each has two open files on their way to the fork server; the kernel limits those."""
_MODULES = ("frames", "usage", "confine", "jobs", "programs", "session", "namespaces", "agent", "fork_server")
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
sys.modules["nemo_gym.sandbox.inside.fork_server"].main(settings)
"""


def boot_command(python: str) -> list[str]:
    return [python, "-I", "-S", "-c", BOOT]


@functools.cache
def _agent_code() -> bytes:
    """The agent's modules, compiled once by this interpreter, which is the one that sandboxes have."""
    folder = Path(__file__).parent / "inside"
    modules = []
    for name in _MODULES:
        source = (folder / f"{name}.py").read_text()
        modules.append((f"nemo_gym.sandbox.inside.{name}", compile(source, f"<sandbox {name}>", "exec", optimize=2)))
    return marshal.dumps(tuple(modules))


def _with_length(part: bytes) -> bytes:
    return len(part).to_bytes(4, "big") + part


class HostProcess:
    """The first process of a sandbox, as the host sees it. No open file is kept for it."""

    def __init__(self, pid: int, popen: "subprocess.Popen[bytes] | None" = None) -> None:
        self.pid, self._popen = pid, popen
        self._started_at = _start_time(pid)

    async def ended(self) -> None:
        """Wait for a process that was told to end; kill it if it does not."""
        if self._started_at is None if self._popen is None else self._popen.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            pidfd = os.pidfd_open(self.pid)
            try:
                # Somebody else reaps a forked agent, so its number may be another process's by now.
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
    """In clock ticks since the machine started; with the pid it names one process."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19]
    except OSError:
        return None


def spawn(argv: list[str], control: socket.socket, errors: int, fds: list[int]) -> "subprocess.Popen[bytes]":
    """Start an interpreter that expects its code on `control`; `fds` are closed here once it has them."""
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

    It never sees what a sandbox is told, and runs nothing of a model's."""

    def __init__(self, launch: "Launch") -> None:
        self._turns = asyncio.Semaphore(FORKS_AT_ONCE)
        self.has_worked = self._has_ended = False
        self._control, theirs = socket.socketpair()
        errors = os.open(os.devnull, os.O_RDWR)
        try:
            with theirs:
                self._popen = spawn(launch.argv, theirs, errors, launch.fds)
            try:
                self._control.sendall(launch.first_bytes())  # less than the socket's buffer, so it does not wait
            except OSError:
                self._has_ended = True  # the first fork says so
        except BaseException:
            self._control.close()
            raise
        finally:
            os.close(errors)

    @property
    def is_alive(self) -> bool:
        return not self._has_ended and self._popen.poll() is None

    async def fork(self, ours: socket.socket, theirs: socket.socket, errors: int) -> HostProcess:
        """Have an agent started that is controlled through `theirs`."""
        async with self._turns:
            try:
                socket.send_fds(self._control, [b"\0"], [theirs.fileno(), errors])
                theirs.close()  # so that the end of the server is the end of this connection
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
    """How a provider starts the agent of one sandbox."""

    argv: list[str]
    """Ends with the interpreter's command; the control socket's number is appended."""
    settings: dict[str, Any]
    fds: list[int] = field(default_factory=list)
    """Open files that the process inherits; closed here once it has them."""
    folder: Path | None = None
    """A folder of the host's that goes with the sandbox."""
    server: ForkServer | None = None
    """Where the agent is forked instead."""

    async def start(self, ours: socket.socket, theirs: socket.socket, errors: int) -> HostProcess:
        if self.server is not None:
            return await self.server.fork(ours, theirs, errors)
        popen = spawn(self.argv, theirs, errors, self.fds)
        return HostProcess(popen.pid, popen)

    def first_bytes(self) -> bytes:
        """What the new process expects: its code, unless it is a fork, and its settings."""
        settings = _with_length(marshal.dumps(self.settings))
        return settings if self.server is not None else _with_length(_agent_code()) + settings


async def _received_fd(connection: socket.socket) -> int:
    """The one open file that comes with the next byte."""
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
    """A process's number out here; the sandbox knows another."""
    lines = Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pid:"))
