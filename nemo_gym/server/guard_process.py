"""The program that watches a process from outside: C code that holds Python's global lock stops all threads of it, so
nobody inside could say which line blocks, or react to Ctrl+C. Code that swallows every exception at the limit of
recursion swallows Ctrl+C, too.

It runs without the rest of this package, so that it starts in milliseconds and stays small. `Guard` in `watchdog.py`
starts it with five arguments: the process, the seconds of silence after which to kill it ("inf" for never), and three
pipes from it: heartbeats, stacks as `faulthandler` writes them when the process gets STACK_SIGNAL, and stacks that it
writes for each SIGINT or SIGTERM. It ends when the first pipe is closed."""

import contextlib
import os
import re
import select
import signal
import sys
import time

WATCHDOG_SIGNAL, STACK_SIGNAL = signal.SIGURG, signal.SIGWINCH
"""Ignored by default, so they harm nobody who does not expect them. The second one is sent rarely: `faulthandler`
writes no stack for Ctrl+C while it writes another."""
POLL_S = 0.25
POKE_EVERY_S = 1.0
MAX_GAP_S = 1.0
"""The most seconds of silence that one check counts: this process may have been stopped itself."""
REPORT_AFTER_S = 4.0
INTERRUPT_GRACE_S = 3.0
STACK_TRIES, STACK_WAIT_S = 5, 0.2
MAX_STACK_BYTES = 2**20
STACK_START = b"(most recent call first)"
FRAME = re.compile(r'  File "(.+)", line (\d+) in (.+)')
NOT_SHOWN = (os.path.dirname(os.__file__) + os.sep, "<frozen", os.path.join(os.path.dirname(__file__), "watchdog.py"))
ROLLOUT = re.compile(r"rollout \d+ \w*")
LOADING, SERVING, STOPPING = b"l", b"s", b"x"
"""The heartbeats: while servers load, which may take any time, after that, and after an interrupt was handled."""
BLOCKED = "\x1enemo-gym worker blocked by "
"""The start of the line that names, for the supervisor of a worker, the rollout that blocks it."""


def guard(pid: int, kill_after_s: float, beats: int, stacks: int, interrupts: int) -> None:
    """Watch the process until it ends."""
    silent_s, ignoring_s, looked_at, poke_at = 0.0, 0.0, time.monotonic(), 0.0
    interrupted, has_reported, beat = 0, False, LOADING
    own_interrupts = count_interrupts()
    while True:
        ready, _, _ = select.select([beats, stacks, interrupts], [], [], POLL_S)
        now = time.monotonic()
        gap_s, looked_at = min(now - looked_at, MAX_GAP_S), now
        silent_s, ignoring_s = silent_s + gap_s, ignoring_s + gap_s
        if stacks in ready:
            os.read(stacks, 65536)
        if interrupts in ready:
            interrupted += os.read(interrupts, 65536).count(STACK_START)
        if beats in ready:
            received = os.read(beats, 4096)
            if not received:
                return
            silent_s, has_reported, beat = 0.0, False, received[-1:]
        number = max(interrupted, len(own_interrupts))  # of a terminal, both processes get them
        if not number or beat == STOPPING:
            ignoring_s = 0.0
        if silent_s >= POLL_S * 2 and now >= poke_at:  # some C code handles signals, such as a regular expression
            signal_main_thread(pid, WATCHDOG_SIGNAL)
            poke_at = now + POKE_EVERY_S
        if silent_s >= REPORT_AFTER_S and not has_reported:
            has_reported = True
            if stack := read_stack(pid, stacks):
                report(f"No thread runs for {silent_s:.0f} s: C code blocks all of Python at {place_in(stack)}.")
        stuck_s, grace_s = max(silent_s, ignoring_s), POLL_S * 2 if number > 1 else INTERRUPT_GRACE_S
        is_stuck = bool(number) and stuck_s >= grace_s
        if is_stuck or (silent_s >= kill_after_s and beat != LOADING):
            why = "It was interrupted" if is_stuck else "It does not respond"
            what = "C code blocks it" if silent_s >= grace_s else "its code swallows the exception"
            stack = read_stack(pid, stacks)
            report(f"{why}, but {what} at {place_in(stack)}. Killing process {pid}.")
            report_rollout(stack)
            os.kill(pid, signal.SIGKILL)
            return


def count_interrupts() -> "list[int]":
    """The signals that this process gets, which grow: those of a terminal go to all its processes."""
    received: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _frame: received.append(number))
    return received


def signal_main_thread(pid: int, number: int) -> None:
    """Send a signal to the main thread. With `os.kill` another one gets it if the main thread has a signal to handle
    and waits for a core, and then the stack is that of a thread that does nothing."""
    import ctypes  # only if something blocks

    try:
        has_failed = ctypes.CDLL(None).tgkill(pid, pid, number)
    except AttributeError:  # not Linux, or an old C library
        os.kill(pid, number)
    else:
        if has_failed:
            raise ProcessLookupError(pid)


def read_stack(pid: int, stacks: int) -> "list[tuple[str, ...]]":
    """File, line and function of each frame, innermost first. Empty if the process does not react, such as if it is
    stopped. Raises ProcessLookupError if it has ended."""
    text = b""
    for _ in range(STACK_TRIES):  # it writes none while it writes another, such as for Ctrl+C
        signal_main_thread(pid, STACK_SIGNAL)
        while select.select([stacks], [], [], STACK_WAIT_S)[0] and len(text) < MAX_STACK_BYTES:
            if not (received := os.read(stacks, 65536)):
                raise ProcessLookupError(pid)
            text += received
        if text:
            break
    return [match.groups() for match in map(FRAME.match, text.decode(errors="replace").splitlines()) if match]


def place_in(stack: "list[tuple[str, ...]]") -> str:
    """The innermost line outside of the standard library."""
    shown = (f"{file}:{line} ({name})" for file, line, name in stack if not file.startswith(NOT_SHOWN))
    return next(shown, "an unknown place")


def report_rollout(stack: "list[tuple[str, ...]]") -> None:
    """Report to the supervisor whose rollout is on the stack, if that can be seen."""
    names = [name for _, _, name in stack if ROLLOUT.fullmatch(name)]
    if names:
        report(f"{BLOCKED}{names[0]} {place_in(stack)}")


def report(text: str) -> None:
    """Write a line for the supervisor. If that has ended, the guard still has a process to kill."""
    with contextlib.suppress(OSError):
        os.write(sys.stderr.fileno(), f"{text}\n".encode())


if __name__ == "__main__":
    try:
        guard(int(sys.argv[1]), float(sys.argv[2]), *map(int, sys.argv[3:]))
    except ProcessLookupError:
        sys.exit()
