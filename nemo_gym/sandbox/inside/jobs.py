"""The children of the agent: commands and programs with captured output, and the Python session. Their resource usage
is read from /proc.

The process of a session runs model-written code, which can write anything to the socket, or nothing: the agent never
waits for it."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os
import resource
import select
import time

from nemo_gym.sandbox.inside.confine import Confinement
from nemo_gym.sandbox.inside.frames import CPU, NO_LIMIT, OUTCOME, OVERHEAD_BYTES, max_report_bytes, pack
from nemo_gym.sandbox.inside.programs import Session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

PAGE = os.sysconf("SC_PAGE_SIZE")
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
KILL = 9
KILL_ROUNDS = 200


class Process:
    __slots__ = ("cpu_s", "is_zombie", "memory", "parent", "pid")

    def __init__(self, pid: int, parent: int, cpu_s: float, memory: int, is_zombie: bool) -> None:
        self.pid, self.parent, self.cpu_s, self.memory, self.is_zombie = pid, parent, cpu_s, memory, is_zombie


def processes(root: int | None) -> list[Process]:
    """Return all processes of this PID namespace except pid 1 and this one; with `root`, the descendants of `root`."""
    found = [process for pid in os.listdir("/proc") if pid.isdigit() and (process := _process(int(pid)))]
    if root is None:
        own = os.getpid()
        return [process for process in found if process.pid not in (1, own)]
    family, grew = {root}, True
    while grew:
        children = {process.pid for process in found if process.parent in family} - family
        family |= children
        grew = bool(children)
    return [process for process in found if process.pid in family and process.pid != root]


def _process(pid: int) -> Process | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    cpu = sum(map(int, fields[11:15])) * TICK_S  # includes children that have ended
    return Process(pid, int(fields[1]), cpu, int(fields[21]) * PAGE, fields[0] in (b"Z", b"X"))


def kill_processes(root: int | None, keep: set[int]) -> None:
    """Kill everything except `keep`, repeatedly, until no new process appears."""
    for _ in range(KILL_ROUNDS):
        alive = [process for process in processes(root) if process.pid not in keep and not process.is_zombie]
        if not alive:
            return
        for process in alive:
            kill(process.pid)
        time.sleep(0.001)
    if root is None:
        kill(-1)  # all except this process, in one system call that no fork can escape


def end_descendants() -> None:
    """Kill all descendants of this child subreaper. One that forks while /proc is read can be missed, but as long
    as any is left, this process has a child."""
    while _has_child():
        kill_processes(os.getpid(), keep=set())


def _has_child() -> bool:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def kill(pid: int, number: int = KILL) -> None:
    """Send a signal to a process, if it is still there."""
    try:
        os.kill(pid, number)
    except OSError:
        return


def inodes_used(path: str) -> int:
    counts = os.statvfs(path)
    return counts.f_files - counts.f_ffree


def deleted_bytes(pids: list[int]) -> tuple[int, bool]:
    """The disk space of files that processes keep open after they were deleted, and whether all of them could be
    counted: a process can forbid to look into it."""
    sizes: dict[tuple[int, int], int] = {}
    is_whole = True
    for folder in [f"/proc/{pid}/fd" for pid in pids]:
        try:
            numbers = os.listdir(folder)
        except PermissionError:
            is_whole = False
            continue
        except OSError:
            continue
        for number in numbers:
            try:
                found = os.stat(f"{folder}/{number}")
            except OSError:
                continue
            if not found.st_nlink:
                sizes[found.st_dev, found.st_ino] = found.st_blocks * 512
    return sum(sizes.values()), is_whole


def are_folders_full(paths: list[str], *, max_bytes: int, max_files: int) -> bool:
    """True if there is more below these folders than may be, or something that cannot be counted, such as a folder
    that its owner made unreadable. Counting stops there."""
    total, count, folders = 0, 0, [*paths]
    while folders:
        try:
            entries = os.scandir(folders.pop())
        except FileNotFoundError:  # removed in the meantime, as files below may be
            continue
        except OSError:
            return True
        with entries:
            for entry in entries:
                try:
                    total, count = total + entry.stat(follow_symlinks=False).st_blocks * 512, count + 1
                except FileNotFoundError:
                    continue
                except OSError:
                    return True
                if total > max_bytes or count > max_files:
                    return True
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
    return total > max_bytes


SIGPIPE, SIGXCPU, SIGXFSZ = 13, 24, 25
CANNOT_EXECUTE = 126
CPU_GRACE_S = 1
"""Added to the kernel's limit, which counts whole seconds, so that the agent's finer limit comes first. Commands that
are not forked have only the agent's limit: no process in a sandbox may change the limits of another."""


class Limit:
    """Limits of one job."""

    def __init__(self, wall_ms: int, cpu_ms: int, output: int) -> None:
        self.wall_s, self.cpu_s, self.output = wall_ms / 1000, cpu_ms / 1000, output


class Job:
    """One running child: its pipes, its deadline and its output so far."""

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
        """Start `command` without a fork or, without one, fork a child that runs `body`, which does not return. The
        pipes are its standard streams."""
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
        """Write input that the child accepts now. Return False when all is written."""
        try:
            self.stdin = self.stdin[os.write(self.input_fd, self.stdin[:65536]) :]
        except BlockingIOError:
            return True
        except OSError:
            self.stdin = self.stdin[:0]
        return bool(self.stdin)

    def drain(self, fd: int) -> bool:
        """Read available output, and keep it up to the limit. Return False at the end of the stream."""
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
            left = self.limit.output - len(kept)
            kept += part[:left] if left > 0 else b""
            self.is_truncated |= len(part) > left
            if self.is_truncated:  # endless output must not block the agent
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
    """A program to run. If it inherits all confinement, it is started like `vfork`, without copying the process."""

    def __init__(self, argv: list[str], env: dict[str, str], cwd: str) -> None:
        self.argv, self.env, self.cwd = argv, env, cwd

    def spawn(self, streams: tuple[int, int, int]) -> int:
        """Start the program and return its pid; 0 if that failed, and then a forked child reports why."""
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
    """In the child: leave the agent's session, keep only these file descriptors, apply confinement, run `body`,
    exit."""
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


SESSION_FD = 3
INTERRUPT_GRACE_S = 1.0
"""Time for a session to end after an interrupt before it is killed with its variables."""
INTERRUPT_EVERY_S = 0.05
"""Interval between interrupts. One that comes before the code has started has no effect, so several are sent."""
LENGTH_BYTES = 4
CHUNK_BYTES = 2**18


class PythonSession:
    """The session's process, its current request, and the data sent to it and received from it."""

    def __init__(self, confinement: Confinement) -> None:
        import _socket

        ours, theirs = _socket.socketpair()
        self.fd, child_fd = ours.detach(), theirs.detach()
        self.pid = os.fork()
        if not self.pid:
            run_child(confinement, {SESSION_FD: child_fd}, lambda: Session(SESSION_FD).serve())
        os.close(child_fd)
        os.set_blocking(self.fd, False)
        self.request: int | None = None
        """The current request. Without one the process is stopped, so that none of its threads keeps running."""
        self.deadline = self.cpu_deadline = self._kill_at = 0.0
        self.reason = NO_LIMIT
        self._cpu_started = 0.0
        self._to_send = memoryview(b"")
        self._received = bytearray()
        self._max_report_bytes = 0

    def ask(self, request: int, limit: Limit, source: bytes, cpu_used: float) -> None:
        self.request, self.reason = request, NO_LIMIT
        self._cpu_started = self._cpu_time_s()
        self.deadline = time.monotonic() + limit.wall_s
        self.cpu_deadline = cpu_used + limit.cpu_s
        self._max_report_bytes = max_report_bytes(limit.output) + OVERHEAD_BYTES // 2
        lengths = len(source).to_bytes(LENGTH_BYTES, "big") + limit.output.to_bytes(LENGTH_BYTES, "big")
        self._to_send = memoryview(lengths + source)
        kill(self.pid, _signal.SIGCONT)
        self._send()

    def cpu_us(self) -> int:
        """Return the CPU time in microseconds that the process has used since the request."""
        return max(0, int((self._cpu_time_s() - self._cpu_started) * 1e6))

    def _cpu_time_s(self) -> float:
        try:
            return time.clock_gettime((~self.pid << 3) | 2)  # the clock id that clock_getcpuclockid(3) returns
        except OSError:
            return 0.0

    @property
    def is_sending(self) -> bool:
        return bool(self._to_send)

    def events(self) -> int:
        """Return the poll events to wait for."""
        return select.POLLIN | select.POLLOUT if self.is_sending else select.POLLIN

    def exchange(self) -> bytes | None:
        """Send and read without blocking, and return the report when it is complete. Raises EOFError if the process
        ended, or sent an unexpected or too large report."""
        if self.is_sending:
            self._send()
        try:
            part = os.read(self.fd, CHUNK_BYTES)
        except BlockingIOError:
            return None
        if not part or self.request is None:
            raise EOFError
        self._received += part
        return self._report()

    def _send(self) -> None:
        try:
            self._to_send = self._to_send[os.write(self.fd, self._to_send[:CHUNK_BYTES]) :]
        except BlockingIOError:
            return
        except OSError:  # the process has ended, which the next read shows
            self._to_send = self._to_send[:0]

    def _report(self) -> bytes | None:
        length = int.from_bytes(self._received[:LENGTH_BYTES], "big")
        end = LENGTH_BYTES + length
        if len(self._received) < LENGTH_BYTES or len(self._received) < end <= self._max_report_bytes:
            return None
        if len(self._received) != end:
            raise EOFError
        report = bytes(self._received[LENGTH_BYTES:])
        self._received.clear()
        return report

    def interrupt(self, reason: int) -> None:
        """Raise KeyboardInterrupt in the code, and kill the session if that does not end it. Called until it has
        ended."""
        now = time.monotonic()
        if not self.reason:
            self.reason, self._kill_at = reason, now + INTERRUPT_GRACE_S
        if now >= self._kill_at:
            kill(self.pid)
        else:
            self.deadline = now + INTERRUPT_EVERY_S
            kill(self.pid, _signal.SIGINT)
