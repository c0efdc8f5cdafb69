"""CPU time that this process has others use: compute workers and sandboxes. The profiler listens to it."""

import contextlib
from collections.abc import Callable, Iterator

Listener = Callable[[str, float], None]
_listeners: list[Listener] = []


def report_cpu_time(what: str, seconds: float) -> None:
    """Report what another process has just done for the running code, and the CPU time that it took."""
    for listener in _listeners:
        listener(what, seconds)


@contextlib.contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Call the listener for every report while the block runs, in the context of the code that the work was for."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)
