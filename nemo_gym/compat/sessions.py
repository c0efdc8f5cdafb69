"""Sessions over HTTP: an environment server seeds and closes those of an environment and of an agent by id.

Our servers have neither. `make_app` adds these endpoints to the app of a class that overrides one of the hooks."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel, ConfigDict, Field, field_validator

from nemo_gym.analysis.observations import AgentObservationBundle
from nemo_gym.base_resources_server import BaseSeedSessionRequest, BaseSeedSessionResponse, SimpleResourcesServer
from nemo_gym.base_responses_api_agent import SimpleResponsesAPIAgent
from nemo_gym.compat.episodes import EpisodeId, Identifier, Strict, TaskId
from nemo_gym.compat.tool_access import ToolAccess
from nemo_gym.llm_api.base import JsonObject
from nemo_gym.sandbox.access import SandboxAccess

Input = TypeVar("Input")
AGENT_SESSION_KEY = "agent_session_id"
RETRY_WINDOW_S = 300.0
"""How long the reply to a close is kept for a client that did not get it."""
MAX_CLOSED = 4096
CONFLICT = 409


class MCPServerMetadata(BaseModel):
    """How to reach the tools of an environment over MCP."""

    server_name: str
    url_path: str
    transport: Literal["http"] | str = "http"
    headers: dict[str, str] = Field(default_factory=dict)


class ResourcesSeedSessionRequest(BaseSeedSessionRequest):
    """Set up a session of an environment. The caller chooses its id."""

    model_config = ConfigDict(extra="forbid")

    resources_session_id: Identifier
    episode_id: EpisodeId
    task_id: TaskId
    task_data: JsonObject = Field(default_factory=dict)


class ResourcesSeedSessionResponse(BaseSeedSessionResponse):
    model_config = ConfigDict(extra="forbid")

    resources_session_id: Identifier
    resources_tools: MCPServerMetadata | None = None
    sandbox_access: SandboxAccess | None = None


class ResourcesCloseSessionRequest(Strict):
    resources_session_id: Identifier
    episode_id: EpisodeId


class ResourcesCloseSessionResponse(Strict):
    resources_session_id: Identifier


class ResourcesVerifyRequest(Strict, Generic[Input]):
    episode_id: EpisodeId
    task_id: TaskId
    verification_input: Input


class AgentSeedSessionRequest(Strict):
    """Set up a session of an agent. The caller chooses its id."""

    agent_session_id: Identifier
    episode_id: EpisodeId
    task_id: TaskId
    tool_accesses: list[ToolAccess] = Field(default_factory=list)
    sandbox_access: SandboxAccess | None = None

    @field_validator("tool_accesses")
    @classmethod
    def _names_are_unique(cls, accesses: list[ToolAccess]) -> list[ToolAccess]:
        names = [access.name for access in accesses]
        if len(set(names)) < len(names):
            raise ValueError(f"the tool accesses {', '.join(names)} have a name twice")
        return accesses


class AgentSeedSessionResponse(Strict):
    agent_session_id: Identifier


class AgentCloseSessionRequest(Strict):
    agent_session_id: Identifier
    episode_id: EpisodeId


class AgentCloseSessionResponse(Strict):
    agent_session_id: Identifier
    agent_observations: AgentObservationBundle | None = None
    resources_cookies: dict[str, str] | None = None


@dataclass
class AgentSessionState:
    """What an agent keeps of a session. Subclass it."""

    request: AgentSeedSessionRequest


class AgentSessionSetupError(RuntimeError):
    """Setting up a session failed halfway; closing it releases `state`."""

    def __init__(self, state: AgentSessionState, *, error: BaseException) -> None:
        super().__init__(str(error))
        self.state, self.error = state, error


def _conflict(text: str) -> HTTPException:
    return HTTPException(CONFLICT, text)


@dataclass
class _AgentSessionRecord:
    """An agent session that was seeded, or that is being seeded or closed."""

    state: AgentSessionState | None = None
    episode_id: EpisodeId | None = None
    closing: bool = False
    request: AgentSeedSessionRequest | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class _Closed(NamedTuple):
    episode_id: EpisodeId
    response: AgentCloseSessionResponse
    at: float


@dataclass
class AgentSessions:
    """The sessions of one agent."""

    agent: Any
    records: dict[str, _AgentSessionRecord] = field(default_factory=dict)
    closed: dict[str, _Closed] = field(default_factory=dict)

    async def seed(self, body: AgentSeedSessionRequest, request: Request) -> AgentSeedSessionResponse:
        """Set up a session, once for equal requests."""
        if (self.agent.config.num_workers or 1) != 1:
            raise ValueError(f"agent sessions require num_workers=1; it is {self.agent.config.num_workers}")
        session_id = body.agent_session_id
        _check_cookie(session_id, request)
        self._forget_old()
        if session_id in self.closed:
            raise _conflict(f"The agent session {session_id} is closed")
        record = self.records.setdefault(session_id, _AgentSessionRecord())
        async with record.lock:
            if record.closing or self.records.get(session_id) is not record:
                raise _conflict(f"The agent session {session_id} is being closed")
            if record.request is None:
                await self._set_up(record, body)
            elif record.request != body:
                raise _conflict(f"The agent session {session_id} was seeded with another request")
        request.session[AGENT_SESSION_KEY] = session_id
        return AgentSeedSessionResponse(agent_session_id=session_id)

    async def _set_up(self, record: _AgentSessionRecord, body: AgentSeedSessionRequest) -> None:
        try:
            record.state = await self.agent._seed_agent_session_state(body)
        except AgentSessionSetupError as error:
            record.state, record.episode_id, record.closing = error.state, body.episode_id, True
            raise error.error from error
        except BaseException:
            self.records.pop(body.agent_session_id, None)
            raise
        record.request, record.episode_id = body, body.episode_id

    async def close(self, body: AgentCloseSessionRequest, request: Request) -> AgentCloseSessionResponse:
        """Close a session. Closing it again gives the same reply, and one that is unknown cannot be seeded later."""
        session_id = body.agent_session_id
        _check_cookie(session_id, request)
        record = self.records.setdefault(session_id, _AgentSessionRecord(episode_id=body.episode_id))
        async with record.lock:
            done = self.closed.get(session_id)
            if (done.episode_id if done else record.episode_id) not in (None, body.episode_id):
                raise _conflict(f"The agent session {session_id} is of another episode")
            if done is None:
                record.closing = True
                answer = AgentCloseSessionResponse(agent_session_id=session_id)
                if record.state is not None:
                    answer = await self.agent._close_agent_session_state(record.state)
                done = self.closed[session_id] = _Closed(body.episode_id, answer, time.monotonic())
            self.records.pop(session_id, None)
        return done.response

    def _forget_old(self) -> None:
        window = getattr(self.agent.config, "session_close_retry_window_seconds", None) or RETRY_WINDOW_S
        oldest = time.monotonic() - window
        while self.closed and (len(self.closed) > MAX_CLOSED or next(iter(self.closed.values())).at < oldest):
            del self.closed[next(iter(self.closed))]

    def state(self, session_id: str) -> AgentSessionState:
        """Return the state of an open session, else raise."""
        record = self.records.get(session_id)
        if record is None or record.state is None or record.closing:
            raise _conflict(f"The agent session {session_id} is not open")
        return record.state


def _check_cookie(session_id: str, request: Request) -> None:
    bound = request.session.get(AGENT_SESSION_KEY)
    if bound not in (None, session_id):
        raise _conflict(f"The cookie is of another agent session, {bound}")


def session_id_of(request: Any) -> str | None:
    """Return the id of the agent session that a request belongs to."""
    scope = getattr(request, "scope", None)
    session = scope.get("session") if isinstance(scope, dict) else getattr(request, "session", None)
    found = session.get(AGENT_SESSION_KEY) if isinstance(session, Mapping) else None
    return found if isinstance(found, str) else None


def effective_tool_accesses(config: Any, request: AgentSeedSessionRequest) -> list[Any]:
    """Return the accesses of the configuration, replaced by those of the request that have the same name."""
    configured = getattr(config, "tool_accesses", None) or ()
    return list({access.name: access for access in (*configured, *request.tool_accesses)}.values())


def add_session_routes(app: FastAPI, server: Any) -> None:
    """Add the endpoints of sessions to the app of a server whose class has the hooks for them."""
    if isinstance(server, SimpleResponsesAPIAgent):

        async def seed(body: AgentSeedSessionRequest, request: Request) -> AgentSeedSessionResponse:
            return await server.seed_agent_session(request, body)  # type: ignore[no-any-return]

        async def close(body: AgentCloseSessionRequest, request: Request) -> AgentCloseSessionResponse:
            return await server.close_agent_session(request, body)  # type: ignore[no-any-return]

        app.post("/v1/agent_sessions")(seed)
        app.post("/v1/agent_sessions/close")(close)
    elif isinstance(server, SimpleResourcesServer):
        app.post("/close_session")(server.close_resources_session)
