"""Clean up in child processes if the code of a server calls `os.fork()`.

The child is a copy of this process in the middle of a rollout. It keeps none of the descriptors that are named here,
such as a locked output file, and it never comes back into our code, where it would make the rollouts of the parent a
second time. This needs a profile function in the child: only that is called when a coroutine yields to the loop."""

import contextlib
import os
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

RETURNED_IN_FORK = 1
"""The exit code of a forked child that returns from the code of a server."""


class _Forks:
    """The clean-up that forked children do first."""

    def __init__(self) -> None:
        self.is_registered = False
        self.open_stacks = 0
        self.closed: dict[int, tuple[int, int]] = {}
        """Descriptors to close, each with the device and inode of its file: the number may mean another one then."""

    def register(self) -> None:
        if not self.is_registered:
            self.is_registered = True
            os.register_at_fork(after_in_child=self.after_fork)

    def after_fork(self) -> None:
        for fd, file in self.closed.items():
            with contextlib.suppress(OSError):
                if _file_of(fd) == file:
                    os.close(fd)
        called = _called_by_us(sys._getframe(1)) if self.open_stacks else None
        if called is None:
            return

        def end_on_return(frame: FrameType, event: str, _value: Any) -> None:
            if frame is called and event == "return":  # also if it raises or yields
                os._exit(RETURNED_IN_FORK)

        sys.setprofile(end_on_return)


_forks = _Forks()


def close_in_forks(fd: int) -> None:
    """Have children that are forked from now on close a descriptor. It must not be one that programs inherit: uvloop
    forks to start them."""
    _forks.register()
    _forks.closed[fd] = _file_of(fd)


@contextlib.contextmanager
def ending_forks() -> Iterator[None]:
    """End children that the code of servers forks while the block runs, when they return from that code."""
    _forks.register()
    _forks.open_stacks += 1
    try:
        yield
    finally:
        _forks.open_stacks -= 1


def _file_of(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


def _called_by_us(frame: FrameType | None) -> FrameType | None:
    """The frame of a server's code that forks. None if we fork ourselves, or `multiprocessing`, whose children do not
    return."""
    called: FrameType | None = None
    while frame is not None:
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        if package == "multiprocessing":
            return None
        if package == "nemo_gym":
            return called
        called, frame = frame, frame.f_back
    return None
