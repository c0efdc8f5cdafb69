"""CPU profile of the servers of a worker (`+profiling_enabled=true`): one log for each server, with the functions of
its entry point, and one flame graph for the worker. `GET /stats` returns the log of a running server."""

import asyncio
import contextlib
import functools
import io
import logging
import os
import signal
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple, Self

import orjson

from nemo_gym.common.atomic_files import atomic_write, make_folder
from nemo_gym.common.event_loop import DaemonThreadPool
from nemo_gym.common.outside_work import listening
from nemo_gym.config.types import GlobalKeys
from nemo_gym.errors import ConfigError, MissingExtraError
from nemo_gym.server.app import ServerApp
from nemo_gym.server.core import ServerCore

SAMPLE_EVERY_S = 0.005
MAX_DEPTH = 100
"""Frames kept of a stack, from the innermost function. JSON trees deeper than 125 cannot be written."""
_TEMPLATE = Path(__file__).with_name("flame_graph.html")

_WAITING_FILES = ("asyncio/runners.py", "asyncio/base_events.py", "selectors.py", "threading.py", "queue.py")
_THREAD_POOL_WORK = DaemonThreadPool._work.__code__

Stack = tuple[CodeType, ...]
"""The outermost function first."""


class Sample(NamedTuple):
    """One stack, and the server that it worked for."""

    owner: str
    stack: Stack


class StackSampler:
    """Samples the stack of this process while the context is open. `owner` names the server that the running code
    works for. A stack begins below the last frame of one of `starts_below`."""

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
    """Return the flame graph as an HTML page."""
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


logger = logging.getLogger(__name__)

COLUMNS = {0: ("name", 200), 1: ("ncall", 10), 2: ("tsub", 8), 3: ("ttot", 8), 4: ("tavg", 8)}
_ELSEWHERE = "What other modules did for this server is in the flame graph of its worker."
_HEAD = "\nClock type: CPU\nOrdered by: totaltime, desc\n\n"
_BELOW = {ServerCore._run.__code__, asyncio.Runner.run.__code__}
"""The functions that run a handler and the event loop. The frames above them are the same for all stacks."""
_server: ContextVar[int] = ContextVar("nemo_gym_profiled_server", default=0)
"""Number of the server that the running code works for, from 1."""


class ProfilingMiddlewareConfig(GlobalKeys):
    """Global keys of a configuration."""

    profiling_enabled: bool = False
    """Profile where servers spend CPU time. Profiling slows them down."""

    profiling_results_dirpath: str | None = None
    """The folder for the results. Earlier results of the same servers are overwritten."""


class ProfiledServer(NamedTuple):
    """A server, and the file that its functions are in."""

    app: ServerApp
    entrypoint: Path

    @property
    def stem(self) -> str:
        """Base name of its files: class and instance."""
        return self.app.core.session_cookie


@contextlib.contextmanager
def profile_servers(
    config: Mapping[str, Any],
    apps: Mapping[str, ServerApp],
    entrypoints: Mapping[str, Path],
    *,
    worker: int = 0,
    has_replicas: bool = False,
) -> Iterator[None]:
    """Profile this process while the block runs, if `config` asks for it, and write the results when it ends. Files
    have the number of the worker if others have the same servers."""
    settings = ProfilingMiddlewareConfig.of(config)
    if not settings.profiling_enabled:
        yield
        return
    servers = [ProfiledServer(app, entrypoints[name]) for name, app in apps.items()]
    if settings.profiling_results_dirpath is None:
        raise ConfigError("profiling_enabled needs a folder for the results: +profiling_results_dirpath=<folder>")
    folder = Path(settings.profiling_results_dirpath)
    make_folder(folder)
    suffix = f"___worker_{worker}" if has_replicas else ""
    for number, server in enumerate(servers, 1):
        server.app.core.wrap_call = _Attribution(number)
        log = folder / f"{server.stem}{suffix}.log"
        logger.info("profiling '%s'; the results will be in %s when the servers stop", server.app.name, log)
    with _function_profile(servers) as logs:
        sampler = None
        try:
            with _sampler(servers) as sampler:
                yield
        finally:
            for server, log_of in zip(servers, logs, strict=True):
                _write(folder / f"{server.stem}{suffix}.log", log_of.text())
            if sampler is not None:
                page = flame_graph_page(f"CPU time of worker {worker}", sampler.samples)
                _write(folder / f"worker_{worker}_flame_graph.html", page)


class _Attribution:
    """Runs a call with the number of its server in the context, which tasks and threads inherit."""

    def __init__(self, number: int) -> None:
        self._number = number

    async def __call__(self, running: Awaitable[Any]) -> Any:
        mark = _server.set(self._number)
        try:
            return await running
        finally:
            _server.reset(mark)


@functools.cache
def _is_file(module: str, entrypoint: str) -> bool:
    """True if both are the same file. A folder of servers may be a link."""
    return os.path.realpath(module) == os.path.realpath(entrypoint)


class _OutsideWork:
    """What other processes did for servers: calls and seconds of CPU time by server and work."""

    def __init__(self) -> None:
        self._calls = Counter[tuple[int, str]]()
        self._seconds = defaultdict[tuple[int, str], float](float)

    def __call__(self, what: str, seconds: float) -> None:
        key = _server.get(), what
        self._calls[key] += 1
        self._seconds[key] += seconds

    def rows(self, server: int) -> Iterator[str]:
        """Yield the work for a server, the most expensive first, in the columns of the log."""
        for (number, what), seconds in sorted(self._seconds.items(), key=lambda item: -item[1]):
            if number == server:
                calls = self._calls[number, what]
                cells = (what, calls, *(f"{value:.6f}" for value in (seconds, seconds, seconds / calls)))
                yield "  ".join(f"{cell!s:<{width}}" for cell, (_, width) in zip(cells, COLUMNS.values(), strict=True))


class _Log(NamedTuple):
    """The log of one server."""

    number: int
    entrypoint: str
    has_tag: bool
    """True if other servers share its code."""
    outside: _OutsideWork

    def text(self) -> bytes:
        """Return the log so far."""
        import yappi  # type: ignore[import-untyped]

        options = {"filter": {"tag": self.number}} if self.has_tag else {}
        found = yappi.get_func_stats(filter_callback=lambda stat: _is_file(stat.module, self.entrypoint), **options)
        text = io.StringIO()
        if found.empty():
            text.write(f"{_HEAD}No function of {self.entrypoint} was called.\n{_ELSEWHERE}\n")
        else:
            found.sort("totaltime", "desc").print_all(out=text, columns=COLUMNS)
        if outside := list(self.outside.rows(self.number)):
            text.write("\n".join(["", "In other processes:", *outside, ""]))
        return text.getvalue().encode()


@contextlib.contextmanager
def _function_profile(servers: Sequence[ProfiledServer]) -> Iterator[list[_Log]]:
    try:
        import yappi
    except ImportError as error:
        raise MissingExtraError("profiling_enabled", "profiling") from error
    files = [str(server.entrypoint) for server in servers]
    shares_code = len(set(files)) < len(files)
    yappi.set_clock_type("cpu")
    # only where two servers share their code, since it costs a call for each call
    yappi.set_tag_callback(_server.get if shares_code else None)
    yappi.start(builtins=False)
    outside = _OutsideWork()
    logs = [_Log(number, file, shares_code, outside) for number, file in enumerate(files, 1)]
    for server, log in zip(servers, logs, strict=True):
        server.app.pages["/stats"] = log.text
    try:
        with listening(outside):
            yield logs
    finally:
        yappi.stop()
        yappi.clear_stats()
        yappi.set_tag_callback(None)


@contextlib.contextmanager
def _sampler(servers: Sequence[ProfiledServer]) -> Iterator[StackSampler | None]:
    if threading.current_thread() is not threading.main_thread():
        logger.warning("no flame graph: only the main thread of a process can be sampled")
        yield None
        return
    names = ["", *(server.app.name for server in servers)]
    with StackSampler(lambda: names[_server.get()], starts_below=_BELOW) as sampler:
        yield sampler


def _write(path: Path, content: bytes) -> None:
    with atomic_write(path) as file:
        file.write(content)
    logger.info("profiling results are in %s", path)
