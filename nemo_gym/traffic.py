"""Keep what models, judges and tools were asked and answered in a run, and play it again without them.

On replay models and judges answer from the record; tools run for real, so that state is as it was, and must answer
what they answered then. The first difference ends the rollout with an error that names it."""

import asyncio
import contextlib
import hashlib
import os
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from nemo_gym.client import Answer
from nemo_gym.codec import encode
from nemo_gym.errors import ConfigError, RolloutError
from nemo_gym.rollout_types import RowId
from nemo_gym.tools import NOT_TOOLS

FILE = "traffic.jsonl"
Send = Callable[[], Awaitable[Answer]]


@dataclass(slots=True)
class Playing:
    """The attempt that the running task belongs to, and how many calls it has made."""

    row: RowId
    attempt: int
    calls: dict[str, int] = field(default_factory=lambda: defaultdict(int))


_playing: ContextVar[Playing | None] = ContextVar("nemo_gym_playing", default=None)


@contextlib.contextmanager
def playing(row: RowId, attempt: int) -> Iterator[None]:
    """Say whose calls the ones made inside are."""
    mark = _playing.set(Playing(row, attempt))
    try:
        yield
    finally:
        _playing.reset(mark)


def _place(server: str, path: str, request: bytes) -> tuple[Playing, str] | None:
    """Which call of which attempt this is. Calls that are alike are counted, so that they may come in any order."""
    current = _playing.get()
    if current is None:
        return None
    call = f"{server}{path} {hashlib.sha256(request).hexdigest()[:16]}"
    current.calls[call] += 1
    return current, f"{call} {current.calls[call]}"


class Recorder:
    """Writes down every call to a model or a tool, with its answer."""

    def __init__(self, folder: Path, models: frozenset[str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / FILE).exists():
            raise ConfigError(f"{folder / FILE} is there already. Record into a new folder, or remove it.")
        self._file = (folder / FILE).open("ab", buffering=0)
        self._models = models

    def close(self) -> None:
        os.fsync(self._file.fileno())
        self._file.close()

    async def __call__(self, server: str, path: str, body: Any, send: Send) -> Answer:
        request = encode(body, exclude_unset=True) if body is not None else b""
        place = None if path[1:] in NOT_TOOLS else _place(server, path, request)
        answer = await send()
        if place is not None and (server in self._models or "/v1/" not in path):
            current, call = place
            told = {**current.row.marks(), "attempt": current.attempt, "call": call, "status": answer.status}
            line = orjson.dumps({**told, "request": request.decode(), "answer": answer.text()}) + b"\n"
            self._file.write(line)
        return answer


class Replayer:
    """Answers for models out of a record, and compares what tools answer with it."""

    def __init__(self, folder: Path, models: frozenset[str]) -> None:
        self._path, self._models = folder / FILE, models
        if not self._path.exists():
            raise ConfigError(f"There is no record in {folder}: expected {self._path}, as +record={folder} writes it.")
        self._calls: dict[tuple[int, int], dict[int, dict[str, int]]] = defaultdict(lambda: defaultdict(dict))
        with self._path.open("rb") as file:
            offset = 0
            for line in file:
                told = orjson.loads(line)
                attempts = self._calls[told["_task_index"], told["_repeat_index"]]
                attempts[told["attempt"]][told["call"]] = offset
                offset += len(line)

    def close(self) -> None:
        """Nothing is held open."""

    async def __call__(self, server: str, path: str, body: Any, send: Send) -> Answer:
        request = encode(body, exclude_unset=True) if body is not None else b""
        is_model = server in self._models
        place = None if path[1:] in NOT_TOOLS or (not is_model and "/v1/" in path) else _place(server, path, request)
        if place is None:
            return await send()
        current, call = place
        recorded = await self._recorded(current, call)
        if recorded is None:
            raise self._difference(current, server, path, request)
        if is_model:
            return Answer(server, recorded["status"], recorded["answer"].encode())
        answer = await send()
        if answer.text() != recorded["answer"]:
            raise RolloutError(
                "tool",
                f"Replay differs at row {current.row.task_index}, repeat {current.row.repeat_index}: {server}{path} "
                f"answered {answer.text()[:300]!r}, recorded {recorded['answer'][:300]!r}.",
                server=server,
            )
        return answer

    async def _recorded(self, current: Playing, call: str) -> dict[str, Any] | None:
        attempts = self._calls.get((current.row.task_index, current.row.repeat_index))
        offset = attempts[max(attempts)].get(call) if attempts else None
        return None if offset is None else await asyncio.to_thread(self._read, offset)

    def _read(self, offset: int) -> dict[str, Any]:
        with self._path.open("rb") as file:
            file.seek(offset)
            told: dict[str, Any] = orjson.loads(file.readline())
            return told

    def _difference(self, current: Playing, server: str, path: str, request: bytes) -> RolloutError:
        """The error for a call that was not made then, with what was asked instead."""
        attempts = self._calls.get((current.row.task_index, current.row.repeat_index)) or {}
        calls = attempts[max(attempts)] if attempts else {}
        like = [offset for call, offset in calls.items() if call.startswith(f"{server}{path} ")]
        made = sum(count for call, count in current.calls.items() if call.startswith(f"{server}{path} "))
        then = self._read(like[made - 1])["request"] if len(like) >= made else None
        where = first_difference(orjson.loads(then), orjson.loads(request or b"{}")) if then else "it was not called"
        message = (
            f"Replay differs at row {current.row.task_index}, repeat {current.row.repeat_index}, call {made} of "
            f"{server}{path}: {where}."
        )
        return RolloutError("model" if server in self._models else "tool", message, server=server)


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
