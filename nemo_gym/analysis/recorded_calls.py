"""Which calls of a rollout are recorded, and under which name. How a line of a record is read."""

import hashlib
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import orjson

from nemo_gym.client.server_client import ServerReply
from nemo_gym.llm_api.json_codec import encode
from nemo_gym.rollouts.attempt_context import RecordingContext, current_attempt
from nemo_gym.server.tools import NOT_TOOLS

COMPLETED = "/run"
"""The last call of an attempt: that of the agent."""
Send = Callable[[], Awaitable[ServerReply]]


class RecordedCall(NamedTuple):
    """A call to a model or a tool."""

    context: RecordingContext
    name: str
    """Equal calls are numbered, so that they may come in any order."""
    request: bytes


def parse_call(line: bytes) -> dict[str, Any] | None:
    """The fields of a stored line; None if it is damaged, or its writer was killed in it."""
    try:
        fields = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return fields if line.endswith(b"\n") and isinstance(fields, dict) and "call" in fields else None


def call_of(server: str, path: str, body: Any, models: frozenset[str]) -> RecordedCall | None:
    """The call to record; None if it belongs to no rollout, or goes neither to a model nor to a tool."""
    current = current_attempt()
    if current is None or path[1:] in NOT_TOOLS or ("/v1/" in path and server not in models):
        return None
    request = b"" if body is None else encode(body, exclude_unset=True)
    name = f"{server}{path} {hashlib.sha256(request).hexdigest()[:16]}"
    current.calls[name] += 1
    return RecordedCall(current, f"{name} {current.calls[name]}", request)
