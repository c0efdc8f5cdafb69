"""`/ng-rollout/<id>/...`: a path that says which rollout a request belongs to, for programs that cannot send headers.

Every server accepts the prefix. Agents add it to the URLs that they hand out only if the configuration asks for it.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from pydantic import BaseModel

from nemo_gym.config.keys import (
    ATTEMPT_INDEX_KEY_NAME,
    ROLLOUT_ID_KEY_NAME,
    ROLLOUT_INDEX_KEY_NAME,
    ROLLOUT_PATH_PREFIX,
    TASK_INDEX_KEY_NAME,
    TOKEN_CAPTURE_PATH_SEGMENT,
)
from nemo_gym.llm_api.json_codec import set_fields
from nemo_gym.server.asgi import Scope

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_PREFIX = re.compile(rf"/{ROLLOUT_PATH_PREFIX}/([^/]+)(?:/{TOKEN_CAPTURE_PATH_SEGMENT})?(/.*)")
START = f"/{ROLLOUT_PATH_PREFIX}/"

_current: ContextVar[str | None] = ContextVar("rollout_id", default=None)


def without_prefix(scope: Scope) -> Scope | None:
    """The scope of a request as its endpoint sees it, with the rollout as a path parameter; None without a prefix. The
    raw path keeps it, for a request that is forwarded."""
    match = _PREFIX.fullmatch(scope["path"])
    if match is None:
        return None
    params = {**scope.get("path_params", {}), "rollout_id": match[1]}
    return {**scope, "path": match[2], "path_params": params}


def rollout_path_prefix(rollout_id: str | None, *, token_capture: bool = False) -> str:
    """The prefix for a rollout, or nothing without one."""
    if rollout_id is None:
        return ""
    return f"{START}{rollout_id}" + (f"/{TOKEN_CAPTURE_PATH_SEGMENT}" if token_capture else "")


def apply_rollout_prefix(base_url: str, rollout_id: str | None, *, token_capture: bool = False) -> str:
    """A server's address with the prefix behind it."""
    return base_url.rstrip("/") + rollout_path_prefix(rollout_id, token_capture=token_capture)


def is_rollout_id(text: str) -> bool:
    """True for what may name a rollout, and a file."""
    return _ID.fullmatch(text) is not None


def maybe_rollout_id_from_run_body(body: BaseModel | Mapping[str, Any] | None) -> str | None:
    """Which rollout a row is of, by the indices it was sent with; None if it has none."""
    row = set_fields(body) if body is not None else {}
    rollout_id = row.get(ROLLOUT_ID_KEY_NAME)
    if rollout_id is None:
        task, rollout = row.get(TASK_INDEX_KEY_NAME), row.get(ROLLOUT_INDEX_KEY_NAME)
        if task is None or rollout is None:
            return None
        rollout_id = f"{task}-{rollout}"
    elif not isinstance(rollout_id, str) or not _ID.fullmatch(rollout_id):
        raise ValueError(f"{ROLLOUT_ID_KEY_NAME} is {rollout_id!r}; expected letters, digits, '.', '_' and '-'")
    attempt = row.get(ATTEMPT_INDEX_KEY_NAME) or 0
    return f"{rollout_id}-a{attempt}" if attempt > 0 else rollout_id


def current_rollout_id() -> str | None:
    """The rollout that the path of the current request names."""
    return _current.get()


@contextmanager
def rollout_context(rollout_id: str | None) -> Iterator[None]:
    """Let `current_rollout_id` return this id inside the block."""
    token = _current.set(rollout_id)
    try:
        yield
    finally:
        _current.reset(token)
