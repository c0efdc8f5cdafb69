"""The call log of a collection: one file to which every call of every rollout is appended as it completes.

`+journal` and `+record` write it: beside the output, or in a folder of its own. An attempt that was interrupted goes
on with its calls from there: models reply from the log, and tools run again, which brings the environment into the
state it was in. `+replay` does so with a whole run: models reply only from the log, and tools must reply as they did.

A reply is found by its request. Where a tool gives another output than before, the requests that follow are new: a
rollout never contains a reply to another conversation than its own.

Calls are logged where the attempt runs. A worker sends each line to the collector at once, and gets the stored calls
of an attempt with its row. So one process writes the file, workers need no disk in common with it, and a completed
call survives the death of its worker as well as that of the collector."""

import asyncio
import contextlib
import hashlib
import logging
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import orjson

from nemo_gym.client.call_log import END_OF_ATTEMPT, Call, CallKind, Send, call_name, parse_call, rollout_context
from nemo_gym.client.reply import ServerReply
from nemo_gym.config.keys import blocks_in
from nemo_gym.errors import Cause, ConfigError, RolloutError
from nemo_gym.llm_api.json_codec import encode
from nemo_gym.rollouts.config import RolloutCollectionConfig
from nemo_gym.rollouts.process_losses import LOST_CODES
from nemo_gym.rollouts.store import FileRole, JsonlFile, StorageError, journal_path, manifest_path
from nemo_gym.rollouts.types import Outcome, Row, RowId, Scored
from nemo_gym.server.tools import NOT_TOOLS

logger = logging.getLogger(__name__)

LogMode = Literal["journal", "record", "replay"]
"""The option that asks for the log."""
RECORDING_FILE = "traffic.jsonl"
INCOMPLETE_FILE = "traffic_incomplete.jsonl"
"""The name that a recording gets if it could not be written to the end."""
_RECORD_AGAIN = (
    "The recording is incomplete, which costs no rollout. To record them all, delete its folder, make room, and make "
    "them again with a new folder: +record=... +resume=restart"
)
_ENDS_HERE = "The journal of this run ends here: later replies are asked for again if the command is killed."
_ROLES = {
    "journal": FileRole("output_jsonl_fpath", _ENDS_HERE, _ENDS_HERE, _ENDS_HERE),
    "record": FileRole("record", _RECORD_AGAIN, _RECORD_AGAIN, _RECORD_AGAIN),
}


class LogRequest(NamedTuple):
    """What whoever makes an attempt needs to log its calls."""

    attempt_id: str
    mode: LogMode
    models: list[str]
    """The names of the model servers."""
    models_hash: str
    stored: bytes
    """The lines of its calls before an interruption, or of the rollout to replay."""
    write: Callable[[bytes], None]


class MakeAttempt(Protocol):
    """Makes one attempt at a rollout, in this process or in a worker."""

    async def __call__(self, row: Row, *, timeout_s: float, number: int, log: LogRequest | None = None) -> Outcome: ...


class AttemptLog:
    """The log of one attempt: replies from what is stored, and writes every other call."""

    def __init__(self, row: RowId, number: int, request: LogRequest) -> None:
        self._row, self._number, self._request = row, number, request
        self._made: Counter[str] = Counter()
        """Calls by server, path and digest of the request: equal ones are numbered, so that they come in any order."""
        stored = map(parse_call, request.stored.splitlines(keepends=True))
        self._stored = {call.name: call for call in stored if call is not None}

    def running(self) -> contextlib.AbstractContextManager[None]:
        """Log the calls made inside the block."""
        suffix = f"-a{self._number - 1}" if self._number > 1 else ""
        return rollout_context(f"{self._row.task_index}-{self._row.repeat_index}{suffix}", self)

    def call(self, server: str, path: str, body: Any, send: Send) -> Awaitable[ServerReply]:
        """The reply to a call that the attempt makes."""
        kind = self._kind(server, path)
        return send() if kind is None else self._logged_call(kind, server, path, body, send)

    async def _logged_call(self, kind: CallKind, server: str, path: str, body: Any, send: Send) -> ServerReply:
        is_replay = self._request.mode == "replay"
        request = b"" if body is None else encode(body, exclude_unset=True)
        name = self._name(server, path, request)
        stored = self._stored.get(name)
        if kind == "model" and stored is not None and (is_replay or stored.status < 400):
            return ServerReply(server, stored.status, stored.reply.encode())
        if is_replay and kind != "message":  # the next call of the model shows whether a message is the same
            return await self._replay(server, path, kind, request, stored, send)
        started_at, started = time.time(), time.perf_counter()
        reply = await send()
        times = {"started_at": round(started_at, 6), "seconds": round(time.perf_counter() - started, 6)}
        if stored is None or (stored.status, stored.reply) != (reply.status, reply.text()):
            asked = request.decode(errors="replace") if self._request.mode == "record" else ""
            fields = {"kind": kind, "status": reply.status, "request": asked, "reply": reply.text(), **times}
            self._request.write(_line(self._row, self._number, self._request, name=name, **fields))
        return reply

    async def _replay(
        self, server: str, path: str, kind: Cause, request: bytes, stored: Call | None, send: Send
    ) -> ServerReply:
        """The reply of a tool, which must be the stored one. Raises for any other call."""
        place = f"Replay differs at row {self._row.task_index}, repeat {self._row.repeat_index}"
        if stored is None:
            difference = self._difference(f"{server}{path}", request)
            raise RolloutError(kind, f"{place}, {difference}.", server=server)
        reply = await send()
        if reply.text() != stored.reply:
            found = f"replied {reply.text()[:300]!r}, recorded {stored.reply[:300]!r}"
            raise RolloutError("tool", f"{place}: {server}{path} {found}.", server=server)
        return reply

    def _kind(self, server: str, path: str) -> CallKind | None:
        """None for a call that is not logged: setting up, verifying, or to an agent."""
        if path == "/next_message":
            return "message"
        if path[1:] in NOT_TOOLS:
            return None
        if server in self._request.models:
            return "model"
        return None if "/v1/" in path else "tool"

    def _name(self, server: str, path: str, request: bytes) -> str:
        name = call_name(server, path, request)
        self._made[name] += 1
        return f"{name} {self._made[name]}"

    def _difference(self, route: str, request: bytes) -> str:
        """Which call was not recorded, and what was requested instead."""
        like = [call for name, call in self._stored.items() if name.startswith(f"{route} ")]
        made = sum(count for name, count in self._made.items() if name.startswith(f"{route} "))
        then = like[made - 1].request if len(like) >= made else ""
        now = orjson.loads(request or b"{}")
        return f"call {made} of {route}: {first_difference(orjson.loads(then), now) if then else 'it was not called'}"


def _line(row: RowId, number: int, log: LogRequest, **fields: Any) -> bytes:
    fields |= {"attempt": number, "attempt_id": log.attempt_id, "models": log.models_hash}
    return Call(task_index=row.task_index, repeat_index=row.repeat_index, row_hash=row.row_hash, **fields).line()


def is_line_of(line: bytes, row: RowId, log: LogRequest) -> bool:
    """True for one line with a call of this attempt."""
    call = parse_call(line)
    if call is None or line.count(b"\n") != 1 or call.attempt_id != log.attempt_id:
        return False
    return row == RowId(call.task_index, call.repeat_index, call.row_hash)


@dataclass(slots=True)
class StoredAttempt:
    """Where the calls of an attempt are in the file."""

    id: str
    offsets: list[int] = field(default_factory=list)
    models: str = ""
    status: int | None = None
    """How it ended; None if it was interrupted."""


class CallLog:
    """The file, with an index of the attempts that go on or are replayed."""

    def __init__(self, path: Path, mode: LogMode, settings: Mapping[str, Any]) -> None:
        blocks = [block for block in blocks_in(settings) if block.server_type == "responses_api_models"]
        hashed = [(block.name, block.implementation, _without_address(block.config)) for block in blocks]
        self._models = [block.name for block in blocks]
        self._models_hash = hashlib.sha256(orjson.dumps(hashed, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]
        self.path, self._mode = path, mode
        self._run_id, self._started = secrets.token_hex(4), 0
        self._file: JsonlFile | None = None
        self._error: StorageError | None = None
        self._attempts: dict[tuple[Any, ...], StoredAttempt] = {}

    @contextlib.contextmanager
    def opened(self, is_done: Callable[[RowId], bool]) -> Iterator[None]:
        """Read what is there, and append to it inside the block. Rollouts that are done need none of their calls."""
        if self._mode == "replay":
            with self.path.open("rb") as lines:
                self._read_index(lines, lambda _row: False)
            yield
            return
        with contextlib.closing(JsonlFile(self.path, _ROLES[self._mode])) as self._file:
            self._file.repair()
            self._read_index(self._file.lines(), is_done)
            yield
            self._add(b"")  # it may have been moved or changed since the last call

    def raise_if_incomplete(self) -> None:
        """Raise if a recording could not be written to its end. All rollouts are made, whatever is in it."""
        if self._error is not None and self._mode == "record":
            raise self._error

    def logged(self, make: MakeAttempt) -> MakeAttempt:
        """As `make`, with the calls of every attempt in this log."""

        async def make_logged(row: Row, *, timeout_s: float, number: int, log: LogRequest | None = None) -> Outcome:
            attempt = self._attempt_at(row.id)
            stored = await asyncio.to_thread(self._read, attempt.offsets) if attempt.offsets else b""
            write = partial(self._append, attempt)
            log = LogRequest(attempt.id, self._mode, self._models, self._models_hash, stored, write)
            outcome = await make(row, timeout_s=timeout_s, number=number, log=log)
            if not isinstance(outcome, Scored) and outcome.code in LOST_CODES:
                self._attempts[self._key(row.id)] = attempt  # its process died, so the next attempt goes on with it
            else:  # without this line, an attempt was interrupted
                status = 200 if isinstance(outcome, Scored) else 500
                self._add(_line(row.id, number, log, name=END_OF_ATTEMPT, status=status))
            return outcome

        return make_logged

    def _key(self, row: RowId) -> tuple[Any, ...]:
        """A replay says what is different in a row that has changed."""
        place = row.task_index, row.repeat_index
        return place if self._mode == "replay" else (*place, row.row_hash)

    def _attempt_at(self, row: RowId) -> StoredAttempt:
        """The one to replay or to go on with, else a new one. If an attempt that went on fails, the next one does not
        get its calls."""
        key, self._started = self._key(row), self._started + 1
        found = self._attempts.get(key) if self._mode == "replay" else self._attempts.pop(key, None)
        return found or StoredAttempt(f"{self._run_id}-{self._started}")

    def _append(self, attempt: StoredAttempt, line: bytes) -> None:
        if self._file is not None and self._error is None:
            attempt.offsets.append(self._file.end)
            self._add(line)

    def _add(self, line: bytes) -> None:
        if self._file is None or self._error is not None:
            return
        try:
            self._file.add([line], durable=False)
        except StorageError as error:
            logger.error("%s", error)
            self._error = error
            if self._mode == "record":
                with contextlib.suppress(OSError):
                    self.path = self.path.rename(self.path.with_name(INCOMPLETE_FILE))

    def _read(self, offsets: list[int]) -> bytes:
        """The lines there. Those of a file that is gone are missing, as damaged ones are."""
        lines = []
        with contextlib.suppress(OSError), self.path.open("rb") as file:
            for offset in offsets:
                file.seek(offset)
                lines.append(file.readline())
        return b"".join(lines)

    def _read_index(self, lines: Iterable[bytes], is_done: Callable[[RowId], bool]) -> None:
        found: dict[tuple[Any, ...], dict[str, StoredAttempt]] = {}
        offset = damaged = 0
        for line in lines:
            call = parse_call(line)
            if call is None:
                damaged += 1
            elif not is_done(row := RowId(call.task_index, call.repeat_index, call.row_hash)):
                _add_call(found.setdefault(self._key(row), {}), call, offset)
            offset += len(line)
        chosen = {key: self._chosen([*attempts.values()]) for key, attempts in found.items()}
        self._attempts = {key: attempt for key, attempt in chosen.items() if attempt is not None}
        self._report(damaged)

    def _chosen(self, attempts: list[StoredAttempt]) -> StoredAttempt | None:
        """Of the attempts at a rollout the one to replay: the last that was scored, or else the last. Or the one to go
        on with: the last, if it did not fail and the models are the same."""
        if self._mode == "replay":
            attempts.sort(key=lambda attempt: attempt.status == 200)
            return attempts[-1] if attempts else None
        goes_on = attempts and (attempts[-1].status or 200) < 400 and attempts[-1].models == self._models_hash
        return attempts[-1] if goes_on else None

    def _report(self, damaged: int) -> None:
        if self._mode == "replay":
            if damaged or self.path.name == INCOMPLETE_FILE:
                text = "the recording in %s is incomplete: rollouts that are not in it will have no result"
                logger.warning(text, self.path.parent)
            return
        if self._attempts:
            calls = sum(len(attempt.offsets) for attempt in self._attempts.values())
            logger.info("%d rollouts go on with %d calls from %s", len(self._attempts), calls, self.path)
        if damaged:
            logger.warning("damaged lines in %s: %d; their replies are asked for again", self.path, damaged)


def _add_call(attempts: dict[str, StoredAttempt], call: Call, offset: int) -> None:
    """Add a call to the attempts at its rollout."""
    attempt_id = call.attempt_id or str(call.attempt)
    if call.name == END_OF_ATTEMPT and not call.attempt:  # in journals of earlier versions: the attempt failed
        attempts.pop(attempt_id, None)
        return
    attempt = attempts.setdefault(attempt_id, StoredAttempt(attempt_id))
    if call.name == END_OF_ATTEMPT:
        attempt.status = call.status or 200
    else:
        attempt.offsets.append(offset)
        attempt.models = call.models


def _without_address(config: Mapping[str, Any]) -> dict[str, Any]:
    """Where a model server listens differs from run to run."""
    return {name: value for name, value in config.items() if name not in ("host", "port")}


def call_log_of(config: RolloutCollectionConfig, settings: Mapping[str, Any]) -> CallLog | None:
    """The log that the options of a collection ask for, if any. Raises if they cannot be met."""
    wanted = [name for name in ("record", "replay", "journal") if getattr(config, name)]
    if len(wanted) > 1:
        raise ConfigError(f"Both {wanted[0]} and {wanted[1]} are given. Expected one of them.")
    if config.replay:
        return CallLog(_recording_in(Path(config.replay)), "replay", settings)
    if config.record:
        return CallLog(_new_recording(Path(config.record), config), "record", settings)
    return CallLog(journal_path(config.output_jsonl_fpath), "journal", settings) if config.journal else None


def _recording_in(folder: Path) -> Path:
    for path in (folder / INCOMPLETE_FILE, folder / RECORDING_FILE):
        if path.exists():
            return path
    raise ConfigError(f"There is no record in {folder}: expected {RECORDING_FILE}, as +record={folder} writes it.")


def _new_recording(folder: Path, config: RolloutCollectionConfig) -> Path:
    """The file to record into. One that exists is appended to only by a run that resumes an interrupted one."""
    path, output = folder / RECORDING_FILE, Path(config.output_jsonl_fpath)
    resumes = config.resume != "restart" and manifest_path(output).exists()
    if (folder / INCOMPLETE_FILE).exists():
        raise ConfigError(f"{folder / INCOMPLETE_FILE} was cut short by an error. {_RECORD_AGAIN}")
    if not (path.exists() and resumes) and folder.is_dir() and any(folder.iterdir()):
        raise ConfigError(f"{folder} exists already and is not empty. Record into a new folder, or delete it.")
    if resumes and not path.exists() and output.exists() and output.stat().st_size > 0:
        logger.warning("%s has rollouts already, which will not be in the recording in %s", output, folder)
    return path


def first_difference(then: Any, now: Any, place: str = "the request") -> str:
    """The first place where two JSON values differ, with both values."""
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
