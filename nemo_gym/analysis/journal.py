"""Resume inside a rollout: replies of models are written as they complete, and a collection that was killed goes on
with them. Tools run again, which brings the environment into the state it was in.

A reply is found by its request. Where a tool gives another output than before, or a reply is lost with a damaged line,
the requests that follow are new, and the model is called: a rollout never contains a reply to another conversation
than its own."""

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from nemo_gym.analysis.recorded_calls import COMPLETED, RecordedCall, Send, call_of, parse_call
from nemo_gym.client.server_client import ServerReply
from nemo_gym.common.redaction import MASKED_FIELD
from nemo_gym.config.tree import blocks_in
from nemo_gym.rollouts.attempt_context import RecordingContext, current_attempt
from nemo_gym.rollouts.store import FileRole, JsonlFile, StorageError
from nemo_gym.rollouts.types import RowId, parse_row_id

logger = logging.getLogger(__name__)

_MODELS = "models"
"""The hash of the models' configuration is in every line with a reply, so that no line depends on another."""
_NOT_CONFIG = ("host", "port")
"""Where a model server listens differs from run to run."""
_ENDS_HERE = "The journal of this run ends here: later replies are asked for again if the command is killed."
_JOURNAL_ROLE = FileRole("output_jsonl_fpath", if_full=_ENDS_HERE, if_moved=_ENDS_HERE, if_truncated=_ENDS_HERE)


class Journal:
    """Writes the replies of models, and gives those of rollouts that were not finished when an earlier run ended.

    The file is opened by the first call, when the collector has moved the files of other runs aside."""

    def __init__(self, path: Path, output: Path, settings: Mapping[str, Any]) -> None:
        blocks = [block for block in blocks_in(settings) if block.server_type == "responses_api_models"]
        self._path, self._output, self._models = path, output, frozenset(block.name for block in blocks)
        self._hash = _hash([(block.name, block.implementation, _config(block.config)) for block in blocks])
        self._file: JsonlFile | None = None
        self._unfinished: dict[RowId, dict[str, int]] = {}
        self._resumed: dict[int, dict[str, int]] = {}
        """The stored calls of an attempt of this run. Only the first attempt at a rollout gets them: if it fails, the
        next one asks the models again."""
        self._is_failed = False

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    async def __call__(self, server: str, path: str, body: Any, send: Send) -> ServerReply:
        context = current_attempt()
        if context is not None and path == COMPLETED:
            return await self._play(context, send)
        call = call_of(server, path, body, self._models) if server in self._models else None
        if call is None:
            return await send()
        offset = self._resumed.get(call.context.number, {}).get(call.name)
        if offset is not None:
            found = await asyncio.to_thread(self._read, offset)
            return ServerReply(server, found["status"], found["answer"].encode())
        reply = await send()
        if reply.status < 400:
            self._write_reply(call, reply)
        return reply

    async def _play(self, context: RecordingContext, send: Send) -> ServerReply:
        if self._file is None:
            self._open()
        self._resumed[context.number] = self._unfinished.pop(context.row, {})
        try:
            reply = await send()
        except Exception:  # but not if it was cancelled: then it is unfinished
            self._write({**context.row.metadata(), "call": COMPLETED})
            raise
        finally:
            del self._resumed[context.number]
        if reply.status >= 400:
            self._write({**context.row.metadata(), "call": COMPLETED})
        return reply

    def _open(self) -> None:
        self._file = JsonlFile(self._path, _JOURNAL_ROLE)
        self._file.repair()
        found = _read_journal(self._file.lines(), self._hash, finished=set(map(parse_row_id, _lines(self._output))))
        self._unfinished = found.calls
        if found.calls:
            stored = sum(map(len, found.calls.values()))
            logger.info("%d rollouts go on with %d replies of models from %s", len(found.calls), stored, self._path)
        if found.masked:
            message = "secrets are masked in %d replies of models in %s, which are asked for again"
            logger.info(message, found.masked, self._path)
        if found.damaged:
            logger.warning("damaged lines in %s: %d; their replies are asked for again", self._path, found.damaged)

    def _write_reply(self, call: RecordedCall, reply: ServerReply) -> None:
        fields = {_MODELS: self._hash, "call": call.name, "status": reply.status, "answer": reply.text()}
        self._write({**fields, **call.context.row.metadata()})

    def _write(self, fields: Mapping[str, Any]) -> None:
        if self._file is None or self._is_failed:
            return
        try:
            self._file.add([orjson.dumps(fields) + b"\n"], durable=False)
        except StorageError as error:
            logger.error("%s", error)
            self._is_failed = True

    def _read(self, offset: int) -> dict[str, Any]:
        with self._path.open("rb") as file:
            file.seek(offset)
            line: dict[str, Any] = orjson.loads(file.readline())
            return line


class _StoredCalls(NamedTuple):
    calls: dict[RowId, dict[str, int]]
    """Where the replies of unfinished rollouts are in the file, by call."""
    masked: int
    damaged: int


def _read_journal(lines: Iterable[bytes], models: str, *, finished: Container[RowId | None]) -> _StoredCalls:
    """What an earlier run with these models has left. A line that cannot be read costs its own reply."""
    calls: dict[RowId, dict[str, int]] = {}
    offset = masked = damaged = 0
    for line in lines:
        row, fields = parse_row_id(line), parse_call(line)
        if row is None or fields is None:
            damaged += 1
        elif fields["call"] == COMPLETED:
            calls.pop(row, None)
        elif fields.get(_MODELS) == models and row not in finished:
            if MASKED_FIELD in fields:  # not what the model said
                masked += 1
            else:
                calls.setdefault(row, {})[fields["call"]] = offset
        offset += len(line)
    return _StoredCalls(calls, masked, damaged)


def _lines(path: Path) -> Iterator[bytes]:
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        yield from file


def _config(config: Any) -> Any:
    return {name: value for name, value in config.items() if name not in _NOT_CONFIG}


def _hash(value: Any) -> str:
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]
