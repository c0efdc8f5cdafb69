"""Sample what the process computes, and draw it as a flame graph: one HTML file that any browser opens.

A timer of the process's CPU time interrupts the main thread, so what waits is never sampled, and what runs is sampled
in proportion to the time it takes. The stack of a coroutine is the chain of those that await it.
"""

import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple, Self

import orjson

from nemo_gym.common.event_loop import DaemonThreadPool

SAMPLE_EVERY_S = 0.005
MAX_DEPTH = 100
"""Of a stack, from the innermost function. The JSON of a deeper tree than 125 cannot be written."""
_TEMPLATE = Path(__file__).with_name("flame_graph.html")

_WAITING_FILES = ("asyncio/runners.py", "asyncio/base_events.py", "selectors.py", "threading.py", "queue.py")
_THREAD_POOL_WORK = DaemonThreadPool._work.__code__

Stack = tuple[CodeType, ...]
"""The outermost function first."""


class Sample(NamedTuple):
    """Where the process was: what it worked for, and the functions it was in."""

    owner: str
    stack: Stack


class StackSampler:
    """A context manager. `owner` names whom the running code works for. A stack begins below the last frame of one of
    `starts_below`."""

    def __init__(self, owner: Callable[[], str], *, starts_below: Collection[CodeType]) -> None:
        self._owner, self._starts_below = owner, starts_below
        self.samples: Counter[Sample] = Counter()

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGPROF, self._sample)
        signal.siginterrupt(signal.SIGPROF, False)
        signal.setitimer(signal.ITIMER_PROF, SAMPLE_EVERY_S, SAMPLE_EVERY_S)
        return self

    def __exit__(self, *_error: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, signal.SIG_IGN if self._before is signal.SIG_DFL else self._before)

    def _sample(self, _number: int, frame: FrameType | None) -> None:
        if not _is_idle(frame):
            self.samples[Sample(self._owner() or "(no server)", self._stack_of(frame))] += 1
            return
        for thread, other in sys._current_frames().items():  # the event loop waits, so a thread has used the time
            if thread != threading.main_thread().ident and not _is_idle(other):
                self.samples[Sample("(threads)", self._stack_of(other))] += 1

    def _stack_of(self, frame: FrameType | None) -> Stack:
        found: list[CodeType] = []
        while frame is not None and frame.f_code not in self._starts_below and len(found) < MAX_DEPTH:
            found.append(frame.f_code)
            frame = frame.f_back
        return tuple(reversed(found))


def _is_idle(frame: FrameType | None) -> bool:
    """True for a thread that waits for something to do."""
    return frame is None or frame.f_code.co_filename.endswith(_WAITING_FILES) or frame.f_code is _THREAD_POOL_WORK


def flame_graph_page(title: str, samples: Mapping[Sample, int]) -> bytes:
    """The HTML page."""
    root: dict[str, Any] = {"name": "all", "samples": 0, "children": {}}
    for (owner, stack), count in samples.items():
        node = root
        node["samples"] += count
        for name in (owner, *map(_label, stack)):
            node = node["children"].setdefault(name, {"name": name, "samples": 0, "children": {}})
            node["samples"] += count
    tree = orjson.dumps(_listed(root)).replace(b"<", b"\\u003c")
    page = _TEMPLATE.read_bytes().replace(b"__TITLE__", _escaped(title).encode())
    return page.replace(b"__MS_PER_SAMPLE__", str(SAMPLE_EVERY_S * 1000).encode()).replace(b"__TREE__", tree)


def _listed(node: dict[str, Any]) -> dict[str, Any]:
    children = sorted(node["children"].values(), key=lambda child: -child["samples"])
    return {**node, "children": [_listed(child) for child in children]}


def _label(code: CodeType) -> str:
    place = Path(code.co_filename)
    return f"{code.co_qualname} ({place.parent.name}/{place.name}:{code.co_firstlineno})"


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")
