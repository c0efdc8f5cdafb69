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
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import orjson

from nemo_gym.client.call_log import END_OF_ATTEMPT, Call, CallKind, Send, call_name, parse_call, rollout_context
from nemo_gym.client.reply import ServerReply
from nemo_gym.client.server_client import ServerClient
from nemo_gym.config.keys import blocks_in, changes, dotted
from nemo_gym.errors import GROUP_VERIFICATION, NOT_RESTORED, Cause, ConfigError, RolloutError
from nemo_gym.llm_api.base import JsonObject
from nemo_gym.llm_api.json_codec import encode
from nemo_gym.llm_api.responses import FrozenRequest
from nemo_gym.llm_api.stored_tokens import (
    PROMPT_NAME,
    PromptIndex,
    encode_without_tokens,
    read_reply,
    shorten_prompts,
)
from nemo_gym.rollouts.attempts import MakeAttempt
from nemo_gym.rollouts.config import RolloutCollectionConfig
from nemo_gym.rollouts.process_losses import LOST_CODES
from nemo_gym.rollouts.store import FileRole, JsonlFile, StorageError, journal_path, manifest_path
from nemo_gym.rollouts.types import Outcome, Row, RowKey
from nemo_gym.server.tools import NOT_TOOLS, RESTORE_PATH, SESSION_COPY_PATH

logger = logging.getLogger(__name__)

LogMode = Literal["journal", "record", "replay", "gate", "memory", "keep", "continue"]
"""The option that asks for the log. `gate`: nothing is logged, but calls of models wait for the gate. `memory`: calls
are kept as they are, and become lines only if somebody asks for them. `keep`: as `journal`, for a rollout that may be
forked: environments that restore by copy save the state of their sessions. `continue`: for a rollout that goes on from
a prefix of another one. It must get there, or has no result."""
RECORDING_FILE = "traffic.jsonl"
INCOMPLETE_FILE = "traffic_incomplete.jsonl"
"""The name that a recording gets if it could not be written to the end."""
TOKENS = PROMPT_NAME.decode()
_RECORD_AGAIN = (
    "The recording is incomplete, which costs no rollout. To record them all, delete its folder, make room, and make "
    "them again with a new folder: +record=... +resume=restart"
)
_ENDS_HERE = "The journal of this run ends here: later replies are asked for again if the command is killed."
_ROLES = {
    "journal": FileRole("output_jsonl_fpath", _ENDS_HERE, _ENDS_HERE, _ENDS_HERE),
    "record": FileRole("record", _RECORD_AGAIN, _RECORD_AGAIN, _RECORD_AGAIN),
}


class ModelGate(asyncio.Event):
    """Holds new calls of models until it is set."""

    version: int | None = None
    """The policy version that a trainer names."""


class LogRequest(NamedTuple):
    """Everything that the maker of an attempt needs to log its calls."""

    attempt_id: str
    mode: LogMode
    models: list[str]
    """The names of the model servers."""
    models_hash: str
    stored: bytes
    """The lines of its calls before an interruption, or of the rollout to replay."""
    write: Callable[[bytes], None]
    gate: ModelGate | None = None
    """New calls of models wait until it is set."""
    on_start: "Callable[[AttemptLog], None] | None" = None
    """Gets the log when the attempt begins."""

    def line_of(self, row: Row, call: Call) -> bytes:
        """Return the line of a call, which may be of another attempt, as one of this attempt."""
        about = {"attempt": row.attempt, "attempt_id": self.attempt_id, "models": self.models_hash}
        place = {"task_index": row.task_index, "repeat_index": row.repeat_index, "row_hash": row.row_hash}
        return msgspec.structs.replace(call, **about, **place).line()

    def attempt(self, row: Row) -> "AttemptLog":
        log = AttemptLog(row, self)
        if self.on_start is not None:
            self.on_start(log)
        return log


@dataclass(slots=True)
class KeptCall:
    """A call of an attempt whose log is in memory."""

    kind: CallKind
    server: str
    path: str
    request: bytes | FrozenRequest
    name: str = ""
    reply: ServerReply | None = None
    times: dict[str, float] = field(default_factory=dict)


class AttemptLog:
    """The log of one attempt: replies from what is stored, and writes every other call."""

    def __init__(self, row: Row, request: LogRequest) -> None:
        self._row, self._request = row, request
        self._made: Counter[str] = Counter()
        """Calls by server, path and digest of the request: equal ones are numbered, so that they come in any order."""
        stored = map(parse_call, request.stored.splitlines(keepends=True))
        self._prompts = PromptIndex()
        """The calls with tokens so far: the log has each prompt id once."""
        self._replies: dict[str, JsonObject] = {}
        """Stored replies with tokens."""
        self._stored = {call.name: call for call in stored if call is not None and self._is_whole(call)}
        self._ahead = Counter(_route(call) for call in self._stored.values() if call.kind == "model")
        """The number of stored calls of each model that were not made again yet."""
        self._by_order: defaultdict[str, deque[Call]] = defaultdict(deque)
        """The stored calls that are known by their order."""
        for call in self._stored.values():
            if call.by_order:
                self._by_order[_route(call)].append(call)
        self._tools_ahead = {name for name, call in self._stored.items() if call.kind == "tool" and self._by_order}
        """With another prompt: the stored calls of tools that were not made again yet."""
        self._kept: list[KeptCall] = []
        """In the order in which they were made."""
        self._completed: list[KeptCall] = []
        self._sessions: defaultdict[str, _SessionCopies] = defaultdict(_SessionCopies)
        for call in self._stored.values():
            if call.kind in ("tool", "message"):
                self._sessions[_route(call).partition("/")[0]].stored.append(call)

    async def check_restorable(self, client: ServerClient) -> None:
        """Raise RolloutError if the rollout is to go on from a prefix with calls of an environment that cannot be
        brought back there."""
        if self._request.mode != "continue":
            return
        for server, session in self._sessions.items():
            reply = await client.send(server, RESTORE_PATH, method="GET")
            mode = reply.json() if reply.status < 400 else "none"
            if mode == "none":
                message = f"'{server}' cannot be brought back to an earlier step (its `restore` is `none` or not set)."
                raise RolloutError("environment", message, server=server, code=NOT_RESTORED, retryable=False)
            session.may_load = mode == "copy"

    def running(self) -> contextlib.AbstractContextManager[None]:
        """Log the calls made inside the block."""
        row = self._row
        suffix = f"-a{row.attempt - 1}" if row.attempt > 1 else ""
        return rollout_context(f"{row.task_index}-{row.repeat_index}{suffix}", self, row.routing)

    @property
    def policy_version(self) -> int | None:
        """The version of the weights that the trainer names."""
        gate = self._request.gate
        return None if gate is None else gate.version

    async def wait_while_paused(self) -> None:
        """Wait until models may be called."""
        if self._request.gate is not None:
            await self._request.gate.wait()

    def call(self, server: str, path: str, body: Any, send: Send) -> Awaitable[ServerReply]:
        """The reply to a call that the attempt makes."""
        if self._request.mode == "gate":
            return self._gated(send) if server in self._request.models else send()
        kind = self._kind(server, path)
        if kind is None:
            return send()
        make = self._kept_call if self._request.mode == "memory" else self._logged_call
        return make(kind, server, path, body, send)

    def kept_lines(self) -> bytes:
        """The completed calls of a log in memory, in the order in which they completed. To be asked for once."""
        for call in self._kept:  # equal ones are numbered as they were made
            call.name = self._name(call.server, call.path, _encoded_request(call.request))
        return b"".join(map(self._kept_line, self._completed))

    def _kept_line(self, call: KeptCall) -> bytes:
        reply = call.reply
        if reply is None:
            raise AssertionError("the call is completed")
        text = self._as_stored(reply, call.name) if call.kind == "model" else reply.text
        fields = {"kind": call.kind, "status": reply.status, "request": "", "reply": text, **call.times}
        return _line(self._row, self._request, name=call.name, **fields)

    async def _kept_call(self, kind: CallKind, server: str, path: str, body: Any, send: Send) -> ServerReply:
        call = KeptCall(kind, server, path, body if isinstance(body, FrozenRequest) else _encoded_request(body))
        self._kept.append(call)
        if kind == "model":
            await self.wait_while_paused()
        started_at, started = time.time(), time.perf_counter()
        call.reply = reply = await send()
        reply.content()  # which the caller decodes, as it would a stored one; a live object may change
        call.times = _times(started_at, started)
        self._completed.append(call)
        return reply

    async def _gated(self, send: Send) -> ServerReply:
        await self.wait_while_paused()
        return await send()

    async def _logged_call(self, kind: CallKind, server: str, path: str, body: Any, send: Send) -> ServerReply:
        is_replay, is_continued = self._request.mode == "replay", self._request.mode == "continue"
        request = _encoded_request(body)
        name = self._name(server, path, request)
        stored = self._stored.get(name)
        if kind != "tool" and (in_order := self._by_order.get(server + path)):
            stored = in_order.popleft()
            name = stored.name
        if kind == "model" and stored is not None and (is_replay or stored.status < 400):
            self._ahead[server + path] -= 1
            known = self._replies.get(name)
            return ServerReply(server, stored.status, stored.reply.encode() if known is None else encode(known))
        if is_continued and kind == "model" and self._ahead[server + path] > 0:
            raise self._not_restored(server, f"the next request to {server}{path} is another one than it was")
        if kind != "model" and stored is None and any(self._by_order.values()):
            raise self._not_restored(server, f"{server}{path} was not called like this")
        self._tools_ahead.discard(name)
        if kind == "model" and self._tools_ahead:
            missing = min(self._tools_ahead).partition(" ")[0]
            raise self._not_restored(server, f"{missing} was not called again. Does the row still offer this tool?")
        if is_replay and kind != "message":  # the next call of the model shows whether a message is the same
            return await self._replay(server, path, kind, request, stored, send)
        if kind == "model":
            await self.wait_while_paused()
        if is_continued and stored is not None and kind != "model" and await self._is_loaded(server, send):
            return ServerReply(server, stored.status, stored.reply.encode(), self._sessions[server].cookies)
        started_at, started = time.time(), time.perf_counter()
        reply = await send()
        if is_continued and stored is not None and kind != "model" and reply.text != stored.reply:
            found = f"{server}{path} replied {reply.text[:300]!r}, before {stored.reply[:300]!r}"
            raise self._not_restored(server, found)
        times = _times(started_at, started)
        text = self._as_stored(reply, name) if kind == "model" else reply.text
        if stored is None or (stored.status, stored.reply) != (reply.status, text):
            asked = request.decode(errors="replace") if self._request.mode == "record" else ""
            fields = {"kind": kind, "status": reply.status, "request": asked, "reply": text, **times}
            self._request.write(_line(self._row, self._request, name=name, **fields))
        if self._request.mode == "keep" and kind != "model":
            await self._save_session(server, reply, send)
        return reply

    def _is_whole(self, call: Call) -> bool:
        """False for a reply whose prompt continues a call that is lost."""
        if TOKENS not in call.reply or call.status >= 400:
            return True
        try:
            self._replies[call.name] = read_reply(call.reply, self._prompts, place=call.name)
        except (KeyError, TypeError, ValueError):
            return False
        return True

    def _as_stored(self, reply: ServerReply, name: str) -> str:
        """The text of a model's reply, with the prompt ids that the log does not have yet. The caller decodes the
        reply, as it would a stored one: the items of a live one have other defaults, and so its next request."""
        content = reply.content()
        if PROMPT_NAME not in content or reply.status >= 400:
            return reply.text
        return encode(shorten_prompts(orjson.loads(content), self._prompts, place=name)).decode()

    async def _save_session(self, server: str, reply: ServerReply, send: Send) -> None:
        """Let an environment that restores by copy save its state after a call."""
        session = self._sessions[server]
        session.made += 1
        if session.may_save:
            key = _copy_key(self._request.attempt_id, session.made)
            saved = await send(SESSION_COPY_PATH, {"save": key}, reply.cookies)
            session.may_save = saved.status < 400

    async def _is_loaded(self, server: str, send: Send) -> bool:
        """Load the state after the last stored call of an environment that restores by copy, once. False if it has no
        such copy: then its calls are made again."""
        session = self._sessions[server]
        async with session.loading:
            if session.is_loaded is None:
                key = _copy_key(session.stored[-1].attempt_id, len(session.stored))
                reply = await send(SESSION_COPY_PATH, {"load": key}) if session.may_load else None
                session.is_loaded = reply is not None and reply.status < 400
                session.cookies = reply.cookies if reply is not None and session.is_loaded else {}
        return session.is_loaded

    def _not_restored(self, server: str, difference: str) -> RolloutError:
        message = f"The rollout did not get back to where it is to go on: {difference}."
        return RolloutError("environment", message, server=server, code=NOT_RESTORED, retryable=False)

    async def _replay(
        self, server: str, path: str, kind: Cause, request: bytes, stored: Call | None, send: Send
    ) -> ServerReply:
        """The reply of a tool, which must be the stored one. Raises for any other call."""
        place = f"Replay differs at row {self._row.task_index}, repeat {self._row.repeat_index}"
        if stored is None:
            difference = self._difference(f"{server}{path}", request)
            raise RolloutError(kind, f"{place}, {difference}.", server=server)
        reply = await send()
        if reply.text != stored.reply:
            found = f"replied {reply.text[:300]!r}, recorded {stored.reply[:300]!r}"
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
        """Describe the call that was not recorded, and what was requested instead."""
        like = [call for name, call in self._stored.items() if name.startswith(f"{route} ")]
        made = sum(count for name, count in self._made.items() if name.startswith(f"{route} "))
        then = like[made - 1].request if len(like) >= made else ""
        return f"call {made} of {route}: {_first_change(then, request) if then else 'it was not called'}"


@dataclass(slots=True)
class _SessionCopies:
    """The copies of the session of an attempt on one server."""

    stored: list[Call] = field(default_factory=list)
    """The session's stored calls, after which the attempt goes on."""
    made: int = 0
    may_save: bool = True
    may_load: bool = False
    is_loaded: bool | None = None
    cookies: dict[str, str] = field(default_factory=dict)
    loading: asyncio.Lock = field(default_factory=asyncio.Lock)


def _encoded_request(body: Any) -> bytes:
    """The JSON of a request by which its call is known, or the request if it is such JSON."""
    return body if isinstance(body, bytes) else b"" if body is None else encode_without_tokens(body)


def _times(started_at: float, started: float) -> dict[str, float]:
    return {"started_at": round(started_at, 6), "seconds": round(time.perf_counter() - started, 6)}


def _copy_key(attempt_id: str, calls: int) -> str:
    """Return the name of a session's state after the first `calls` calls of an attempt."""
    return f"{attempt_id} {calls}"


def _route(call: Call) -> str:
    """The server and path of a call."""
    return call.name.partition(" ")[0]


def _first_change(then: str, now: bytes) -> str:
    """The first place where two requests differ, with both values."""
    change = next(changes(orjson.loads(then), orjson.loads(now or b"{}")), None)
    if change is None:  # a field that is null in one and missing in the other
        return "the request is written in another way"
    place = dotted(("the request", *change.path))
    return f"{place} was {orjson.dumps(change.before).decode()[:300]}, is {orjson.dumps(change.now).decode()[:300]}"


def _line(row: Row, log: LogRequest, **fields: Any) -> bytes:
    return log.line_of(row, Call(**fields))


def is_line_of(line: bytes, row: Row, log: LogRequest) -> bool:
    """True for one line with a call of this attempt."""
    call = parse_call(line)
    if call is None or line.count(b"\n") != 1 or call.attempt_id != log.attempt_id:
        return False
    return row.key == _row_key(call)


def _row_key(call: Call) -> RowKey:
    return call.task_index, call.repeat_index, call.row_hash


@dataclass(slots=True)
class StoredAttempt:
    """The positions of an attempt's calls in the file."""

    id: str
    offsets: list[int] = field(default_factory=list)
    models: str = ""
    status: int | None = None
    """The status of the agent's reply; None if the attempt was interrupted."""


class CallLog:
    """The file, with an index of the attempts that go on or are replayed."""

    def __init__(self, path: Path, mode: LogMode, settings: Mapping[str, Any], *, option: str = "") -> None:
        blocks = [block for block in blocks_in(settings) if block.server_type == "responses_api_models"]
        hashed = [(block.name, block.implementation, _without_address(block.config)) for block in blocks]
        self._models = [block.name for block in blocks]
        self._models_hash = hashlib.sha256(orjson.dumps(hashed, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]
        self.path, self._mode, self._option = path, mode, option
        """The option that says where it is, if it is not that of the mode."""
        self._run_id, self._started = secrets.token_hex(4), 0
        self._file: JsonlFile | None = None
        self._error: StorageError | None = None
        self._attempts: dict[tuple[Any, ...], StoredAttempt] = {}

    @contextlib.contextmanager
    def opened(self, is_done: Callable[[RowKey], bool]) -> Iterator[None]:
        """Read what is there, and append to it inside the block. Rollouts that are done need none of their calls."""
        if self._mode == "replay":
            with self.path.open("rb") as lines:
                self._read_index(lines, lambda _row: False)
            yield
            return
        role = _ROLES[self._mode]
        role = role._replace(option=self._option or role.option)
        with contextlib.closing(JsonlFile(self.path, role)) as self._file:
            self._file.repair()
            self._read_index(self._file.lines(), is_done)
            yield
            self._add(b"")  # it may have been moved or changed since the last call

    def raise_if_incomplete(self) -> None:
        """Raise if a recording could not be written to its end. All rollouts are made, whatever is in it."""
        if self._error is not None and self._mode == "record":
            raise self._error

    def logged(self, make: MakeAttempt) -> MakeAttempt:
        """Return `make` with the calls of every attempt logged here."""

        async def make_logged(row: Row, log: LogRequest | None = None) -> Outcome:
            attempt = self._attempt_at(row.key)
            stored = await asyncio.to_thread(self._read, attempt.offsets) if attempt.offsets else b""
            write = partial(self._append, attempt)
            log = LogRequest(attempt.id, self._mode, self._models, self._models_hash, stored, write)
            outcome = await make(row, log)
            if outcome.error is not None and outcome.error.code in LOST_CODES:
                self._attempts[self._index_key(row.key)] = (
                    attempt  # its process died, so the next attempt continues it
                )
            else:  # without this line, an attempt was interrupted
                is_played = outcome.error is None or outcome.error.code == GROUP_VERIFICATION
                self._add(_line(row, log, name=END_OF_ATTEMPT, status=200 if is_played else 500))
            return outcome

        return make_logged

    def _index_key(self, key: RowKey) -> tuple[Any, ...]:
        """A replay says what is different in a row that has changed."""
        return key[:2] if self._mode == "replay" else key

    def _attempt_at(self, row: RowKey) -> StoredAttempt:
        """The one to replay or to go on with, else a new one. If an attempt that went on fails, the next one does not
        get its calls."""
        key, self._started = self._index_key(row), self._started + 1
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

    def _read_index(self, lines: Iterable[bytes], is_done: Callable[[RowKey], bool]) -> None:
        found: dict[tuple[Any, ...], dict[str, StoredAttempt]] = {}
        offset = damaged = 0
        for line in lines:
            call = parse_call(line)
            if call is None:
                damaged += 1
            elif not is_done(_row_key(call)):
                _add_call(found.setdefault(self._index_key(_row_key(call)), {}), call, offset)
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
    """Drop host and port, which differ from run to run."""
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
