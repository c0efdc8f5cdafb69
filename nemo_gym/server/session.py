"""Per-rollout state. A session is named by a signed token and ends with the rollout, or when it was unused for its
time to live. A session that is gone never comes back empty: its token raises SessionLostError."""

import asyncio
import copy
import hmac
import itertools
import logging
import time
from typing import Any, NamedTuple, TypeVar
from uuid import uuid4

import msgspec
from pydantic import BaseModel, ConfigDict

from nemo_gym.errors import OverloadedError, ProcessLostError, SessionError, SessionLostError

logger = logging.getLogger(__name__)

SESSION_ID_KEY = "session_id"
TIME_TO_LIVE_S = 4 * 3600.0
"""Longer than any known rollout: it ends only sessions whose rollout never ended."""

EVICTABLE_AFTER_S = 600.0
"""A server with as many sessions as it may have ends those that were not used for this long."""

State = TypeVar("State", bound="SessionState")


class SessionState(BaseModel):
    """State that an environment keeps for one rollout. Subclass it, and name the subclass in a handler's signature."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    def close(self) -> None:
        """Called once when the session ends. Override to release processes, files and other resources."""


class Session(msgspec.Struct):
    """One rollout's place on one server."""

    token: str
    data: dict[str, Any]
    """The value of `request.session` for handlers written for it."""
    states: dict[type[SessionState], SessionState] = {}
    last_used: float = 0.0
    users: int = 0
    is_new: bool = True
    """True until the client has received the token."""

    def state(self, kind: type[State]) -> State:
        """The state of that kind, made at first use."""
        found = self.states.get(kind)
        if found is None:
            found = self.states[kind] = kind()
        return found  # type: ignore[return-value]

    def save(self) -> "SavedSession":
        """Copy the state."""
        return SavedSession(*copy.deepcopy((self.data, self.states)))

    def load(self, saved: "SavedSession") -> None:
        """Replace the state by a copy of a saved one."""
        data, self.states = copy.deepcopy((saved.data, saved.states))
        self.data = {**data, SESSION_ID_KEY: self.data[SESSION_ID_KEY]}

    def close(self) -> None:
        for state in self.states.values():
            try:
                state.close()
            except Exception:
                logger.exception("closing %s of session %s failed", type(state).__name__, self.data[SESSION_ID_KEY])


class SavedSession(NamedTuple):
    """The state of a session at some step."""

    data: dict[str, Any]
    states: dict[type[SessionState], SessionState]


class SessionStore:
    """The sessions of one server in one worker, the least recently used first."""

    def __init__(
        self,
        server: str,
        *,
        secret: bytes,
        worker: int = 0,
        time_to_live_s: float = TIME_TO_LIVE_S,
        max_sessions: int = 100_000,
    ) -> None:
        self.server, self.worker = server, worker
        self.time_to_live_s, self.max_sessions = time_to_live_s, max_sessions
        self._incarnation = uuid4().hex[:8]
        """Part of every token, so that a token issued before the worker was restarted is recognized."""
        self._secret = secret
        self._sessions: dict[str, Session] = {}
        self._sweeping = False

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, token: str | None) -> Session:
        """The session of `token`, or a new one if there is no token."""
        session = self._sessions.pop(token, None) if token else self._new()
        if session is None:
            raise self._refusal(token or "")
        session.last_used = time.monotonic()
        self._sessions[session.token] = session
        self._sweep_later()
        return session

    def other_worker(self, token: str) -> int | None:
        """The worker that issued a token, if it is another than this one."""
        worker = token.partition(".")[0]
        if worker == str(self.worker) or not worker.isdecimal() or not self.is_signed(token):
            return None
        return int(worker)

    def release(self, token: str) -> None:
        """End a session. Ending one that is gone is fine."""
        session = self._sessions.pop(token, None)
        if session is not None:
            session.close()

    def close(self) -> None:
        """End all sessions."""
        for token in list(self._sessions):
            self.release(token)

    def _new(self) -> Session:
        if len(self._sessions) >= self.max_sessions and not self._evict(EVICTABLE_AFTER_S):
            raise OverloadedError(
                f"'{self.server}' has {len(self._sessions)} sessions, all in use (max_sessions).", server=self.server
            )
        session_id = str(uuid4())
        return Session(self.sign(f"{self.worker}.{self._incarnation}.{session_id}"), {SESSION_ID_KEY: session_id})

    def _refusal(self, token: str) -> SessionError:
        """Why there is no session for a token."""
        payload = token.rpartition(".")[0]
        if not self.is_signed(token):
            return SessionError(
                f"'{self.server}' did not issue this session token, or has been restarted with another secret. "
                "Send no session cookie to start a new session.",
                server=self.server,
            )
        worker, incarnation, session_id = payload.split(".")
        if worker != str(self.worker):
            return SessionError(
                f"The session belongs to worker {worker} of '{self.server}', not to worker {self.worker}.",
                server=self.server,
            )
        lost = f"'{self.server}' lost session {session_id}"
        if incarnation != self._incarnation:
            return ProcessLostError(f"{lost}: its worker was restarted.", server=self.server)
        return SessionLostError(f"{lost}: it ended or expired.", server=self.server)

    def is_signed(self, token: str) -> bool:
        """True if `sign` made this token."""
        return hmac.compare_digest(self.sign(token.rpartition(".")[0]).encode(), token.encode())

    def sign(self, payload: str) -> str:
        """The payload with a signature that only this run can make."""
        signature = hmac.digest(self._secret, f"{self.server}.{payload}".encode(), "sha256").hex()[:32]
        return f"{payload}.{signature}"

    def _sweep_later(self) -> None:
        if self._sweeping:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        self._sweeping = True
        loop.call_later(self.time_to_live_s / 4, self._sweep)

    def _sweep(self) -> None:
        self._sweeping = False
        self._evict(self.time_to_live_s)
        if self._sessions:
            self._sweep_later()

    def _evict(self, unused_for_s: float) -> int:
        """End the sessions that nobody has used for so long, and return how many there were."""
        expired_at = time.monotonic() - unused_for_s
        oldest = itertools.takewhile(lambda session: session.last_used <= expired_at, self._sessions.values())
        expired = [session.token for session in oldest if not session.users]
        for token in expired:
            self.release(token)
        return len(expired)
