"""The agent: the first process of a sandbox. It starts commands, enforces what rlimits cannot, and ends everything.

In a PID namespace it is pid 1: when it exits, the kernel kills all other processes. Elsewhere it is a child subreaper
and kills its descendants. It never runs model-written code in its own process.

Starting an interpreter costs more than everything else about a sandbox. So a fork server, one started interpreter,
can become the agent of every sandbox by forking. It knows nothing of a sandbox except its open files: the child reads
its own settings, so no sandbox inherits the settings of another."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import marshal
import os
import resource
import select
import sys
import time

from nemo_gym.sandbox.inside import frames
from nemo_gym.sandbox.inside.confine import (
    PR_SET_DUMPABLE,
    Confinement,
    PidNamespaces,
    continue_in_pid_namespace,
    enter_namespaces,
    give_up_privileges,
    prctl,
)
from nemo_gym.sandbox.inside.frames import frame, pack, read_exactly, unpack, write_all
from nemo_gym.sandbox.inside.jobs import (
    Command,
    Job,
    Limit,
    PythonSession,
    are_folders_full,
    deleted_bytes,
    end_descendants,
    inodes_used,
    kill,
    kill_processes,
    processes,
)
from nemo_gym.sandbox.inside.programs import read_file, run_command, run_program, write_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any

CONTROL_FD = 3
CHECK_EVERY_S = 0.05
"""Interval of usage checks while a job runs. Shorter jobs are not checked."""
ERROR_BYTES = 4096
"""Bytes reserved for an error message."""
DISK_EVERY_S = 0.5
MAX_UNCOUNTED = 4
"""Maximum consecutive failures to count open files: processes that start or end cannot be read for a moment."""


class Agent:
    """Serves requests from the host until the host is gone."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._confinement = Confinement(settings)
        self._root: int | None = None if settings["pid_namespace"] else os.getpid()
        self._poll = select.poll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._jobs: dict[int, Job] = {}
        self._session: PythonSession | None = None
        self._was_session_lost = False
        """True if the session ended while idle. The next request gets that as its result."""
        self._reaped_cpu = self._cpu_total = 0.0
        self._idle_cpu = 0.0
        """CPU time when the last job ended. What is used after that is used by processes left behind."""
        self._has_strays = False
        """True if an action may have left processes behind, until a check finds none."""
        self._next_check = self._next_disk_check = 0.0
        self._uncounted = 0
        wake_read, wake_write = os.pipe()
        for fd in (wake_read, wake_write):
            os.set_blocking(fd, False)
        _signal.signal(_signal.SIGCHLD, lambda *_: None)
        _signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        self._wake_fd = wake_read
        self._listen(wake_read, self._reap)
        self._listen(CONTROL_FD, self._receive)

    def serve(self) -> None:
        if self._settings["session"]:
            self._start_session()
        self._reply(0, frames.READY, str(os.getpid()).encode())
        while True:
            for fd, _ in self._poll.poll(self._pause_ms()):
                if handler := self._handlers.get(fd):
                    handler()
            if self._is_busy() or self._has_strays:
                self._check()

    def _is_busy(self) -> bool:
        return bool(self._jobs) or (self._session is not None and self._session.request is not None)

    def _pause_ms(self) -> int | None:
        if not self._is_busy() and not self._has_strays:
            return None
        deadlines = [job.deadline for job in self._jobs.values()]
        if self._session and self._session.request is not None:
            deadlines.append(self._session.deadline)
        return max(0, int((min([*deadlines, self._next_check]) - time.monotonic()) * 1000) + 1)

    def _listen(self, fd: int, handler: Callable[[], None], events: int = select.POLLIN) -> None:
        self._handlers[fd] = handler
        self._poll.register(fd, events)

    def _forget(self, fd: int) -> None:
        if self._handlers.pop(fd, None):
            self._poll.unregister(fd)
            os.close(fd)

    def _reply(self, request: int, kind: int, payload: bytes) -> None:
        write_all(CONTROL_FD, frame(request, kind, payload))

    def _receive(self) -> None:
        request, kind, length = frames.HEADER.unpack(read_exactly(CONTROL_FD, frames.HEADER.size))
        fields = unpack(read_exactly(CONTROL_FD, length))
        if not self._is_busy() and not self._has_strays:
            self._next_check = time.monotonic() + CHECK_EVERY_S
        try:
            self._handle_with_retry(request, kind, fields)
        except Exception as error:
            self._reply(request, frames.FAILED, reason(error))

    def _handle_with_retry(self, request: int, kind: int, fields: list[bytes]) -> None:
        try:
            self._handle(request, kind, fields)
        except BlockingIOError:  # the process limit is reached: kill what earlier jobs left behind
            kill_processes(self._root, keep=self._expected())
            self._reap()
            self._handle(request, kind, fields)

    def _handle(self, request: int, kind: int, fields: list[bytes]) -> None:
        if kind in (frames.EXEC, frames.PROGRAM):
            self._start_job(request, kind, fields)
        elif kind == frames.PYTHON:
            self._ask_session(request, fields)
        elif kind == frames.WRITE:
            self._start_file_job(request, lambda: write_file(*fields))
        elif kind == frames.READ:
            self._start_file_job(request, lambda: read_file(*fields), output=int(fields[1]))
        elif kind == frames.CANCEL:
            self._cancel(int(fields[0]))

    def _cancel(self, request: int) -> None:
        if job := self._jobs.get(request):
            self._end(job, frames.CANCELLED)
        elif self._session is not None and self._session.request == request:
            self._session.interrupt(frames.CANCELLED)

    def _start_job(self, request: int, kind: int, fields: list[bytes]) -> None:
        options, cwd, stdin, environment, arguments = fields
        names = [field.decode("utf-8", "surrogateescape") for field in unpack(environment)]
        env = dict(zip(names[::2], names[1::2], strict=True))
        argv = [field.decode("utf-8", "surrogateescape") for field in unpack(arguments)]
        wall_ms, cpu_ms, output = frames.OPTIONS.unpack(options)
        folder = cwd.decode()

        def body() -> None:
            if kind == frames.EXEC:
                run_command(argv, env, folder)
            run_program(argv[0], argv[1:], env, folder)

        job = Job(request, Limit(wall_ms, cpu_ms, output), stdin, self._cpu_total)
        is_command = kind == frames.EXEC and self._confinement.is_namespaced
        self._start(job, body, Command(argv, env, folder) if is_command else None)

    def _start_file_job(self, request: int, body: Callable[[], None], *, output: int = 0) -> None:
        """Read and write files in a confined child, so that links made by the model cannot lead outside."""
        self._start(Job(request, Limit(60_000, 60_000, output + ERROR_BYTES), b"", self._cpu_total), body)

    def _start(self, job: Job, body: Callable[[], None], command: Command | None = None) -> None:
        job.start(self._confinement, body, command)
        self._jobs[job.request] = job
        for fd in job.streams:
            self._listen(fd, lambda fd=fd: None if job.drain(fd) else self._forget(fd))  # type: ignore[misc]
        if job.input_fd >= 0:
            feed = lambda: None if job.feed() else self._forget(job.input_fd)  # noqa: E731
            self._listen(job.input_fd, feed, select.POLLOUT)

    def _start_session(self) -> PythonSession:
        session = self._session = PythonSession(self._confinement)
        self._listen(session.fd, self._serve_session)
        return session

    def _ask_session(self, request: int, fields: list[bytes]) -> None:
        if self._was_session_lost:
            self._was_session_lost = False
            self._reply(request, frames.RESULT, lost_session(frames.NO_LIMIT))
            return
        session = self._session or self._start_session()
        if session.request is not None:
            raise RuntimeError("the session is busy")
        session.ask(request, Limit(*frames.OPTIONS.unpack(fields[0])), fields[1], self._cpu_total)
        if session.is_sending:
            self._poll.modify(session.fd, session.events())

    def _serve_session(self) -> None:
        """Send pending input to the session, and read its report, a part of it, or the end of its process."""
        session = self._session
        assert session is not None
        was_sending = session.is_sending
        try:
            report = session.exchange()
        except (EOFError, OSError):
            self._session_died(session)
            return
        if was_sending:
            self._poll.modify(session.fd, session.events())
        if report is not None:
            self._session_replied(session, report)

    def _session_replied(self, session: PythonSession, report: bytes) -> None:
        request, session.request = session.request, None
        assert request is not None
        kill(session.pid, _signal.SIGSTOP)
        self._action_ended()
        self._reply(
            request, frames.RESULT, pack(frames.OUTCOME.pack(0, session.reason, False, session.cpu_us()), report)
        )

    def _session_exited(self, session: PythonSession) -> None:
        """Read what the session sent before it exited. A forked process may still hold its end of the socket."""
        self._serve_session()
        if self._session is session:
            self._session_died(session)

    def _session_died(self, session: PythonSession) -> None:
        self._session = None
        self._forget(session.fd)
        kill(session.pid)
        self._action_ended()
        self._was_session_lost = session.request is None
        if session.request is not None:
            self._reply(session.request, frames.RESULT, lost_session(session.reason))

    def _action_ended(self) -> None:
        self._idle_cpu = self._cpu_total
        self._has_strays = True

    def _reap(self) -> None:
        try:  # noqa: SIM105 - contextlib takes milliseconds to import
            os.read(self._wake_fd, 65536)
        except BlockingIOError:
            pass
        while True:
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                self._has_strays = False
                return
            if not pid:
                return
            cpu = used.ru_utime + used.ru_stime
            self._reaped_cpu += cpu
            self._cpu_total = max(self._cpu_total, self._reaped_cpu)
            if self._session and self._session.pid == pid:
                self._session_exited(self._session)
            for job in [job for job in self._jobs.values() if job.pid == pid]:
                self._finish(job, os.waitstatus_to_exitcode(status), cpu)

    def _finish(self, job: Job, code: int, cpu_s: float) -> None:
        outcome = job.outcome(code, cpu_s)
        del self._jobs[job.request]
        for fd in (*job.streams, job.input_fd):
            self._forget(fd)
        self._action_ended()
        self._reply(job.request, frames.RESULT, outcome)

    def _expected(self) -> set[int]:
        """Return the processes that belong to current jobs and the session."""
        session = {self._session.pid} if self._session else set()
        return session | {job.pid for job in self._jobs.values()}

    def _check(self) -> None:
        now = time.monotonic()
        for job in list(self._jobs.values()):
            if now >= job.deadline:
                self._end(job, frames.TIME)
        session = self._session
        if session and session.request is not None and now >= session.deadline:
            session.interrupt(frames.TIME)
        if now >= self._next_check:
            self._next_check = now + CHECK_EVERY_S
            self._check_usage(now)

    def _check_usage(self, now: float) -> None:
        limits, running = self._settings, processes(self._root)
        self._cpu_total = self._reaped_cpu + sum(process.cpu_s for process in running)
        self._has_strays = any(process.pid not in self._expected() for process in running if not process.is_zombie)
        if not self._is_busy() and self._cpu_total - self._idle_cpu > limits["cpu_s"]:
            self._end_all(frames.CPU)
        if sum(process.memory for process in running) > limits["memory"]:
            self._end_all(frames.MEMORY)
        elif sum(not process.is_zombie for process in running) > limits["processes"]:
            self._end_all(frames.PROCESSES)
        elif now >= self._next_disk_check:
            self._next_disk_check = now + DISK_EVERY_S
            if self._is_disk_full([process.pid for process in running if not process.is_zombie]):
                self._end_all(frames.DISK)
        for job in list(self._jobs.values()):
            if self._cpu_total - job.cpu_before > job.limit.cpu_s:
                self._end(job, frames.CPU)
        session = self._session
        if session and session.request is not None and self._cpu_total > session.cpu_deadline:
            session.interrupt(frames.CPU)

    def _is_disk_full(self, pids: list[int]) -> bool:
        limits = self._settings
        if limits["disk_folders"]:
            deleted, is_whole = deleted_bytes(pids)
            self._uncounted = 0 if is_whole else self._uncounted + 1
            return self._uncounted > MAX_UNCOUNTED or are_folders_full(
                limits["disk_folders"], max_bytes=limits["disk"] - deleted, max_files=limits["inodes"]
            )
        return any(inodes_used(path) > limits["inodes"] for path in limits["writable"])

    def _end(self, job: Job, reason: int) -> None:
        """Kill a job. If no other job runs, also kill all background processes."""
        job.kill(reason)
        if len(self._jobs) == 1:
            kill_processes(self._root, keep={self._session.pid} if self._session else set())

    def _end_all(self, reason: int) -> None:
        """Kill everything. An idle session stays, since it uses no more resources."""
        for job in self._jobs.values():
            job.kill(reason)
        keep: set[int] = set()
        if self._session and self._session.request is not None:
            self._session.reason = reason
        elif self._session:
            keep = {self._session.pid}
        kill_processes(self._root, keep=keep)


def reason(error: Exception) -> bytes:
    return f"{type(error).__name__}: {error}".encode(errors="replace")[:ERROR_BYTES]


def lost_session(limit: int) -> bytes:
    """Return the reply for a session whose process ended."""
    return pack(frames.OUTCOME.pack(-9, limit, False, 0), b"")


def set_limits(settings: dict[str, Any]) -> None:
    """Set the limits that children inherit. CPU time is set for each job separately."""
    for name, value in settings["rlimits"].items():
        number = getattr(resource, name)
        hard = resource.getrlimit(number)[1]
        allowed = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(number, (allowed, allowed))


def prepare_interpreter(settings: dict[str, Any]) -> None:
    """Prepare what children inherit from this interpreter: environment variables and imported modules."""
    os.umask(0o022)
    os.environ.clear()
    os.environ.update(settings["env"])
    sys.path.extend(path for path in settings["python_path"] if path not in sys.path)
    for name in settings["preload"]:
        __import__(name)
    if "numpy.random" in sys.modules:  # imported before a fork, it would give every sandbox the same numbers
        sys.modules["numpy.random"].seed()
    null = os.open("/dev/null", os.O_RDWR)
    for stream in range(3):
        os.dup2(null, stream)
    os.close(null)


def confine(settings: dict[str, Any]) -> None:
    """Confine this process: namespaces unless bubblewrap has made them, user, limits, folder."""
    if inner := settings["namespaces"]:
        enter_namespaces(inner)
    become_user(settings)
    if inner:
        give_up_privileges(inner)
    prepare_interpreter(settings)
    set_limits(settings)
    os.chdir(settings["workdir"])
    for fd in os.listdir("/proc/self/fd"):
        if int(fd) > 2 and os.path.exists(f"/proc/self/fd/{fd}"):
            os.set_inheritable(int(fd), False)  # commands get their three streams and nothing else


def run_agent(settings: dict[str, Any]) -> None:
    """Confine this process and serve requests until the host is gone. Does not return."""
    try:
        confine(settings)
        agent = Agent(settings)
    except Exception as error:
        write_all(CONTROL_FD, frame(0, frames.FAILED, reason(error)))
        os._exit(1)
    try:
        agent.serve()
    except (EOFError, OSError):
        pass
    finally:
        if not settings["pid_namespace"]:
            end_descendants()
        os._exit(0)


def become_user(settings: dict[str, Any]) -> None:
    """Become the sandbox's own user, if the settings name one."""
    if settings["uid"] is not None:
        os.setgroups([])
        os.setresgid(settings["uid"], settings["uid"], settings["uid"])
        os.setresuid(settings["uid"], settings["uid"], settings["uid"])


FORKED = ("ctypes", "ast", "json", "traceback", "fcntl", "_socket")
"""Modules that agents or sessions import later: importing them once saves time in every fork."""


def main(settings: dict[str, Any]) -> None:
    """Run the fork server, or the agent of one sandbox. The interpreter of a sandbox starts here."""
    if settings["is_fork_server"]:
        serve_forks(settings)
    else:
        run_agent(settings)


def serve_forks(settings: dict[str, Any]) -> None:
    """Fork an agent for every received pair of open files: its control socket and its error stream."""
    import socket

    prepare_interpreter(settings)
    for name in FORKED:
        __import__(name)
    if settings["owns_no_pid_namespace"]:
        continue_in_pid_namespace()
    outer = PidNamespaces() if settings["pid_namespace"] else None
    prctl(PR_SET_DUMPABLE, 0)
    _signal.signal(_signal.SIGCHLD, _reap)
    control = socket.socket(fileno=CONTROL_FD)
    while True:
        request, fds, _flags, _address = socket.recv_fds(control, 1, 2)
        if not request:
            os._exit(0)
        if len(fds) == 2:
            _fork(outer, *fds)
        for fd in fds:
            os.close(fd)


def _fork(outer: PidNamespaces | None, control_fd: int, error_fd: int) -> None:
    """Fork an agent and send the host its pidfd. A byte without a descriptor means that the fork failed."""
    try:
        pid = outer.fork() if outer else os.fork()
        if not pid:
            _become_agent(control_fd, error_fd)
        fds = [os.pidfd_open(pid)]
    except OSError:
        fds = []
    _answer(control_fd, fds)


def _answer(control_fd: int, fds: list[int]) -> None:
    import socket

    with socket.socket(fileno=os.dup(control_fd)) as connection:
        try:  # noqa: SIM105 - contextlib is not imported in a sandbox
            socket.send_fds(connection, [b"\0"], fds)
        except OSError:  # the host has gone, so the agent will end
            pass
    for fd in fds:
        os.close(fd)


def _become_agent(control_fd: int, error_fd: int) -> None:
    try:
        os.dup2(error_fd, 2)
        os.dup2(control_fd, CONTROL_FD)
        os.closerange(CONTROL_FD + 1, 65536)
        os.setsid()
        prctl(PR_SET_DUMPABLE, 1)  # else its own entries in /proc, through which it enters namespaces, are not its own
        _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
        length = int.from_bytes(read_exactly(CONTROL_FD, 4), "big")
        run_agent(marshal.loads(read_exactly(CONTROL_FD, length)))
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(1)


def _reap(_number: int, _frame: FrameType | None) -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return
