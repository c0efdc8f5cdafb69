"""Captured model calls: with `observability_enabled`, a model server appends every call of a rollout to the rollout's
call log in a folder, and the agent puts them into its record. The rollout is known by the path of a request, or in one
worker by the running task, so this works for programs outside too."""

import asyncio
import functools
import inspect
import os
import time
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import orjson
from pydantic import BaseModel, Field

from nemo_gym.client.call_log import Call, call_name, current_rollout_id, parse_call, rollout_context
from nemo_gym.client.server_client import ServerClient, ServerReply
from nemo_gym.errors import ConfigError
from nemo_gym.llm_api.base import JsonObject
from nemo_gym.llm_api.json_codec import FrozenBody, encode
from nemo_gym.server.rollout_prefix import is_rollout_id, maybe_rollout_id_from_run_body

ENABLED_KEY, DIR_KEY, RECORD_KEY = "observability_enabled", "model_call_capture_dir", "ng_model_call_capture"
Handler = Callable[..., Coroutine[Any, Any, Any]]


class ModelCallRecord(BaseModel):
    """A model call as records have it. Token ids are in the response if the server returns them."""

    model_call_id: str = Field(default_factory=lambda: uuid4().hex)
    rollout_id: str = ""
    model_ref: Any = ""
    """The name of the model server, or a reference to it."""
    dialect: str = ""
    """`responses`, `chat_completions` or `completions`."""
    started_at: float = 0.0
    duration_ms: float = 0.0
    request: Any = None
    response: Any = None
    error: str | None = None

    @classmethod
    def of(cls, call: Call) -> Self:
        route, _, call_id = call.name.rsplit(" ", 2)
        server, _, path = route.partition("/")
        return cls(
            model_call_id=call_id,
            rollout_id=call.attempt_id,
            model_ref=server,
            dialect=path.removeprefix("v1/").replace("/", "_"),
            started_at=call.started_at,
            duration_ms=round(1000 * call.seconds, 3),
            request=orjson.loads(call.request),
            response=orjson.loads(call.reply) if call.reply else None,
            error=call.error or None,
        )

    @property
    def response_id(self) -> str | None:
        return self.response.get("id") if isinstance(self.response, dict) else None


class CaptureStore:
    """The captured calls of rollouts: one log for each, `<rollout id>.capture.jsonl`."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    @classmethod
    def of(cls, client: ServerClient) -> "CaptureStore | None":
        """None if the configuration does not ask for captured calls."""
        if client.setting(ENABLED_KEY) is not True:
            return None
        folder = client.setting(DIR_KEY)
        if not folder or not Path(folder).is_absolute():
            raise ConfigError(f"{DIR_KEY} is {folder!r}; {ENABLED_KEY} needs an absolute path of a folder there.")
        return cls(folder)

    def path(self, rollout_id: str) -> Path:
        if not is_rollout_id(rollout_id):
            raise ValueError(f"{rollout_id!r} is not the id of a rollout.")
        return self.folder / f"{rollout_id}.capture.jsonl"

    def append(self, call: Call) -> None:
        """Write a call to the log of its rollout, in one write, so that several processes may append to one file."""
        self._write(call.attempt_id, call.line())

    def record(self, rollout_id: str, call: Mapping[str, Any]) -> None:
        """Write a call that is a record already."""
        self._write(rollout_id, orjson.dumps({"rollout_id": rollout_id, **call}) + b"\n")

    def _write(self, rollout_id: str, line: bytes) -> None:
        path = self.path(rollout_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            file.write(line)

    def discard(self, rollout_id: str) -> None:
        """Drop the calls that an earlier run made under the same id."""
        self.path(rollout_id).unlink(missing_ok=True)

    def read(self, rollout_id: str) -> list[ModelCallRecord]:
        """Read the calls in the order in which they ended. A line that its writer did not finish is left out."""
        path = self.path(rollout_id)
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        return [_record_in(line) for line in lines if line.endswith(b"\n")]


def _record_in(line: bytes) -> ModelCallRecord:
    call = parse_call(line)  # earlier versions wrote the record itself
    return ModelCallRecord.model_validate_json(line) if call is None else ModelCallRecord.of(call)


def read_model_call_records(folder: str | Path | CaptureStore, rollout_id: str) -> list[ModelCallRecord]:
    """The captured calls of a rollout."""
    store = folder if isinstance(folder, CaptureStore) else CaptureStore(folder)
    return store.read(rollout_id)


def aggregate_model_call_metrics(records: list[ModelCallRecord]) -> dict[str, float]:
    """Return the number of calls and failures, their durations, and their tokens."""
    totals = {
        "num_calls": float(len(records)),
        "num_failed_calls": float(sum(record.error is not None for record in records)),
        "duration_ms": sum(record.duration_ms for record in records),
    }
    for record in records:
        usage = record.response.get("usage") if isinstance(record.response, dict) else None
        for name, value in (usage or {}).items():
            if isinstance(value, int):
                totals[name] = totals.get(name, 0.0) + value
    return totals


def with_captured_calls(record: JsonObject, folder: str | Path, rollout_id: str) -> JsonObject:
    """The record with its captured calls."""
    calls = read_model_call_records(folder, rollout_id)
    captured = {
        "rollout_id": rollout_id,
        "metrics": aggregate_model_call_metrics(calls),
        "calls": [call.model_dump(mode="json") for call in calls],
        "gaps": [] if calls else [{"code": "no_model_calls"}],
    }
    return {**record, RECORD_KEY: captured}


def capture_calls(handler: Handler, store: CaptureStore | None, *, server: str, path: str) -> Handler:
    """The handler of a model server at `path`, with its calls in a rollout captured."""
    if store is None or not inspect.iscoroutinefunction(handler):
        return handler

    @functools.wraps(handler)
    async def captured(*args: Any, **given: Any) -> Any:
        rollout_id = current_rollout_id()
        if rollout_id is None or not is_rollout_id(rollout_id):
            return await handler(*args, **given)
        request = encode(_body_in(args, given), exclude_unset=True)
        started_at, started = time.time(), time.monotonic()
        reply, error = b"", ""
        try:
            result = await handler(*args, **given)
            reply = _json_of(result)
            return result
        except BaseException as failure:
            error = repr(failure)
            raise
        finally:
            call = Call(
                name=f"{call_name(server, path, request)} {uuid4().hex}",
                kind="model",
                started_at=started_at,
                seconds=time.monotonic() - started,
                request=request.decode(),
                reply=reply.decode(),
                error=error,
                attempt_id=rollout_id,
            )
            await asyncio.shield(asyncio.to_thread(store.append, call))

    return captured


def run_with_captured_calls(run: Handler, store: CaptureStore | None) -> Handler:
    """The handler of an agent's `/run`: calls made in it belong to its rollout, and its record gets them."""
    if store is None or not inspect.iscoroutinefunction(run):
        return run

    @functools.wraps(run)
    async def captured(*args: Any, **given: Any) -> Any:
        rollout_id = maybe_rollout_id_from_run_body(_body_in(args, given))
        if rollout_id is None:
            return await run(*args, **given)
        store.discard(rollout_id)
        with rollout_context(rollout_id):
            result = await run(*args, **given)
        if isinstance(result, ServerReply) and result.status >= 400:
            return result
        record = orjson.loads(_json_of(result) or b"null")
        if not isinstance(record, dict):
            return result
        return await asyncio.to_thread(with_captured_calls, record, store.folder, rollout_id)

    return captured


def _body_in(args: tuple[Any, ...], given: Mapping[str, Any]) -> Any:
    """The argument that is the body of the request."""
    values = (given.get("body"), *given.values(), *args)
    return next((value for value in values if isinstance(value, BaseModel | FrozenBody | dict)), None)


def _json_of(value: Any) -> bytes:
    """Empty for a streamed response, whose events are not read here."""
    if callable(value):  # a Starlette response
        return bytes(getattr(value, "body", b""))
    return value.content() if isinstance(value, ServerReply) else encode(value)
