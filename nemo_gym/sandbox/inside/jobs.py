"""Commands and programs that the agent runs, each a child process with captured output."""

from __future__ import annotations

import os
import resource
import time

from nemo_gym.sandbox.inside.confine import Confinement
from nemo_gym.sandbox.inside.frames import CPU, NO_LIMIT, OUTCOME, pack
from nemo_gym.sandbox.inside.usage import kill

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

SIGPIPE, SIGXCPU, SIGXFSZ = 13, 24, 25
CANNOT_EXECUTE = 126
CPU_GRACE_S = 1
"""The kernel counts whole seconds; the agent's own, finer limit comes first. Commands that are not forked have only
that: no process in a sandbox may change the limits of another."""


class Limit:
    """What one job may use."""

    def __init__(self, wall_ms: int, cpu_ms: int, output: int) -> None:
        self.wall_s, self.cpu_s, self.output = wall_ms / 1000, cpu_ms / 1000, output


class Job:
    """One running child: its pipes, its deadline, what it has written so far."""

    def __init__(self, request: int, limit: Limit, stdin: bytes, cpu_before: float) -> None:
        self.request, self.limit = request, limit
        self.deadline = time.monotonic() + limit.wall_s
        self.cpu_before = cpu_before
        self.stdin = memoryview(stdin)
        self.pid = 0
        self.reason = NO_LIMIT
        self.is_truncated = False
        self.input_fd = -1
        self.outputs: dict[int, bytearray] = {}
        self.streams: list[int] = []

    def start(self, confinement: Confinement, body: Callable[[], None], command: Command | None = None) -> None:
        """Start the command without a fork, or fork; then the child runs `body`, which does not return. Either has
        the pipes as its standard streams."""
        stdin, self.input_fd = os.pipe() if self.stdin else (os.open("/dev/null", os.O_RDONLY), -1)
        (out, out_end), (err, err_end) = os.pipe(), os.pipe()
        theirs = (stdin, out_end, err_end)
        self.pid = command.spawn(theirs) if command else 0
        if not self.pid:
            self.pid = os.fork()
            if not self.pid:
                run_child(confinement, dict(enumerate(theirs)), body, cpu_s=self.limit.cpu_s)
        for fd in theirs:
            os.close(fd)
        for fd in (self.input_fd, out, err):
            if fd >= 0:
                os.set_blocking(fd, False)
        self.outputs = {out: bytearray(), err: bytearray()}
        self.streams = [out, err]

    def feed(self) -> bool:
        """Write what the child takes of its input. False once there is no more to write."""
        try:
            self.stdin = self.stdin[os.write(self.input_fd, self.stdin[:65536]) :]
        except BlockingIOError:
            return True
        except OSError:
            self.stdin = self.stdin[:0]
        return bool(self.stdin)

    def drain(self, fd: int) -> bool:
        """Read what there is, keep what the limit allows. False at the end of the stream."""
        kept = self.outputs[fd]
        while True:
            try:
                part = os.read(fd, 65536)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not part:
                return False
            room = self.limit.output - len(kept)
            kept += part[:room] if room > 0 else b""
            self.is_truncated |= len(part) > room
            if self.is_truncated:  # endless output must not keep the agent from its other duties
                return True

    def kill(self, reason: int) -> None:
        self.reason = self.reason or reason
        for target in (-self.pid, self.pid):
            kill(target)

    def outcome(self, code: int, cpu_s: float) -> bytes:
        for fd in self.streams:
            self.drain(fd)
        reason = CPU if code == -SIGXCPU else self.reason
        head = OUTCOME.pack(code, reason, self.is_truncated, int(cpu_s * 1e6))
        return pack(head, *(bytes(self.outputs[fd]) for fd in self.streams))


class Command:
    """A program to run. Where it inherits all confinement it is started as `vfork` does: nothing is copied for it."""

    def __init__(self, argv: list[str], env: dict[str, str], cwd: str) -> None:
        self.argv, self.env, self.cwd = argv, env, cwd

    def spawn(self, streams: tuple[int, int, int]) -> int:
        """The pid, or 0 if it could not be started like this; a forked child finds out why."""
        actions = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(streams)]
        try:
            os.chdir(self.cwd)  # nothing in this process depends on it
            return os.posix_spawn(
                self._program(), self.argv, self.env, file_actions=actions, setsid=True, setsigdef=(SIGPIPE, SIGXFSZ)
            )
        except (OSError, ValueError, NotImplementedError):
            return 0

    def _program(self) -> str:
        name = self.argv[0]
        if "/" in name:
            return name
        paths = (f"{folder}/{name}" for folder in os.get_exec_path(self.env))
        return next((path for path in paths if os.access(path, os.X_OK) and os.path.isfile(path)), "")


def cpu_limit(cpu_s: float) -> tuple[int, int]:
    seconds = int(cpu_s) + CPU_GRACE_S
    return seconds, seconds + 1


def run_child(
    confinement: Confinement, streams: dict[int, int], body: Callable[[], None], *, cpu_s: float | None = None
) -> None:
    """In the child: leave the agent's session, keep these file descriptors alone, be confined, run `body`, end."""
    try:
        os.setsid()
        for target, source in streams.items():
            os.dup2(source, target)
        confinement.apply()
        os.closerange(max(2, *streams) + 1, 65536)
        if cpu_s is not None:
            resource.setrlimit(resource.RLIMIT_CPU, cpu_limit(cpu_s))
        body()
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(CANNOT_EXECUTE)
