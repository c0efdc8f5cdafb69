"""The tasks of the rollouts in flight.

As with a TaskGroup, the block ends when all of them have ended, and the first error ends the others. But code that
ignores its cancellation cannot keep it from ending: whoever notices such a task abandons it, and a block that is
interrupted waits only a moment for its tasks."""

import asyncio
import logging
from collections.abc import Coroutine, Iterator, Mapping
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from nemo_gym.server.endpoint import Endpoint
from nemo_gym.server.metrics import stage_of

logger = logging.getLogger(__name__)
About = TypeVar("About")

END_GRACE_S = 10.0
"""How long tasks may take to end when the block is interrupted."""
MAX_STACK = 300


class RolloutTasks(Generic[About]):
    """An async context manager that owns tasks, each with what its owner knows about it. A task that does the work of
    another has its name."""

    def __init__(self, *, end_grace_s: float = END_GRACE_S) -> None:
        self._end_grace_s = end_grace_s
        self._started: dict[str, tuple[asyncio.Task[None], About | None]] = {}
        self._error: BaseException | None = None
        self._has_ended = asyncio.Event()
        self._is_interrupting = self._is_leaving = False

    async def __aenter__(self) -> Self:
        parent = asyncio.current_task()
        if parent is None:
            raise AssertionError("tasks are started in a task")
        self._parent = parent
        return self

    def start(self, work: Coroutine[Any, Any, None], about: About | None = None) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._started[task.get_name()] = task, about
        task.add_done_callback(self._on_end)

    def abandon(self, name: str) -> About | None:
        """Wait no longer for a task. Returns what is known about it, None if it is not one of these."""
        found = self._started.pop(name, None)
        asyncio.get_running_loop().call_soon(self._check_end)  # another task may be started in its place
        return None if found is None else found[1]

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._is_leaving = True
        is_ours = self._is_interrupting and self._parent.uncancel() == 0 and kind is asyncio.CancelledError
        interruption = None if is_ours else error
        if interruption is None:
            try:
                self._check_end()
                await self._has_ended.wait()
            except asyncio.CancelledError as cancelled:
                interruption = cancelled
        if interruption is not None or self._error is not None:
            await self._cancel_all()
        if self._error is not None:
            raise self._error
        if interruption is not None:
            raise interruption

    async def _cancel_all(self) -> None:
        running = [task for task, _ in self._started.values()]
        for task in running:
            task.cancel()
        if not running:
            return
        _, ignoring = await asyncio.wait(running, timeout=self._end_grace_s)
        for task in ignoring:
            logger.warning("not waiting for a rollout that ignores its cancellation, at %s", place_of(task))

    def _on_end(self, task: "asyncio.Task[None]") -> None:
        self._started.pop(task.get_name(), None)
        if not task.cancelled() and (error := task.exception()) is not None and self._error is None:
            self._error = error
            if not self._is_leaving and not self._parent.done():
                self._is_interrupting = True
                self._parent.cancel()
        self._check_end()

    def _check_end(self) -> None:
        if self._is_leaving and (not self._started or self._error is not None):
            self._has_ended.set()


def place_of(task: "asyncio.Task[Any]") -> str:
    """The innermost line that a task waits at, outside of asyncio."""
    running: Any = task.get_coro()
    place = "an unknown place"
    while (frame := getattr(running, "cr_frame", None)) is not None:
        if frame.f_globals.get("__package__") != "asyncio":
            place = f"{frame.f_code.co_filename}:{frame.f_lineno} ({frame.f_code.co_name})"
        running = running.cr_await
    return place


def current_stage(task: "asyncio.Task[Any]", now: float) -> dict[str, Any]:
    """Return the innermost request that a task waits for, if the servers are in this process. It is read from the
    stack of the task, so that rollouts pay nothing for it."""
    found: dict[str, Any] = {}
    for names in coroutine_frames(task):
        endpoint, call, core = names.get("endpoint"), names.get("call"), names.get("self")
        if isinstance(endpoint, Endpoint) and core is not None and call is not None:
            found = {"stage": stage_of(endpoint), "server": core.name, "path": call.path}
            started = names.get("started")
            found["stage_seconds"] = now - started if isinstance(started, float) else None
    return found


def coroutine_frames(task: "asyncio.Task[Any]") -> Iterator[Mapping[str, Any]]:
    """Yield the local variables of the coroutines that a task waits in, the outermost first."""
    running: Any = task.get_coro()
    for _ in range(MAX_STACK):
        frame = getattr(running, "cr_frame", None)
        if frame is None:
            return
        yield frame.f_locals
        running = running.cr_await
