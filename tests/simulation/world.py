"""Virtual time, and processes that are event loops. The world runs one turn of one loop at a time, and moves the clock
to the next timer, packet or fault when no loop has anything to do. Which loop is next is drawn from the seed."""

import asyncio
import contextvars
import heapq
import itertools
import logging
import random
import subprocess
from asyncio import base_events, events
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulation.disk import Disk
    from tests.simulation.network import Listener, Network, Transport

START_S = 1000.0
"""The monotonic clock when the world begins."""
EPOCH_S = 1_800_000_000.0
MAX_STEPS = 3_000_000
BUSY_S = 2e-5
"""Virtual seconds that a turn of an event loop takes."""


class Killed(KeyboardInterrupt):
    """The process is killed in the middle of what it does. asyncio passes a KeyboardInterrupt through."""


class ViolationError(Exception):
    """An invariant is broken."""


class World:
    """The clock, the processes, and what happened."""

    def __init__(self, seed: int) -> None:
        self.seed, self.now, self.steps = seed, START_S, 0
        self.random = random.Random(seed)
        self.processes: list[Process] = []
        self.running: Process | None = None
        """The process whose code runs now."""
        self.events: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._numbers = itertools.count()
        self.timeline: list[tuple[float, str, str]] = []
        self.network: Network
        self.disk: Disk
        self.make_program: Callable[[Transport, bytes], Process]
        """Starts the process of a program that is run with a socket and an order."""
        self.on_log: Callable[[str, str], None] = lambda _text, _who: None
        self.violation = ""
        """The first invariant that was broken: code that is simulated may catch the error that says so."""
        self.failure: BaseException | None = None
        """An error that ended a process and should not have."""
        self.graveyard: list[Any] = []
        """What killed processes had. It is never freed, as that would run their code."""

    def start_program(self, command: list[str], **options: Any) -> "Program":
        """In the place of `subprocess.Popen`."""
        (number,) = options["pass_fds"]
        return Program(self, self.network.transports[number])

    def say(self, text: str, who: "str | None" = None) -> None:
        """Add a line to the timeline."""
        name = who if who is not None else self.running.name if self.running else "world"
        self.timeline.append((self.now, name, text))

    def violated(self, text: str) -> None:
        """An invariant is broken: end the simulation."""
        if not self.violation:
            self.say(f"VIOLATION: {text}")
            self.violation = text
        raise ViolationError(text)

    def at(self, when: float, function: Callable[..., object], *args: Any) -> None:
        """Call a function of the world, not of a process, at this time."""
        heapq.heappush(self.events, (max(when, self.now), next(self._numbers), function, args))

    def after(self, seconds: float, function: Callable[..., object], *args: Any) -> None:
        self.at(self.now + seconds, function, *args)

    def run(self, until: Callable[[], bool], *, within_s: float) -> None:
        """Step until it is so. An invariant is broken if that takes longer, or if nothing happens any more."""
        end = self.now + within_s
        while not until():
            if self.now > end:
                self.violated(f"nobody finished within {within_s:g} virtual seconds: {self._state()}")
            if self.steps > MAX_STEPS:
                self.violated(f"no end after {MAX_STEPS} steps: {self._state()}")
            if not self.step():
                self.violated(f"nothing happens any more: {self._state()}")

    def step(self) -> bool:
        """One event of the world, or one turn of one process. False if there is nothing to do, ever."""
        self.steps += 1
        now = self.now
        if self.events and self.events[0][0] <= now:
            _, _, function, args = heapq.heappop(self.events)
            function(*args)
        else:
            ready = [each for each in self.processes if each.next_at() <= now]
            if ready:
                process = ready[0] if len(ready) == 1 else self.random.choice(ready)
                process.turn()
                self.now += BUSY_S
                if self.violation:
                    raise ViolationError(self.violation)
                if self.failure is not None:
                    raise self.failure
            else:
                times = [each.next_at() for each in self.processes]
                if self.events:
                    times.append(self.events[0][0])
                at = min(times, default=float("inf"))
                if at == float("inf"):
                    return False
                self.now = at
                return True
        return True

    def _state(self) -> str:
        lines = []
        for process in self.processes:
            tasks = [f"{task.get_name()} {task.get_coro()!r:.120}" for task in asyncio.all_tasks(process.loop)]
            lines.append(f"{process.name}: {tasks[:6]}")
        return "; ".join(lines)


class Process:
    """An event loop with its own files and connections."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.loop = SimulatedLoop(self)
        self.is_alive, self.dies_of = True, ""
        """The reason why it is killed at the end of its turn. What it does until then has no effect."""
        self.frozen_until = 0.0
        self.wall_offset_s = 0.0
        self.descriptors: set[int] = set()
        self.transports: dict[Transport, None] = {}
        self.listeners: dict[Listener, None] = {}
        self.on_death: list[Callable[[], None]] = []
        self.born_at = world.now
        self.pid = 1000 + len(world.graveyard) + len(world.processes)
        world.processes.append(self)
        self.main: asyncio.Task[Any] | None = None

    def start(self, main: Coroutine[Any, Any, Any]) -> None:
        self.main = self.loop.create_task(main, name="main")
        self.main.add_done_callback(self._on_end)

    def _on_end(self, main: "asyncio.Task[Any]") -> None:
        error = None if main.cancelled() else main.exception()
        if error is not None and not isinstance(error, Killed):
            self.world.failure = error

    def next_at(self) -> float:
        """When the process has something to do: now, later, or never."""
        at = self.loop.next_at()
        return max(at, self.frozen_until)

    def turn(self) -> None:
        """Run one turn of the loop."""
        with self.is_running():
            self.loop.turn()

    def is_running(self) -> "_Running":
        return _Running(self)

    def freeze(self, seconds: float) -> None:
        """As SIGSTOP, and SIGCONT later."""
        self.frozen_until = self.world.now + seconds
        self.world.say(f"is frozen for {seconds:.1f} s", self.name)

    def kill(self, why: str = "is killed") -> None:
        """As SIGKILL: files and connections close, and nothing of the process runs any more."""
        if self.is_alive:
            self.world.say(why, self.name)
            self.end(is_reset=True)

    def end(self, *, is_reset: bool = False) -> None:
        """Take the process away."""
        self.is_alive = False
        self.world.processes.remove(self)
        self.world.graveyard.append((self, [*asyncio.all_tasks(self.loop)]))
        self.world.disk.close_all(self)
        for transport in [*self.transports]:
            transport.die(is_reset=is_reset)
        for listener in [*self.listeners]:
            listener.lose_server()
        for callback in self.on_death:
            callback()


class _Running:
    """Makes a process the running one. A kill inside ends it."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def __enter__(self) -> None:
        self._before = self._process.world.running
        self._process.world.running = self._process

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _trace: object) -> bool:
        self._process.world.running = self._before
        if self._process.dies_of:
            self._process.kill(f"is killed {self._process.dies_of}")
        return kind is Killed


class Program:
    """A program that a process has started: it reads its order from standard input, and begins at its end."""

    def __init__(self, world: World, transport: "Transport") -> None:
        self._world, self._transport, self._order = world, transport, b""
        self._process: Process | None = None
        self.stdin = self

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, *_error: object) -> None:
        self._process = self._world.make_program(self._transport, self._order)

    def write(self, order: bytes) -> None:
        self._order += order

    def wait(self, timeout: float | None = None) -> int:
        process, end = self._process, self._world.now + (timeout or 0.0)
        while process is not None and process.is_alive and self._world.now < end:
            self._world.step()
        if process is not None and process.is_alive and timeout is not None:
            raise subprocess.TimeoutExpired("program", timeout)
        return -9

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()


class _NoSelector:
    def select(self, _timeout: float | None) -> list[Any]:
        return []


class SimulatedLoop(base_events.BaseEventLoop):
    """An event loop whose time, connections and threads are those of the world."""

    def __init__(self, process: Process) -> None:
        super().__init__()
        self.set_debug(False)
        self._selector = _NoSelector()
        self.process, self.world = process, process.world
        self.set_exception_handler(_on_unhandled)

    def time(self) -> float:
        return self.world.now

    def next_at(self) -> float:
        if self._ready:  # type: ignore[attr-defined]
            return 0.0
        scheduled = self._scheduled  # type: ignore[attr-defined]
        while scheduled and scheduled[0]._cancelled:
            self._timer_cancelled_count -= 1  # type: ignore[attr-defined]
            handle = heapq.heappop(scheduled)
            handle._scheduled = False
        return scheduled[0]._when if scheduled else float("inf")

    def turn(self) -> None:
        events._set_running_loop(self)
        self._thread_id = 1
        try:
            self._run_once()  # type: ignore[attr-defined]
        finally:
            events._set_running_loop(None)
            self._thread_id = None  # type: ignore[assignment]

    def _process_events(self, _events: object) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def run_in_executor(  # type: ignore[override]
        self, _executor: Any, function: Callable[..., Any], *args: Any
    ) -> "asyncio.Future[Any]":
        """Run a function of a thread as one event of its own, some time later."""
        future: asyncio.Future[Any] = self.create_future()
        process = self.process

        def run() -> None:
            if not process.is_alive:
                return
            if process.frozen_until > self.world.now:
                self.world.at(process.frozen_until, run)
                return
            with process.is_running():
                try:
                    result, error = context.run(function, *args), None
                except Killed:
                    raise
                except BaseException as raised:
                    result, error = None, raised
                self.world.after(self.world.disk.delay_s(process) / 4, finish, result, error)

        def finish(result: Any, error: BaseException | None) -> None:
            if process.is_alive:
                self.call_soon(settle, result, error)

        def settle(result: Any, error: BaseException | None) -> None:
            if not future.done():
                future.set_exception(error) if error is not None else future.set_result(result)

        context = contextvars.copy_context()
        self.world.after(self.world.disk.delay_s(process), run)
        return future

    async def getaddrinfo(self, host: Any, port: Any, **_options: Any) -> list[Any]:
        await asyncio.sleep(0)
        return [(2, 1, 6, "", (host, port))]

    async def create_connection(  # type: ignore[override]
        self, make: Any, host: Any = None, port: Any = None, **options: Any
    ) -> Any:
        return await self.world.network.connect(self.process, make, port, sock=options.get("sock"))

    async def create_server(  # type: ignore[override]
        self, make: Any, host: Any = None, port: Any = None, **options: Any
    ) -> Any:
        return self.world.network.listen(self.process, make, port or 0, sock=options.get("sock"))


def _on_unhandled(loop: Any, context: dict[str, Any]) -> None:
    error = context.get("exception")
    loop.world.say(f"unhandled: {context.get('message')}: {error!r}", loop.process.name)
    if error is not None and not isinstance(error, Killed):
        loop.world.failure = error


class TimelineHandler(logging.Handler):
    """Puts the product's log lines into the timeline."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.INFO)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        self._world.say(f"log {record.levelname.lower()}: {text[:400]}")
        if self._world.running is not None:
            self._world.on_log(text, self._world.running.name)
