"""The watchdog: finds code that blocks the event loop, says where, and interrupts it after `max_blocked_s`.

A thread watches the loop; code that does not block it pays nothing. The thread cannot raise an exception in the loop's
thread, so it sends a signal there, whose handler checks that the same task still runs and raises `BlockedError`. The
signal also ends system calls, such as a read from a socket. Only C code that holds Python's global lock goes on; a
`Guard`, which is another process, watches for that.

Signals are handled in the main thread. If the loop runs in another one, as in a notebook, blocking is only logged."""

import asyncio
import contextlib
import faulthandler
import inspect
import logging
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from nemo_gym.client.call_log import running_call
from nemo_gym.common.deadline import current_deadline, extend_deadlines
from nemo_gym.common.forks import close_in_forks
from nemo_gym.common.interrupts import interrupts
from nemo_gym.common.logging import RateLimitedLog
from nemo_gym.errors import BlockedError
from nemo_gym.server import guard_process
from nemo_gym.server.guard_process import (
    INTERRUPT_GRACE_S,
    LOADING,
    SERVING,
    STACK_SIGNAL,
    STOPPING,
    WATCHDOG_SIGNAL,
    place_in,
    report_rollout,
)

logger = logging.getLogger(__name__)
rate_limited = RateLimitedLog(logger)

CHECK_EVERY_S = 0.25
SUSPECT_AFTER_S = 0.1
BLOCKED_AFTER_S = 0.5
"""Longer than a garbage collection among thousands of rollouts, and far too long for all of them to wait."""
STOPPING_CHECK_EVERY_S = 0.05
"""After Ctrl+C. Many tasks may be about to block the loop, one after the other."""
RAISE_AGAIN_AFTER_S = 1.0
"""Code may catch the exception, and go on."""
KILL_GRACE_S = 5.0
"""Seconds after `max_blocked_s` when a worker whose loop is still blocked ends."""


@dataclass(slots=True)
class Handler:
    """A function that runs on the event loop, how often it blocked it, and for how long in total."""

    name: str
    times: int = 0
    seconds: float = 0.0


Handlers = dict[CodeType, Handler]
"""Two servers of one class share their code, and so their entry."""


def register_handler(handlers: Handlers, name: str, function: Callable[..., Any]) -> Handler | None:
    """Add a function, if its frames can be recognized."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return None
    if code in handlers:
        handlers[code].name += f" or {name}"
    return handlers.setdefault(code, Handler(name))


@dataclass(slots=True)
class Block:
    """A time in which the loop did not respond, and the task that has it now."""

    since: float
    task: "asyncio.Task[Any] | None" = None
    task_since: float = math.inf
    frames: tuple[FrameType, ...] = ()
    """The stack at the last look, innermost frame first."""
    blamed: FrameType | None = None
    """The frame of the handler that was reported."""
    blamed_since: float = 0.0
    stuck_task_since: float = 0.0
    """The start time of the task that was last reported as not to be interrupted."""


class Watchdog:
    """Schedules a callback on the running loop again and again. If it does not run in time, the handler whose frame is
    on the loop's stack at two moments blocks the loop; a loop that is only busy has another frame each time.

    With `ends_process`, a process whose loop stays blocked ends, so that its supervisor starts it again. Until
    `start_limits` is called, servers may be loading, which takes as long as it takes.
    """

    def __init__(self, handlers: Handlers, *, max_blocked_s: float = math.inf, ends_process: bool = False) -> None:
        self.handlers, self._max_blocked_s = handlers, max_blocked_s
        self._ends_process = ends_process
        kill_after_s = max_blocked_s + KILL_GRACE_S if ends_process else math.inf
        self._guard = Guard(kill_after_s=kill_after_s) if ends_process or interrupts.is_handled else None
        self._is_loading = True
        self._handled: dict[signal.Signals, Any] = {}
        """The handlers of signals, which the code of servers must not replace."""
        self._responded, self._stopped = threading.Event(), threading.Event()
        self._block: Block | None = None
        self._raised_in: asyncio.Task[Any] | None = None
        self._raise_again_at = 0.0
        self._opened = contextlib.ExitStack()
        self._watcher = threading.Thread(target=self._watch, name="nemo-gym-watchdog", daemon=True)

    def __enter__(self) -> None:
        self._loop, self._loop_thread = asyncio.get_running_loop(), threading.get_ident()
        self._can_interrupt = threading.current_thread() is threading.main_thread()
        if self._can_interrupt:
            before = signal.signal(WATCHDOG_SIGNAL, self._on_signal)
            self._opened.callback(self._restore_handler, before)
            handled = (signal.SIGINT, signal.SIGTERM) if interrupts.is_handled else ()
            self._handled = {number: signal.getsignal(number) for number in (WATCHDOG_SIGNAL, *handled)}
            if self._guard is not None:
                self._opened.enter_context(self._guard)
        self._watcher.start()

    def __exit__(self, *_error: object) -> None:
        self._stopped.set()
        self._responded.set()
        self._watcher.join()
        self._handled.clear()  # a turn of the loop that is still to come puts none of them back
        self._opened.close()

    async def start_limits(self) -> None:
        """The servers are loaded: from now on nothing may block the loop for long. What has blocked it so far ends
        when the loop goes on."""
        await asyncio.sleep(0)
        self._is_loading = False
        self._send_heartbeat()  # before anybody hears that the servers are ready, and may stop this process

    def _on_turn(self) -> None:
        """The loop goes on."""
        block = self._block
        if block is not None:
            extend_deadlines(time.monotonic() - block.since, blocking=block.task)
        self._responded.set()
        self._put_back_handlers()

    def _put_back_handlers(self) -> None:
        current = {number: signal.getsignal(number) for number in self._handled}
        replaced = [each for each, handler in self._handled.items() if current[each] != handler]
        if any(isinstance(getattr(current[each], "__self__", None), Watchdog) for each in replaced):
            return  # another collection in this process watches the loop, too
        for number in replaced:
            logger.warning("the code of a server has replaced the handler of %s, which is put back", number.name)
            signal.signal(number, self._handled[number])
        if replaced and self._guard is not None:
            self._guard.register_signals()

    def _restore_handler(self, before: Any) -> None:
        """Restore the handler of before, unless a watchdog that was started later has its own."""
        if signal.getsignal(WATCHDOG_SIGNAL) == self._on_signal:
            signal.signal(WATCHDOG_SIGNAL, before)

    def _watch(self) -> None:
        while not self._stopped.wait(CHECK_EVERY_S):
            self._send_heartbeat()
            self._responded.clear()
            if self._stopped.is_set():  # `__exit__` may have set both just before
                return
            since = time.monotonic()
            try:
                self._loop.call_soon_threadsafe(self._on_turn)
            except RuntimeError:  # the loop is closed
                return
            if not self._responded.wait(SUSPECT_AFTER_S):
                self._block = block = Block(since, frames=self._loop_frames())
                while not self._responded.wait(self._look_again_after_s()):
                    self._look(block)
                self._block = self._raised_in = None
                self._end_report(block)

    def _look_again_after_s(self) -> float:
        return STOPPING_CHECK_EVERY_S if interrupts.count else BLOCKED_AFTER_S - SUSPECT_AFTER_S

    def _look(self, block: Block) -> None:
        """Report what blocks the loop, and have it interrupted."""
        self._send_heartbeat()
        now, frames, task = time.monotonic(), self._loop_frames(), asyncio.current_task(self._loop)
        innermost = next((frame for frame in frames if frame.f_code in self.handlers), None)
        if innermost is not block.blamed:
            self._end_report(block)
            if innermost is not None and any(innermost is earlier for earlier in block.frames):
                self._report(block, innermost, place_in(_names(frames)), now)
        if task is not block.task or block.task_since == math.inf:
            block.task, block.task_since = task, now
        block.frames = frames
        if self._can_interrupt:
            signal.pthread_kill(self._loop_thread, WATCHDOG_SIGNAL)
        self._end_process_if_stuck(block, now)

    def _loop_frames(self) -> tuple[FrameType, ...]:
        """The stack of the loop's thread, innermost frame first."""
        return tuple(_stack(sys._current_frames().get(self._loop_thread)))

    def _report(self, block: Block, frame: FrameType, place: str, now: float) -> None:
        block.blamed, block.blamed_since = frame, block.since if block.task_since == math.inf else block.task_since
        handler = self.handlers[frame.f_code]
        handler.times += 1
        rate_limited.warning(
            handler.name,
            "%s blocks the event loop, and with it every other rollout, for %.1f s now, at %s. Run such work with "
            "nemo_gym.compute.pool, or make the handler a plain `def`, which runs in a thread.",
            handler.name,
            now - block.blamed_since,
            place,
        )

    def _end_report(self, block: Block) -> None:
        if block.blamed is not None:
            self.handlers[block.blamed.f_code].seconds += time.monotonic() - block.blamed_since
            block.blamed = None

    def _on_signal(self, _number: int, frame: FrameType | None) -> None:
        """Raise in the code that the loop's thread runs, if it is that which blocks the loop. Nothing else can run
        between this check and the exception."""
        self._put_back_handlers()
        block, now, task = self._block, time.monotonic(), asyncio.current_task(self._loop)
        if block is None or self._responded.is_set():
            return
        if task is self._raised_in and now < self._raise_again_at:
            return
        is_stopping = interrupts.count > 0 and now - block.since > BLOCKED_AFTER_S
        if not is_stopping and (task is not block.task or not self._is_over_limit(block, now)):
            return
        handler = next((self.handlers[each.f_code] for each in _stack(frame) if each.f_code in self.handlers), None)
        if handler is None and current_deadline() is None:
            return  # not the code of a server: it may take its time, such as to write records
        if handler is None and task is None and _is_own_callback(frame):
            return  # such as the timer that ends a rollout, which is late if threads of servers keep the loop waiting
        self._raised_in, self._raise_again_at = task, now + RAISE_AGAIN_AFTER_S
        if is_stopping and task is not None:
            task.cancel()
            raise asyncio.CancelledError
        name, place = "Code of a server" if handler is None else handler.name, place_in(_names(_stack(frame)))
        error = BlockedError(
            f"{name} blocked the event loop for {now - block.task_since:.1f} s, at {place}. Run such work with "
            "nemo_gym.compute.pool, or make the handler a plain `def`, which runs in a thread. The limits are "
            "`max_blocked_s` and the deadline of the rollout."
        )
        call = running_call.get()
        if call is not None:
            call.interruption = error
        raise error

    def _is_over_limit(self, block: Block, now: float) -> bool:
        """True if the task that runs has blocked the loop for too long, or past its deadline."""
        blocked_s, deadline = now - block.task_since, current_deadline()
        is_late = deadline is not None and block.task_since < deadline.at <= now
        return blocked_s >= self._max_blocked_s or (is_late and blocked_s >= BLOCKED_AFTER_S)

    def _end_process_if_stuck(self, block: Block, now: float) -> None:
        """End this process if the loop does not go on although its code was interrupted: it ignores the exception, or
        is in C code that does not handle signals."""
        stack = _names(block.frames)
        if interrupts.count and now - max(interrupts.received_at, block.since) > INTERRUPT_GRACE_S:
            logger.error("The code at %s does not stop, so this process ends at once.", place_in(stack))
            interrupts.exit_at_once()
        blocked_s = now - block.task_since
        if self._is_loading or self._responded.is_set() or blocked_s <= self._max_blocked_s + KILL_GRACE_S:
            return
        if self._ends_process:
            logger.error("The code at %s blocks the event loop, so this worker ends.", place_in(stack))
            report_rollout(stack)
            os.kill(os.getpid(), signal.SIGKILL)
        if block.stuck_task_since != block.task_since:
            block.stuck_task_since = block.task_since
            logger.error("The code at %s blocks the event loop and cannot be interrupted.", place_in(stack))

    def _send_heartbeat(self) -> None:
        if self._guard is not None:
            self._guard.send(STOPPING if interrupts.count else LOADING if self._is_loading else SERVING)


class Guard:
    """A process that notices if no thread of this one runs. It says at which line, ends this process if it does not
    react to Ctrl+C, and kills it after `kill_after_s`."""

    def __init__(self, *, kill_after_s: float) -> None:
        self._kill_after_s = kill_after_s
        self._heartbeats: int | None = None
        self._stacks: dict[signal.Signals, int] = {}
        self._opened = contextlib.ExitStack()

    def __enter__(self) -> None:
        read_ends, write_ends = zip(*(os.pipe() for _ in range(3)), strict=True)
        heartbeats, stacks, interrupted = write_ends
        arguments = [str(os.getpid()), str(self._kill_after_s), *map(str, read_ends)]
        program = [sys.executable, "-I", "-S", guard_process.__file__, *arguments]
        process = subprocess.Popen(
            program,
            pass_fds=read_ends,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=not interrupts.is_handled,
        )
        self._opened.callback(process.wait)
        for fd in read_ends:
            os.close(fd)
        for fd in write_ends:
            os.set_blocking(fd, False)  # a full pipe must not stop whoever writes
            self._opened.callback(os.close, fd)
            close_in_forks(fd)
        self._stacks = {STACK_SIGNAL: stacks}
        if interrupts.is_handled:
            self._stacks |= {signal.SIGINT: interrupted, signal.SIGTERM: interrupted}
        self.register_signals()
        for number in self._stacks:
            self._opened.callback(faulthandler.unregister, number)
        self._heartbeats = heartbeats

    def __exit__(self, *_error: object) -> None:
        self._heartbeats = None
        self._opened.close()

    def register_signals(self) -> None:
        """Have stacks written for signals, before what handles them in Python, also if that was replaced."""
        for number, fd in self._stacks.items():
            faulthandler.unregister(number)
            faulthandler.register(number, file=fd, all_threads=False, chain=True)

    def send(self, heartbeat: bytes) -> None:
        if self._heartbeats is not None:
            with contextlib.suppress(OSError):
                os.write(self._heartbeats, heartbeat)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl+C end a command within seconds while it runs code of servers itself, such as their checks of rows. That
    may block, and swallow KeyboardInterrupt."""
    if not interrupts.is_handled:
        yield
        return
    ended, guard = threading.Event(), Guard(kill_after_s=math.inf)

    def send_heartbeats() -> None:
        while not ended.wait(CHECK_EVERY_S):
            guard.send(LOADING)

    with guard, interrupts.stopping_with(None):
        sender = threading.Thread(target=send_heartbeats, name="nemo-gym-heartbeats", daemon=True)
        sender.start()
        try:
            yield
        finally:
            ended.set()
            sender.join()


def _names(frames: Iterable[FrameType]) -> list[tuple[str, ...]]:
    """File, line and function of each frame."""
    return [(frame.f_code.co_filename, str(frame.f_lineno), frame.f_code.co_name) for frame in frames]


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_own_callback(frame: FrameType | None) -> bool:
    """True if the event loop has called a function of this package."""
    called = ""
    for each in _stack(frame):
        name = each.f_globals.get("__name__", "")
        if name.startswith("asyncio."):
            break
        called = name
    return called.startswith("nemo_gym.")
