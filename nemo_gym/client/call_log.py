"""One call of a rollout, as a line of a call log, and the rollout that the running task belongs to.

Whoever makes an attempt at a rollout runs it in a `rollout_context` with a log. `ServerClient` passes every call made
there to the log, which makes it, stores it or replies from what is stored (`nemo_gym.rollouts.call_log`)."""

import hashlib
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from nemo_gym.client.reply import ServerReply
from nemo_gym.errors import BlockedError

CallKind = Literal["model", "tool", "message"]
"""`model`: also of judges and simulated users. `message`: the environment speaks as the user."""
Send = Callable[..., Awaitable[ServerReply]]
"""Sends a call, or another one in the same session: takes a path, a body and more cookies."""

END_OF_ATTEMPT = "/run"
"""The name of the line that ends an attempt. Its status is that of the agent's reply."""


class Call(msgspec.Struct, kw_only=True, omit_defaults=True, frozen=True):
    """One call with its reply. Token ids, log-probs and policy versions are in the reply."""

    name: str = msgspec.field(name="call")
    """Server and path, the digest of the request, and the number of the call among equal ones of its attempt."""
    kind: CallKind | None = None
    participant: str = ""
    """The caller of a tool, if it is not the policy."""
    status: int = 0
    """0 if there was no reply."""
    started_at: float = 0.0
    seconds: float = 0.0
    request: str = ""
    """As JSON. Not in a journal, where its digest is enough: a conversation is sent again with every call."""
    reply: str = ""
    error: str = ""
    """Why there was no reply."""
    models: str = ""
    """A hash of the configuration of all models."""
    attempt: int = 0
    attempt_id: str = ""
    """Unique in a log. An attempt that goes on after an interruption keeps it."""
    task_index: int = msgspec.field(name="_task_index", default=-1)
    repeat_index: int = msgspec.field(name="_repeat_index", default=-1)
    row_hash: str = msgspec.field(name="_row_hash", default="")
    answer: str = ""
    """The reply, in files of earlier versions."""
    is_masked: bool = msgspec.field(name="_masked", default=False)
    """True in files of earlier versions if secrets are masked in the line."""

    def line(self) -> bytes:
        return msgspec.json.encode(self) + b"\n"


_decode = msgspec.json.Decoder(Call).decode


def parse_call(line: bytes) -> Call | None:
    """The call in a line of a log. None if the line is damaged, its writer was killed in it, or it is masked."""
    try:
        call = _decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if not line.endswith(b"\n") or call.is_masked:
        return None
    return msgspec.structs.replace(call, reply=call.answer, answer="") if call.answer else call


def call_name(server: str, path: str, request: bytes) -> str:
    """The name that equal calls have in common."""
    return f"{server}{path} {hashlib.sha256(request).hexdigest()[:16]}"


class RolloutLog(Protocol):
    """Receives the calls of a rollout from `ServerClient`."""

    @property
    def policy_version(self) -> int | None:
        """The version of the weights that the trainer names."""

    async def wait_while_paused(self) -> None:
        """Wait until models may be called."""

    def call(self, server: str, path: str, body: Any, send: Send) -> Awaitable[ServerReply]:
        """The reply to a call. `send` makes it."""


RoutingKey = Literal["rollout", "group"]


class Routing(NamedTuple):
    """The ids of a rollout and its group, which are sent to endpoints so that requests with a common prompt can go to
    one replica."""

    rollout: str
    group: str


class RunningRollout(NamedTuple):
    """The rollout that the running task belongs to."""

    id: str | None
    """As in the path of requests: `/ng-rollout/<id>/...`."""
    log: RolloutLog | None
    routing: Routing | None
    step_seconds: list[dict[str, float]]
    """How long each step took: its model call, and the tool calls after it."""


class ServerCall(Protocol):
    """A call that a server in this process answers."""

    server: str
    path: str
    started: float
    interruption: BlockedError | None
    """The exception that the watchdog raised in the code of this call, or in a task that it started."""

    @property
    def stage(self) -> str:
        """The stage of a rollout that the call belongs to. Empty before it runs."""


running_call: ContextVar[ServerCall | None] = ContextVar("nemo_gym_running_call", default=None)
"""The call that the running code works for. Tasks and callbacks inherit it."""

_running: ContextVar[RunningRollout | None] = ContextVar("nemo_gym_rollout", default=None)
current_rollout = _running.get


@contextmanager
def rollout_context(
    rollout_id: str | None, log: RolloutLog | None = None, routing: Routing | None = None
) -> Iterator[None]:
    """Let the calls made inside the block belong to this rollout. Log and routing that are not given are those of the
    surrounding block, if there is one."""
    outer = current_rollout()
    inherited = (outer.log, outer.routing, outer.step_seconds) if outer else (None, None, [])
    token = _running.set(RunningRollout(rollout_id, log or inherited[0], routing or inherited[1], inherited[2]))
    try:
        yield
    finally:
        _running.reset(token)


def record_step_seconds(step_seconds: Iterable[dict[str, float]]) -> None:
    """Have the record of the running rollout say how long each step took."""
    if rollout := current_rollout():
        rollout.step_seconds[:] = step_seconds


def current_routing(key: RoutingKey) -> str | None:
    """Return the ids of the running task's rollout and group to send to endpoints."""
    rollout = current_rollout()
    return None if rollout is None or rollout.routing is None else getattr(rollout.routing, key)


def current_rollout_id() -> str | None:
    """The id of the rollout that the running task belongs to."""
    rollout = current_rollout()
    return None if rollout is None else rollout.id
