"""Functions for compute workers, good and bad."""

import contextlib
import ctypes
import importlib
import os
import signal
import stat
import sys
import threading
import time
from typing import Any

from nemo_gym.compute.protocol import FRAME, Kind


def double(number: int) -> int:
    return 2 * number


def process_id() -> int:
    return os.getpid()


def is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def loop_for_ever() -> None:
    while True:
        pass


def ignore_every_signal() -> None:
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)
    loop_for_ever()


def take_gigabytes(count: int) -> int:
    return len(bytearray(count * 2**30))


def leave(code: int) -> None:
    os._exit(code)


def die_inside_a_frame() -> None:
    """Begin an answer that what the fork server sends afterwards would complete."""
    header = FRAME.pack(Kind.VALUE, 20, 0) + b"x" * 10
    for number in range(3, 100):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                os.write(number, header)
    os._exit(1)


def crash() -> int:
    return ctypes.string_at(0)[0]


def give_lambda() -> Any:
    return lambda: None


def give_megabytes(count: int) -> bytes:
    return b"x" * (count * 2**20)


def print_garbage() -> str:
    print("\0garbage\0" * 1000, flush=True)
    os.write(1, b"\xff" * 100_000)
    return "done"


def read_input() -> str:
    return sys.stdin.read()


def fail(message: str) -> None:
    raise ValueError(message)


class StubbornError(Exception):
    """One that cannot be made again from its arguments."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(one)


def fail_stubbornly() -> None:
    raise StubbornError("one", "two")


def exit_politely() -> None:
    sys.exit("bye")


def break_interpreter_once(file: str) -> int:
    """Fail as an interpreter with an internal error does, unless a process did before and could note it."""
    if not os.path.exists(file):
        with contextlib.suppress(OSError), open(file, "w"):
            pass
        raise SystemError("AST constructor recursion depth mismatch")
    return os.getpid()


def sleep(seconds: float, value: Any = None) -> Any:
    time.sleep(seconds)
    return value


def use_cpu_and_stop(seconds: float) -> str:
    """Compute until that much CPU time is used, stop until somebody sends SIGCONT, and do so again."""
    _use_cpu(seconds)
    os.kill(os.getpid(), signal.SIGSTOP)
    _use_cpu(seconds)
    return "done"


def _use_cpu(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def wait_for_file(path: str) -> None:
    while not os.path.exists(path):
        time.sleep(0.01)


def touch(path: str) -> None:
    with open(path, "w"):
        pass


def touch_and_sleep(path: str, seconds: float) -> None:
    touch(path)
    time.sleep(seconds)


def touch_and_loop(path: str) -> None:
    touch(path)
    loop_for_ever()


def open_files() -> list[str]:
    """What the files that this process holds open are."""
    here = "/proc/self/fd"
    return [os.readlink(f"{here}/{number}") for number in os.listdir(here) if os.path.exists(f"{here}/{number}")]


def hash_row(text: str) -> int:
    return hash(text)


def import_module(name: str) -> str:
    return importlib.import_module(name).__name__


def process_id_for(_text: str) -> int:
    return os.getpid()
