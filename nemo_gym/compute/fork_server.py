"""The processes behind `nemo_gym.compute.pool`: a fork server, and the workers it forks.

The fork server imports what is slow to import and then does nothing but fork, so a worker costs milliseconds, shares
its memory with the others, and inherits neither sockets nor locks. Each worker does one task at a time, in its main
thread. All of them end when the server does, however it ends."""

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import os
import pickle
import resource
import select
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable
from enum import IntEnum
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

from nemo_gym.common.folder_imports import make_importable

ORDER = struct.Struct(">II")
"""Header of an order to the fork server: a worker's number, and the length of the ForkRequest that follows. Length 0
ends that worker."""
ENDING = struct.Struct(">Ii")
"""What the fork_server tells: the number of a worker and the code it ended with."""
FRAME = struct.Struct(">BQ")
"""The head of what a worker is told and tells: the kind of frame, the length of its payload."""

MAX_PAYLOAD_BYTES = 64 * 2**20
MAX_TEXT_CHARS = 5_000
MAX_TASKS = 2000
"""After this many a worker makes room for a fresh one: caches of libraries grow, and none should see many rows."""
REAP_EVERY_S = 0.02
NICENESS = 5
"""Where cores are scarce, the server's event loop comes first: with 1,000 tasks waiting and twice as many processes as
cores, its lag at p99 falls by about half."""
WARM_UP = "warm_up"
"""A module may have a function of this name. It is called once, after the import and before any task, to do what is
slow only at first: importing a library, filling its caches."""
_warm: set[str] = set()
_PR_SET_PDEATHSIG = 1


class Kind(IntEnum):
    """What a frame is."""

    TASK = 0
    READY = 1
    STARTED = 2
    VALUE = 3
    RAISED = 4
    OUT_OF_MEMORY = 5
    FAILED = 6


class Module(NamedTuple):
    """A module by its name, and the server's folder that it is from, if it is from one."""

    name: str
    folder: str | None = None


class ForkRequest(NamedTuple):
    """How a worker is to be: what is imported before it is forked, and how much memory it may have."""

    modules: tuple[Module, ...]
    memory_bytes: int


class Task(NamedTuple):
    """A function by its name, and its arguments, pickled."""

    module: Module
    function: str
    arguments: bytes


class ForkServer:
    """Forks a worker for every socket it is handed, ends those it is told to, and tells how they ended."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._alive: dict[int, int] = {}
        self._to_reap: set[int] = set()

    def serve(self) -> None:
        """Do as told until nobody is there to tell."""
        with contextlib.suppress(ConnectionError):
            while True:
                self._reap()
                if select.select([self._control], [], [], REAP_EVERY_S if self._to_reap else None)[0]:
                    self._obey()
        for pid in self._alive.values():
            os.kill(pid, signal.SIGKILL)

    def _obey(self) -> None:
        head, handed_over, _flags, _address = socket.recv_fds(self._control, ORDER.size, 1)
        if not head:
            raise ConnectionResetError
        number, length = ORDER.unpack(head)
        if length:
            birth: ForkRequest = pickle.loads(_exactly(self._control, length))
            with socket.socket(fileno=handed_over[0]) as connection:
                self._fork(number, connection, birth)
        elif number in self._alive:
            os.kill(self._alive[number], signal.SIGKILL)
            self._to_reap.add(number)

    def _fork(self, number: int, connection: socket.socket, birth: ForkRequest) -> None:
        for module in birth.modules:
            with contextlib.suppress(Exception):  # the worker tries again, and tells
                _imported(module)
        gc.freeze()  # so that no collection in a worker touches, and thereby copies, what all share
        fork_server = os.getpid()
        try:
            pid = os.fork()
        except OSError:
            traceback.print_exc()
            return
        if pid == 0:
            self._control.close()
            _work(connection, birth, fork_server)
        self._alive[number] = pid

    def _reap(self) -> None:
        for number in list(self._to_reap):
            ended, status = os.waitpid(self._alive[number], os.WNOHANG)
            if ended:
                self._to_reap.remove(number)
                del self._alive[number]
                self._control.sendall(ENDING.pack(number, os.waitstatus_to_exitcode(status)))


def _work(connection: socket.socket, birth: ForkRequest, fork_server: int) -> None:
    """All that a worker does; it does not return."""
    try:
        die_with(fork_server)
        for limit, most in ((resource.RLIMIT_AS, birth.memory_bytes), (resource.RLIMIT_CORE, 0)):
            with contextlib.suppress(ValueError):  # a stricter limit is in force already, or the system knows none
                resource.setrlimit(limit, (most, most))
        faulthandler.enable()
        os.nice(NICENESS)
        _tell(connection, Kind.READY, os.getpid().to_bytes(4))
        for _ in range(MAX_TASKS):
            _kind, length = FRAME.unpack(_exactly(connection, FRAME.size))
            _do(connection, pickle.loads(_exactly(connection, length)))
            if _most_memory_bytes() > birth.memory_bytes / 2:
                break
    except ConnectionError:
        pass
    except BaseException:
        traceback.print_exc()
    os._exit(0)


def _do(connection: socket.socket, task: Task) -> None:
    """Do a task and tell what came of it. The import is done before the start is told, since it is not timed."""
    try:
        function: Callable[..., Any] = reduce(getattr, task.function.split("."), _imported(task.module))
    except Exception as error:
        _tell(connection, Kind.FAILED, f"cannot be imported: {error!r}")
        return
    _tell(connection, Kind.STARTED)
    try:
        value = function(*pickle.loads(task.arguments))
    except MemoryError:
        _tell(connection, Kind.OUT_OF_MEMORY)
    except Exception as error:
        _tell(connection, *_raised(error))
    except BaseException as error:
        _tell(connection, Kind.FAILED, f"raised {error!r}")
    else:
        _tell(connection, *_returned(value))


def _imported(module: Module) -> Any:
    if module.folder is not None and module.name not in sys.modules:
        make_importable(module.name.partition(".")[0], Path(module.folder))
    imported = importlib.import_module(module.name)
    if module.name not in _warm:
        getattr(imported, WARM_UP, int)()
        _warm.add(module.name)
    return imported


def _returned(value: Any) -> tuple[Kind, bytes | str]:
    try:
        return Kind.VALUE, pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except MemoryError:
        return Kind.OUT_OF_MEMORY, b""
    except Exception as error:
        return Kind.FAILED, f"returned a {type(value).__name__}, which cannot be pickled: {error!r}"


def _raised(error: Exception) -> tuple[Kind, bytes | str]:
    """The error as it can be raised again elsewhere, with its trace as a note."""
    trace = "".join(traceback.format_exception(error))[-MAX_TEXT_CHARS:]
    try:
        error.add_note(f"In a compute worker:\n{trace}")
        pickled = pickle.dumps(error, pickle.HIGHEST_PROTOCOL)
        pickle.loads(pickled)
    except Exception:
        return Kind.FAILED, f"raised an error that cannot be pickled:\n{trace}"
    return Kind.RAISED, pickled


def _tell(connection: socket.socket, kind: Kind, told: bytes | str = b"") -> None:
    payload = told.encode(errors="replace")[:MAX_TEXT_CHARS] if isinstance(told, str) else told
    if len(payload) > MAX_PAYLOAD_BYTES:
        kind, payload = Kind.FAILED, b"gave %d bytes; at most %d are taken." % (len(payload), MAX_PAYLOAD_BYTES)
    connection.sendall(FRAME.pack(kind, len(payload)) + payload)


def _exactly(connection: socket.socket, count: int) -> bytes:
    received = bytearray()
    while len(received) < count:
        part = connection.recv(min(count - len(received), 2**20))
        if not part:
            raise ConnectionResetError
        received += part
    return bytes(received)


def _most_memory_bytes() -> int:
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def die_with(parent: int) -> None:
    """Have this process killed when its parent ends. Where the system offers no such thing, idle ones still notice."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def main() -> None:
    """What the fork_server's process runs."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the server decides when its workers end
        signal.signal(number, signal.SIG_IGN)
    die_with(int(sys.argv[2]))
    ForkServer(socket.socket(fileno=int(sys.argv[1]))).serve()
