"""Keep what models, judges and tools were asked and answered in a run, and play it again without them.

On replay models and judges answer from the record; tools run for real, so that state is as it was, and must answer
what they answered then. The first difference ends the rollout with an error that names it."""

import asyncio
import contextlib
import hashlib
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from nemo_gym.client.server_client import ServerReply
from nemo_gym.errors import ConfigError, RolloutError
from nemo_gym.llm_api.json_codec import encode
from nemo_gym.rollouts.store import JsonlFile, StorageError
from nemo_gym.rollouts.types import RowId
from nemo_gym.server.tools import NOT_TOOLS

logger = logging.getLogger(__name__)

FILE = "traffic.jsonl"
Send = Callable[[], Awaitable[ServerReply]]


@dataclass(slots=True)
class RecordingContext:
    """The attempt that the running task belongs to, and how many calls it has made."""

    row: RowId
    attempt: int
    calls: dict[str, int] = field(default_factory=lambda: defaultdict(int))


_playing: ContextVar[RecordingContext | None] = ContextVar("nemo_gym_playing", default=None)


@contextlib.contextmanager
def recording_context(row: RowId, attempt: int) -> Iterator[None]:
    """Say whose calls the ones made inside are."""
    mark = _playing.set(RecordingContext(row, attempt))
    try:
        yield
    finally:
        _playing.reset(mark)


class _Call(NamedTuple):
    """A call to a model or a tool."""

    context: RecordingContext
    name: str
    """Calls that are alike are numbered, so that they may come in any order."""
    request: bytes


def _call_of(server: str, path: str, body: Any, models: frozenset[str]) -> _Call | None:
    """Which call of which attempt this is; none if it is of no rollout, or neither to a model nor to a tool."""
    current = _playing.get()
    if current is None or path[1:] in NOT_TOOLS or ("/v1/" in path and server not in models):
        return None
    request = b"" if body is None else encode(body, exclude_unset=True)
    name = f"{server}{path} {hashlib.sha256(request).hexdigest()[:16]}"
    current.calls[name] += 1
    return _Call(current, f"{name} {current.calls[name]}", request)


class Recorder:
    """Writes down every call to a model or a tool, with its answer."""

    def __init__(self, folder: Path, models: frozenset[str], *, goes_on: bool = False) -> None:
        """A record that is there already is added to only by a run that `goes_on` where it was interrupted."""
        if (folder / FILE).exists() and not goes_on:
            raise ConfigError(f"{folder / FILE} is there already. Record into a new folder, or remove it.")
        self._file, self._models = JsonlFile(folder / FILE), models
        self._file.repair()
        self._error: StorageError | None = None

    def close(self) -> None:
        """Raises if something could not be written: the rollouts are whole then, but not the record of them."""
        with contextlib.closing(self._file):
            if self._error is not None:
                raise self._error
            self._file.add([])

    async def __call__(self, server: str, path: str, body: Any, send: Send) -> ServerReply:
        call = _call_of(server, path, body, self._models)
        answer = await send()
        if call is not None:
            marks = {**call.context.row.metadata(), "attempt": call.context.attempt}
            told = {"call": call.name, "status": answer.status, "request": call.request.decode()}
            self._write(orjson.dumps({**marks, **told, "answer": answer.text()}) + b"\n")
        return answer

    def _write(self, line: bytes) -> None:
        if self._error is None:
            try:
                self._file.add([line], durable=False)
            except StorageError as error:
                logger.error("%s The record of this run's traffic ends here.", error)
                self._error = error


class Replayer:
    """Answers for models out of a record, and compares what tools answer with it."""

    def __init__(self, folder: Path, models: frozenset[str]) -> None:
        self._path, self._models = folder / FILE, models
        if not self._path.exists():
            raise ConfigError(f"There is no record in {folder}: expected {self._path}, as +record={folder} writes it.")
        found: dict[tuple[int, int], dict[int, dict[str, int]]] = defaultdict(lambda: defaultdict(dict))
        offset = 0
        with self._path.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n"):  # cut off in the writing
                    break
                told = orjson.loads(line)
                attempts = found[told["_task_index"], told["_repeat_index"]]
                attempts[told["attempt"]][told["call"]] = offset
                offset += len(line)
        self._calls = {row: attempts[max(attempts)] for row, attempts in found.items()}
        """Where the calls of each rollout's last attempt are in the file."""

    def close(self) -> None:
        """Nothing is held open."""

    async def __call__(self, server: str, path: str, body: Any, send: Send) -> ServerReply:
        call = _call_of(server, path, body, self._models)
        if call is None:
            return await send()
        row = call.context.row
        place = f"Replay differs at row {row.task_index}, repeat {row.repeat_index}"
        calls = self._calls.get((row.task_index, row.repeat_index), {})
        if call.name not in calls:
            message = f"{place}, {self._difference(call, calls, f'{server}{path}')}."
            raise RolloutError("model" if server in self._models else "tool", message, server=server)
        recorded = await asyncio.to_thread(self._read, calls[call.name])
        if server in self._models:
            return ServerReply(server, recorded["status"], recorded["answer"].encode())
        answer = await send()
        if answer.text() != recorded["answer"]:
            found = f"answered {answer.text()[:300]!r}, recorded {recorded['answer'][:300]!r}"
            raise RolloutError("tool", f"{place}: {server}{path} {found}.", server=server)
        return answer

    def _read(self, offset: int) -> dict[str, Any]:
        with self._path.open("rb") as file:
            file.seek(offset)
            told: dict[str, Any] = orjson.loads(file.readline())
            return told

    def _difference(self, call: _Call, calls: dict[str, int], route: str) -> str:
        """Which call was not made then, and what was asked instead."""
        like = [offset for name, offset in calls.items() if name.startswith(f"{route} ")]
        made = sum(count for name, count in call.context.calls.items() if name.startswith(f"{route} "))
        then = self._read(like[made - 1])["request"] if len(like) >= made else None
        now = orjson.loads(call.request or b"{}")
        return f"call {made} of {route}: {first_difference(orjson.loads(then), now) if then else 'it was not called'}"


def first_difference(then: Any, now: Any, place: str = "the request") -> str:
    """Where two JSON values part, and what is there in each."""
    if isinstance(then, dict) and isinstance(now, dict):
        for key in dict.fromkeys([*then, *now]):
            if then.get(key) != now.get(key) or (key in then) != (key in now):
                return first_difference(then.get(key), now.get(key), f"{place}.{key}")
    if isinstance(then, list) and isinstance(now, list):
        for index in range(max(len(then), len(now))):
            before, after = (items[index] if index < len(items) else None for items in (then, now))
            if before != after:
                return first_difference(before, after, f"{place}[{index}]")
    return f"{place} was {orjson.dumps(then).decode()[:300]}, is {orjson.dumps(now).decode()[:300]}"
