"""The program that runs CPU-heavy functions: a fork server, and the workers it forks.

The fork server imports slow modules once and then only forks, so a worker starts in milliseconds, shares memory with
the others and inherits neither sockets nor locks. A worker runs one task at a time, in its main thread. It is killed
when its connection is closed, and all processes end with the server, however that ends.

Why not Pebble or `multiprocessing`: neither limits CPU time, adds modules to a running fork server, or gives workers a
fixed hash seed, and Pebble is LGPL."""

import contextlib
import faulthandler
import gc
import importlib
import os
import pickle
import resource
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

from nemo_gym.common.paths import make_importable
from nemo_gym.compute.protocol import FRAME, MAX_TEXT_CHARS, ForkRequest, Kind, Module, Task, frame_bytes

MAX_TASKS = 2000
"""After this many tasks a worker is replaced, since caches of libraries grow."""
NICENESS = 5
"""Where cores are scarce, the event loop comes first: with 1,000 tasks waiting and twice as many processes as cores,
this halves its p99 lag."""
WARM_UP = "warm_up"
"""The name of an optional function of a module. It is called once, after the import and before any task, for what is
slow only the first time, such as importing a library or filling its caches."""
_PR_SET_PDEATHSIG = 1
_warm: set[str] = set()


class ForkServer:
    """Forks a worker for every connection it receives, kills it when that is closed, and reports its exit code."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._connections: dict[int, socket.socket] = {}
        """The worker's end of its connection, by process id."""
        self._child_exited, wakeup = socket.socketpair()
        wakeup.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakeup.fileno(), warn_on_full_buffer=False)
        self._wakeup = wakeup
        self._poll = select.poll()
        for connection in (control, self._child_exited):
            self._poll.register(connection, select.POLLIN)

    def serve(self) -> None:
        """Work until the server closes the control connection."""
        with contextlib.suppress(ConnectionError):
            while True:
                for fd, _event in self._poll.poll():
                    if fd == self._control.fileno():
                        self._accept()
                    elif fd == self._child_exited.fileno():
                        self._child_exited.recv(4096)
                        self._reap()
                    else:
                        self._kill(fd)
        for pid in self._connections:
            os.kill(pid, signal.SIGKILL)

    def _accept(self) -> None:
        head, fds, _flags, _address = socket.recv_fds(self._control, FRAME.size, 1)
        if not head:
            raise ConnectionResetError
        request: ForkRequest = pickle.loads(_receive(self._control, FRAME.unpack(head)[1]))
        connection = socket.socket(fileno=fds[0])
        for module in request.modules:
            with contextlib.suppress(Exception):  # the worker imports it again and reports the error
                _import(module)
        gc.freeze()  # so that no collection in a worker touches, and thereby copies, what all share
        self._fork(connection, request)

    def _fork(self, connection: socket.socket, request: ForkRequest) -> None:
        fork_server = os.getpid()
        try:
            pid = os.fork()
        except OSError:
            traceback.print_exc()
            connection.close()
            return
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for other in (self._control, self._child_exited, self._wakeup, *self._connections.values()):
                other.close()
            _run_worker(connection, request, fork_server)
        self._connections[pid] = connection
        self._poll.register(connection, 0)  # which reports nothing but the other end being closed

    def _kill(self, fd: int) -> None:
        self._poll.unregister(fd)
        for pid, connection in self._connections.items():
            if connection.fileno() == fd:
                os.kill(pid, signal.SIGKILL)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = ended
                with self._connections.pop(pid) as connection, contextlib.suppress(OSError, KeyError):
                    code = os.waitstatus_to_exitcode(status)
                    connection.send(frame_bytes(Kind.EXITED, str(code)), socket.MSG_DONTWAIT)
                    self._poll.unregister(connection)


def _run_worker(connection: socket.socket, request: ForkRequest, fork_server: int) -> None:
    """Everything a worker does; it does not return."""
    try:
        _die_with(fork_server)
        for limit, value in ((resource.RLIMIT_AS, request.memory_bytes), (resource.RLIMIT_CORE, 0)):
            with contextlib.suppress(ValueError):  # a stricter limit is set already, or the system has none
                resource.setrlimit(limit, (value, value))
        faulthandler.enable()
        os.nice(NICENESS)
        is_intact, tasks = True, 0
        while is_intact and tasks < MAX_TASKS and _peak_memory_bytes() <= request.memory_bytes / 2:
            length = FRAME.unpack(_receive(connection, FRAME.size))[1]
            is_intact = _run_task(connection, pickle.loads(_receive(connection, length)))
            tasks += 1
    except ConnectionError:
        pass
    except BaseException:
        traceback.print_exc()
    os._exit(0)


def _run_task(connection: socket.socket, task: Task) -> bool:
    """Run a task and send its outcome; False if this process should not run another.

    STARTED is sent after the import, which does not count against the time limits.
    """
    try:
        function: Callable[..., Any] = reduce(getattr, task.function.split("."), _import(task.module))
    except Exception as error:
        connection.sendall(frame_bytes(Kind.FAILED, f"cannot be imported: {error!r}"))
        return True
    connection.sendall(frame_bytes(Kind.STARTED, str(os.getpid())))
    outcome = _outcome(function, task.arguments)
    connection.sendall(outcome)
    return Kind(outcome[0]) not in (Kind.OUT_OF_MEMORY, Kind.INTERPRETER_FAILED)


def _outcome(function: Callable[..., Any], arguments: bytes) -> bytes:
    try:
        return _returned(function(*pickle.loads(arguments)))
    except MemoryError:
        return frame_bytes(Kind.OUT_OF_MEMORY)
    except SystemError as error:  # an internal error of the interpreter, such as a counter left wrong by a signal
        return frame_bytes(Kind.INTERPRETER_FAILED, repr(error))
    except Exception as error:
        return _raised(error)
    except BaseException as error:
        return frame_bytes(Kind.FAILED, f"raised {error!r}")


def _returned(value: Any) -> bytes:
    try:
        return frame_bytes(Kind.VALUE, pickle.dumps(value, pickle.HIGHEST_PROTOCOL))
    except MemoryError:
        raise
    except Exception as error:
        return frame_bytes(Kind.FAILED, f"returned a {type(value).__name__}, which cannot be pickled: {error!r}")


def _raised(error: Exception) -> bytes:
    """The error as the server can raise it again, with its traceback as a note."""
    trace = "".join(traceback.format_exception(error))[-MAX_TEXT_CHARS:]
    try:
        error.add_note(f"In a compute worker:\n{trace}")
        pickled = pickle.dumps(error, pickle.HIGHEST_PROTOCOL)
        pickle.loads(pickled)
    except Exception:
        return frame_bytes(Kind.FAILED, f"raised an error that cannot be pickled:\n{trace}")
    return frame_bytes(Kind.RAISED, pickled)


def _import(module: Module) -> Any:
    if module.folder is not None and module.name not in sys.modules:
        make_importable(module.name.partition(".")[0], Path(module.folder))
    imported = importlib.import_module(module.name)
    if module.name not in _warm:
        getattr(imported, WARM_UP, int)()
        _warm.add(module.name)
    return imported


def _receive(connection: socket.socket, count: int) -> bytes:
    received = bytearray()
    while len(received) < count:
        part = connection.recv(min(count - len(received), 2**20))
        if not part:
            raise ConnectionResetError
        received += part
    return bytes(received)


def _peak_memory_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _die_with(parent: int) -> None:
    """Have this process killed when its parent ends. Where the system cannot do that, only idle workers notice."""
    if sys.platform == "linux":
        import ctypes  # which a process that only sends tasks does not need

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def main() -> None:
    """Run the fork server. Arguments: the control connection and the process id of the server."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the server decides when its workers end
        signal.signal(number, signal.SIG_IGN)
    _die_with(int(sys.argv[2]))
    ForkServer(socket.socket(fileno=int(sys.argv[1]))).serve()
