"""`/ng-rollout/<id>/...`: a path that says which rollout a request belongs to, for programs that cannot send headers.

Every server accepts the prefix. Agents add it to the URLs that they hand out only if the configuration asks for it.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from starlette.requests import Request

    from nemo_gym.client.server_client import ServerClient

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_PREFIX = re.compile(rf"/{ROLLOUT_PATH_PREFIX}/([^/]+)(?:/{TOKEN_CAPTURE_PATH_SEGMENT})?(/.*)")
START = f"/{ROLLOUT_PATH_PREFIX}/"


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


class RolloutUrlsMixin:
    """Methods of agents. Without `observability_enabled` and `token_id_capture` nothing gets a prefix."""

    if TYPE_CHECKING:
        config: Any
        server_client: ServerClient

    def _model_call_capture_enabled(self) -> bool:
        return self.server_client.setting("observability_enabled") is True

    def _token_id_capture_enabled(self) -> bool:
        return bool(self.config.token_id_capture)

    def rollout_id_from_run(self, body: Any) -> str | None:
        """The id of a row's rollout, if the calls of outside programs are to be told apart by it."""
        is_wanted = self._model_call_capture_enabled() or self._token_id_capture_enabled()
        return maybe_rollout_id_from_run_body(body) if is_wanted else None

    def url_path_for_run(self, path: str, body: Any) -> str:
        """The path of a server, for calls of this row's rollout."""
        return self._prefix(self.rollout_id_from_run(body)) + path

    def base_url_for_run(self, root_url: str, body: Any) -> str:
        """The address of a server, for a program that makes this row's rollout. Add `/v1` behind it."""
        return root_url.rstrip("/") + self._prefix(self.rollout_id_from_run(body))

    def url_path_for_request(self, path: str, request: "Request") -> str:
        """The path of a server, with the prefix under which this request came in."""
        return rollout_path_prefix(request.path_params.get("rollout_id")) + path

    def resolve_model_base_url(self, server_name: str, rollout_id: str | None = None) -> str:
        """The base URL of a model server, for a program outside."""
        return f"{self.server_client.url_of(server_name)}{self._prefix(rollout_id)}/v1"

    def _prefix(self, rollout_id: str | None) -> str:
        return rollout_path_prefix(rollout_id, token_capture=self._token_id_capture_enabled())
