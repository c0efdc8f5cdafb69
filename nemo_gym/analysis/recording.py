"""Record the requests to models, judges and tools with their replies, and replay a run without the models.

On replay models and judges reply from the record; tools run for real, so that state is as it was, and must reply as
they did. The first difference ends the rollout with an error that names it."""

import asyncio
import contextlib
import logging
import secrets
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from nemo_gym.analysis.journal import Journal
from nemo_gym.analysis.recorded_calls import COMPLETED, RecordedCall, Send, call_of, parse_call
from nemo_gym.client.server_client import ServerClient, ServerReply
from nemo_gym.common.redaction import MASK, MASKED_FIELD, process_redactor
from nemo_gym.config.tree import blocks_in
from nemo_gym.errors import ConfigError, RolloutError
from nemo_gym.rollouts.attempt_context import RecordingContext, current_attempt
from nemo_gym.rollouts.config import RolloutCollectionConfig
from nemo_gym.rollouts.output_files import journal_path, manifest_path
from nemo_gym.rollouts.store import FileRole, JsonlFile, StorageError

logger = logging.getLogger(__name__)

FILE = "traffic.jsonl"
INCOMPLETE_FILE = "traffic_incomplete.jsonl"
"""The name that the file gets if it could not be written to the end."""
_RECORD_AGAIN = (
    "The recording is incomplete, which costs no rollout. To record them all, delete its folder, make room, and make "
    "them again with a new folder: +record=... +resume=restart"
)
_RECORDING_ROLE = FileRole("record", if_full=_RECORD_AGAIN, if_moved=_RECORD_AGAIN, if_truncated=_RECORD_AGAIN)
_MASKED_REPLY = (
    "secrets are masked in the recorded reply of %s, so it is not what the model said. Run it without +replay."
)


class Recorder:
    """Writes every call to a model or a tool with its reply, and a line at the end of each scored attempt."""

    def __init__(self, folder: Path, models: frozenset[str], *, resume: bool = False) -> None:
        """An existing record is appended to only by a run that resumes an interrupted one."""
        if (folder / INCOMPLETE_FILE).exists():
            raise ConfigError(f"{folder / INCOMPLETE_FILE} was cut short by an error. {_RECORD_AGAIN}")
        if not ((folder / FILE).exists() and resume) and folder.is_dir() and any(folder.iterdir()):
            raise ConfigError(f"{folder} exists already and is not empty. Record into a new folder, or delete it.")
        self._file, self._models = JsonlFile(folder / FILE, _RECORDING_ROLE), models
        self._file.repair()
        self._run_id = secrets.token_hex(4)
        self._error: StorageError | None = None

    def close(self) -> None:
        """Raises if something could not be written: then the rollouts are complete, but the record is not."""
        with contextlib.closing(self._file):
            if self._error is not None:
                raise self._error
            self._file.add([])

    async def __call__(self, server: str, path: str, body: Any, send: Send) -> ServerReply:
        call = call_of(server, path, body, self._models)
        reply = await send()
        context = current_attempt()
        if call is not None:
            fields = {"call": call.name, "status": reply.status, "request": call.request.decode()}
            self._write(call.context, {**fields, "answer": reply.text()})
        elif context is not None and path == COMPLETED and reply.status < 400:
            self._write(context, {"call": COMPLETED})
        return reply

    def _write(self, context: RecordingContext, fields: Mapping[str, Any]) -> None:
        attempt = {"attempt": context.attempt, "attempt_id": f"{self._run_id}-{context.number}"}
        line = orjson.dumps({**context.row.metadata(), **attempt, **fields}) + b"\n"
        if self._error is None:
            try:
                self._file.add([line], durable=False)
            except StorageError as error:
                logger.error("%s", error)
                self._error = error
                with contextlib.suppress(OSError):
                    self._file.path.rename(self._file.path.with_name(INCOMPLETE_FILE))


class Replayer:
    """Replies for models out of a record, and compares the replies of tools with it."""

    def __init__(self, folder: Path, models: frozenset[str]) -> None:
        self._path, self._models = folder / FILE, models
        if (folder / INCOMPLETE_FILE).exists():
            self._path = folder / INCOMPLETE_FILE
        if not self._path.exists():
            raise ConfigError(f"There is no record in {folder}: expected {self._path}, as +record={folder} writes it.")
        self._calls, is_damaged = _read_recording(self._path)
        if is_damaged or self._path.name == INCOMPLETE_FILE:
            logger.warning(
                "the recording in %s is incomplete: rollouts that are not in it will have no result", folder
            )

    def close(self) -> None:
        """Nothing is open."""

    async def __call__(self, server: str, path: str, body: Any, send: Send) -> ServerReply:
        call = call_of(server, path, body, self._models)
        if call is None:
            return await send()
        row = call.context.row
        place = f"Replay differs at row {row.task_index}, repeat {row.repeat_index}"
        calls = self._calls.get((row.task_index, row.repeat_index), {})
        if call.name not in calls:
            message = f"{place}, {self._difference(call, calls, f'{server}{path}')}."
            raise RolloutError("model" if server in self._models else "tool", message, server=server)
        recorded = await asyncio.to_thread(self._read, calls[call.name])
        is_masked = MASKED_FIELD in recorded and MASK in recorded["answer"]
        if server in self._models:
            if is_masked:
                raise RolloutError("model", f"{place}: {_MASKED_REPLY % f'{server}{path}'}", server=server)
            return ServerReply(server, recorded["status"], recorded["answer"].encode())
        reply = await send()
        text = process_redactor().values(reply.text()) if is_masked else reply.text()
        if text != recorded["answer"]:
            found = f"replied {text[:300]!r}, recorded {recorded['answer'][:300]!r}"
            raise RolloutError("tool", f"{place}: {server}{path} {found}.", server=server)
        return reply

    def _read(self, offset: int) -> dict[str, Any]:
        with self._path.open("rb") as file:
            file.seek(offset)
            line: dict[str, Any] = orjson.loads(file.readline())
            return line

    def _difference(self, call: RecordedCall, calls: dict[str, int], route: str) -> str:
        """Which call was not recorded, and what was requested instead."""
        like = [offset for name, offset in calls.items() if name.startswith(f"{route} ")]
        made = sum(count for name, count in call.context.calls.items() if name.startswith(f"{route} "))
        then = self._read(like[made - 1])["request"] if len(like) >= made else None
        now = orjson.loads(call.request or b"{}")
        return f"call {made} of {route}: {first_difference(orjson.loads(then), now) if then else 'it was not called'}"


class _Recording(NamedTuple):
    calls: dict[tuple[int, int], dict[str, int]]
    """Where the calls of each rollout are in the file: those of the attempt that was scored last, or if none was, of
    the last attempt. A killed run leaves calls of attempts that never ended."""
    is_damaged: bool


def _read_recording(path: Path) -> _Recording:
    calls: dict[str, dict[str, int]] = defaultdict(dict)
    last: dict[tuple[int, int], str] = {}
    scored: dict[tuple[int, int], str] = {}
    offset, is_damaged = 0, False
    with path.open("rb") as file:
        for line in file:
            fields = parse_call(line)
            if fields is None:
                is_damaged = True
            elif fields["call"] == COMPLETED:
                scored[_rollout(fields)] = _attempt(fields)
            else:
                calls[_attempt(fields)][fields["call"]] = offset
                last[_rollout(fields)] = _attempt(fields)
            offset += len(line)
    return _Recording({rollout: calls[attempt] for rollout, attempt in {**last, **scored}.items()}, is_damaged)


def _rollout(fields: Mapping[str, Any]) -> tuple[int, int]:
    return fields["_task_index"], fields["_repeat_index"]


def _attempt(fields: Mapping[str, Any]) -> str:
    return fields.get("attempt_id") or f"{_rollout(fields)} {fields['attempt']}"


def _tap(config: RolloutCollectionConfig, settings: Mapping[str, Any]) -> Recorder | Replayer | Journal:
    output = Path(config.output_jsonl_fpath)
    models = frozenset(block.name for block in blocks_in(settings) if block.server_type == "responses_api_models")
    if config.journal:
        return Journal(journal_path(output), output, settings)
    if config.replay is not None:
        return Replayer(Path(config.replay), models)
    resume, folder = config.resume != "restart" and manifest_path(output).exists(), Path(config.record or "")
    is_late = resume and output.exists() and output.stat().st_size > 0 and not (folder / FILE).exists()
    recorder = Recorder(folder, models, resume=resume)
    if is_late:
        logger.warning("%s has rollouts already, which will not be in the recording in %s", output, folder)
    return recorder


@contextlib.contextmanager
def record_or_replay(
    client: ServerClient, config: RolloutCollectionConfig, settings: Mapping[str, Any]
) -> Iterator[None]:
    """Record, replay or resume the calls of a client that holds the servers itself, if `config` asks for it."""
    wanted = [name for name in ("record", "replay", "journal") if getattr(config, name)]
    if not wanted:
        yield
        return
    if len(wanted) > 1:
        raise ConfigError(f"Both {wanted[0]} and {wanted[1]} are given. Expected one of them.")
    if not client.local:
        raise ConfigError(
            f"+{wanted[0]} needs all servers in this process. Found worker processes: leave num_workers out, and "
            "give config_paths instead of using the servers of a running `ng_run`."
        )
    tap = _tap(config, settings)
    client.tap = tap
    try:
        yield
    finally:
        client.tap = None
        tap.close()


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
