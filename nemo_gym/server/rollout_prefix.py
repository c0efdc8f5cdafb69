"""`/ng-rollout/<id>/...`: a path that says which rollout a request belongs to, for programs that cannot send headers.

Every server accepts the prefix. Agents add it to the URLs that they hand out only if the configuration asks for it.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from nemo_gym.common.plugins import plugin
from nemo_gym.config.keys import (
    ATTEMPT_INDEX_KEY_NAME,
    OBSERVABILITY_ENABLED_KEY_NAME,
    ROLLOUT_ID_KEY_NAME,
    ROLLOUT_INDEX_KEY_NAME,
    ROLLOUT_PATH_PREFIX,
    TASK_INDEX_KEY_NAME,
    TOKEN_CAPTURE_PATH_SEGMENT,
    TOKEN_ID_CAPTURE_BLOCK,
    blocks_in,
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
    """Return the id of a row's rollout from the indices it was sent with; None if it has none."""
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


def _config_of(client: Any) -> Mapping[str, Any]:
    """The run's configuration. A test's stand-in for a client may have none."""
    config = getattr(client, "global_config_dict", None)
    return config if isinstance(config, Mapping) else {}


class AgentSessionsMixin:
    """Hooks and methods of agents of the public NeMo Gym that keep sessions for an environment server."""

    if TYPE_CHECKING:
        config: Any

    async def _seed_agent_session_state(self, body: Any) -> Any:
        """Set up a session and return its state."""
        raise NotImplementedError(f"{type(self).__name__} keeps no agent sessions")

    async def _close_agent_session_state(self, state: Any) -> Any:
        """Release what a session holds and return the reply to its close."""
        raise NotImplementedError(f"{type(self).__name__} keeps no agent sessions")

    async def seed_agent_session(self, request: "Request", body: Any) -> Any:
        """Set up a session, once for equal requests."""
        return await self._agent_sessions().seed(body, request)

    async def close_agent_session(self, request: "Request", body: Any) -> Any:
        """Close a session. Closing it again gives the same reply."""
        return await self._agent_sessions().close(body, request)

    def _agent_sessions(self) -> Any:
        sessions = self.__dict__.get("_agent_session_store")
        if sessions is None:
            sessions = self.__dict__["_agent_session_store"] = plugin("sessions").AgentSessions(self)
        return sessions

    @property
    def _session_records(self) -> dict[str, Any]:
        records: dict[str, Any] = self._agent_sessions().records
        return records

    @property
    def _closed_session_records(self) -> dict[str, Any]:
        closed: dict[str, Any] = self._agent_sessions().closed
        return closed

    def _require_agent_session(self, agent_session_id: str) -> Any:
        """Return the state of an open session. Without one, the reply is 409."""
        return self._agent_sessions().state(agent_session_id)

    def _agent_session_id_from_request(self, request: "Request") -> str | None:
        found: str | None = plugin("sessions").session_id_of(request)
        return found

    def effective_tool_accesses(self, request: Any) -> list[Any]:
        """Return the tool accesses of the configuration, replaced by those of the request with the same name."""
        found: list[Any] = plugin("sessions").effective_tool_accesses(self.config, request)
        return found


class RolloutUrlsMixin:
    """Methods of agents. Without `observability_enabled` and `token_id_capture` nothing gets a prefix."""

    if TYPE_CHECKING:
        config: Any
        server_client: ServerClient

    def _model_call_capture_enabled(self) -> bool:
        return _config_of(self.server_client).get(OBSERVABILITY_ENABLED_KEY_NAME) is True

    def _token_id_capture_enabled(self) -> bool:
        """True if the run captures tokens, and those of this agent."""
        block = _config_of(self.server_client).get(TOKEN_ID_CAPTURE_BLOCK)
        if not isinstance(block, Mapping) or not block.get("enabled"):
            return False
        return bool(block.get("all_agents") or self.config.token_id_capture)

    def _capture_correlation_enabled(self) -> bool:
        """True if calls of outside programs are assigned to rollouts."""
        return self._model_call_capture_enabled() or self._token_id_capture_enabled()

    def rollout_id_from_run(self, body: Any) -> str | None:
        """Return the id of a row's rollout, if calls of outside programs are assigned to rollouts."""
        return maybe_rollout_id_from_run_body(body) if self._capture_correlation_enabled() else None

    def url_path_for_run(self, path: str, body: Any) -> str:
        """The path of a server, for calls of this row's rollout."""
        return self._prefix(self.rollout_id_from_run(body)) + path

    def base_url_for_run(self, base_url: str, body: Any) -> str:
        """The address of a server, for a program that makes this row's rollout. Add `/v1` behind it."""
        return base_url.rstrip("/") + self._prefix(self.rollout_id_from_run(body))

    def url_path_for_request(self, path: str, request: "Request") -> str:
        """The path of a server, with the prefix under which this request came in."""
        params = getattr(request, "path_params", None)
        known: Mapping[str, Any] = params if isinstance(params, Mapping) else {}
        return rollout_path_prefix(known.get("rollout_id")) + path

    def resolve_model_base_url(self, server_name: str, rollout_id: str | None = None) -> str:
        """The base URL of a model server, for a program outside."""
        client = self.server_client
        block = next(blocks_in({server_name: _config_of(client).get(server_name)}), None)
        is_found = server_name in (getattr(client, "addresses", None) or ())
        root = client.url_of(server_name) if is_found or block is None else client._build_server_base_url(block.config)
        return f"{root}{self._prefix(rollout_id)}/v1"

    def _prefix(self, rollout_id: str | None) -> str:
        return rollout_path_prefix(rollout_id, token_capture=self._token_id_capture_enabled())
