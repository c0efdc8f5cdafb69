"""Ctrl+C and SIGTERM in commands and workers: the first one stops the process in good order, the second one ends it at
once.

A program that uses this package as a library handles signals itself, and nothing here changes that."""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator

INTERRUPTED = 130
"""The exit code of a process that was interrupted."""
STOPPING = "Stopping. Press Ctrl+C again to stop at once."

Stop = Callable[[], object]


class Interrupts:
    """The interrupts that this process has received, and what stops it."""

    def __init__(self) -> None:
        self.count, self.received_at = 0, 0.0
        self.is_handled = False
        """False in a program that handles signals itself: then KeyboardInterrupt may be Ctrl+C at any time."""
        self.process_groups: set[int] = set()
        """Groups of child processes that end with this one, also if it has no time to stop them."""
        self._stop: Stop | None = None

    @property
    def may_be_keyboard(self) -> bool:
        """True if a KeyboardInterrupt may come from a signal. Else code of a server has raised it."""
        return self.count > 0 or not self.is_handled

    @contextlib.contextmanager
    def handled(self) -> Iterator[None]:
        """Handle SIGINT, even if a shell started this process with it ignored, and SIGTERM while the block runs. The
        first one raises KeyboardInterrupt, or calls what `stopping_with` was given."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        was_handled, self.is_handled, self.count = self.is_handled, True, 0
        try:
            yield
        finally:
            self.is_handled = was_handled
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextlib.contextmanager
    def stopping_with(self, stop: Stop | None) -> Iterator[None]:
        """Call `stop` for the first interrupt, whatever the main thread does then. It must be safe at any point of the
        program, such as `loop.call_soon_threadsafe`. None: raise KeyboardInterrupt in the code that runs."""
        before, self._stop = self._stop, stop
        try:
            yield
        finally:
            self._stop = before

    def exit_at_once(self) -> None:
        """End this process and its process groups, without any cleanup."""
        for group in self.process_groups:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
        os._exit(INTERRUPTED)

    def receive(self) -> None:
        """Count an interrupt. The second one ends this process."""
        self.count += 1
        if self.count > 1:
            self.exit_at_once()
        self.received_at = time.monotonic()

    def _on_signal(self, _number: int, _frame: object) -> None:
        if self._stop is None:
            self.receive()
            raise KeyboardInterrupt
        self._stop()  # first: once the interrupt is counted, the watchdog may raise an exception right here
        self.receive()
        say_stopping()


def say_stopping() -> None:
    """Tell the user what a second Ctrl+C does. Not by `sys.stderr`, which the interrupted code may be using."""
    with contextlib.suppress(OSError):
        os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, f"\n{STOPPING}\n".encode())


interrupts = Interrupts()
