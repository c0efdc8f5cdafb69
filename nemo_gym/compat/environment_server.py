"""`BaseEnvironmentServer`: the base class of the public NeMo Gym's environment servers, with limits and clean-up."""

import asyncio
import logging
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Generic, TypeVar

from fastapi import FastAPI, HTTPException
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, PositiveFloat, PositiveInt, PrivateAttr, ValidationError, model_validator

from nemo_gym.client.call_log import rollout_context
from nemo_gym.compat.episodes import (
    BaseEpisodeRequest,
    BaseEpisodeResponse,
    EpisodeFailure,
    EpisodeId,
    episode_of,
    is_materialized_task_row,
    record_of,
)
from nemo_gym.config.types import BaseRunServerInstanceConfig
from nemo_gym.llm_api.base import JsonObject
from nemo_gym.server.aggregate_metrics import AggregateMetrics, AggregateMetricsRequest
from nemo_gym.server.base import SimpleServer

logger = logging.getLogger(__name__)

Req = TypeVar("Req", bound=BaseModel)
Res = TypeVar("Res", bound=BaseModel)
CleanUp = Callable[[], Awaitable[None]]
MAX_REASON = 2000


class BaseEnvironmentServerConfig(BaseRunServerInstanceConfig):
    """The configuration of an environment server. Subclass it for the servers it works with."""

    model_config = ConfigDict(extra="forbid")

    max_concurrent_episodes: PositiveInt | None = None
    """Upper bound for episodes at once, in each worker."""
    queue_timeout_seconds: PositiveFloat | None = None
    """Seconds for which an episode waits for its turn."""
    default_episode_timeout_seconds: PositiveFloat | None = None
    cleanup_timeout_seconds: PositiveFloat
    """Timeout of the whole clean-up of an episode."""

    @model_validator(mode="after")
    def _queue_has_a_timeout(self) -> "BaseEnvironmentServerConfig":
        if self.max_concurrent_episodes is not None and self.queue_timeout_seconds is None:
            raise ValueError("max_concurrent_episodes needs queue_timeout_seconds")
        return self


class HandledEpisodeError(Exception):
    """Ends an episode with this failure."""

    def __init__(self, failure: EpisodeFailure) -> None:
        super().__init__(failure.failure_reason)
        self.failure = failure


class CleanupHandle:
    """Something to clean up."""

    def __init__(self, name: str, function: CleanUp) -> None:
        self.name, self._function, self._is_done = name, function, False
        self._lock = asyncio.Lock()

    async def close(self) -> None:
        """Clean up now. What succeeded is not done again."""
        async with self._lock:
            if not self._is_done:
                await self._function()
                self._is_done = True


class CleanupContext:
    """Clean-up functions of an episode, called last first."""

    def __init__(self, episode_id: EpisodeId, cleanup_timeout_seconds: float) -> None:
        self.episode_id, self.cleanup_timeout_seconds = episode_id, cleanup_timeout_seconds
        self._handles: list[CleanupHandle] = []

    def register_cleanup(self, name: str, cleanup: CleanUp) -> CleanupHandle:
        handle = CleanupHandle(name, cleanup)
        self._handles.append(handle)
        return handle

    async def aclose(self) -> None:
        """Clean up. An error is logged, and the rest is cleaned up all the same."""
        try:
            async with asyncio.timeout(self.cleanup_timeout_seconds):
                while self._handles:
                    handle = self._handles.pop()
                    try:
                        await handle.close()
                    except Exception as error:
                        logger.warning("episode %s: %s was not cleaned up: %r", self._key, handle.name, error)
        except TimeoutError:
            logger.warning("episode %s: not cleaned up after %g s", self._key, self.cleanup_timeout_seconds)

    @property
    def _key(self) -> str:
        return self.episode_id.capture_key


class _QueueTimeoutError(Exception):
    pass


class BaseEnvironmentServer(SimpleServer, Generic[Req, Res]):
    """Subclass, set `request_model` and `response_model`, and write `run` and `aggregate_metrics`."""

    has_own_app: ClassVar[bool] = True
    request_model: ClassVar[Any] = BaseEpisodeRequest[Any]
    response_model: ClassVar[Any] = BaseEpisodeResponse[Any]

    config: BaseEnvironmentServerConfig

    _slots: asyncio.Semaphore | None = PrivateAttr(default=None)

    @abstractmethod
    async def run(self, request: Req, cleanup: CleanupContext) -> Res:
        """Play an episode."""

    @abstractmethod
    async def aggregate_metrics(self, body: AggregateMetricsRequest) -> AggregateMetrics:
        """Return the metrics over the records of this server."""

    def failure_response(self, request: Any, failure: EpisodeFailure) -> Any:
        """Return the reply to an episode without a result."""
        return self.response_model(
            episode_id=request.episode_id, task_id=request.task.task_id, failure=failure.model_dump()
        )

    def setup_webserver(self) -> FastAPI:
        app = FastAPI()

        async def run(body: JsonObject) -> JsonObject:
            """Play an episode, or the row of a collection."""
            is_row = is_materialized_task_row(body) and "episode_id" not in body
            try:
                request = self.request_model.model_validate(episode_of(body) if is_row else body)
            except ValidationError as error:
                raise RequestValidationError(error.errors(), body=body) from error
            answer: JsonObject = (await self.run_request(request)).model_dump(mode="json")
            return record_of(answer) if is_row else answer

        app.post("/run")(run)
        app.post("/aggregate_metrics")(self.aggregate_metrics)
        return app

    async def run_request(self, request: Any) -> Any:
        """Play an episode within the limits, and clean up after it."""
        with rollout_context(request.episode_id.capture_key):
            try:
                async with self._slot():
                    answer = await self._run_and_clean_up(request)
            except _QueueTimeoutError:
                answer = self._failed(request, "Episode admission timed out", terminal=False, stage="admission")
        answer = self.response_model.model_validate(answer.model_dump() if isinstance(answer, BaseModel) else answer)
        if (answer.episode_id, answer.task_id) != (request.episode_id, request.task.task_id):
            raise HTTPException(500, "The episode's reply is of another episode or task")
        return answer

    def _failed(self, request: Any, reason: str, **fields: Any) -> Any:
        return self.failure_response(request, EpisodeFailure(failure_reason=reason[:MAX_REASON], **fields))

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        if self.config.max_concurrent_episodes is None:
            yield
            return
        if self._slots is None:
            self._slots = asyncio.Semaphore(self.config.max_concurrent_episodes)
        try:
            await asyncio.wait_for(self._slots.acquire(), self.config.queue_timeout_seconds)
        except TimeoutError as error:
            raise _QueueTimeoutError from error
        try:
            yield
        finally:
            self._slots.release()

    async def _run_and_clean_up(self, request: Any) -> Any:
        cleanup = CleanupContext(request.episode_id, self.config.cleanup_timeout_seconds)
        try:
            return await self._run(request, cleanup)
        finally:
            await _finished(cleanup.aclose())

    async def _run(self, request: Any, cleanup: CleanupContext) -> Any:
        limit = asyncio.timeout(self.config.default_episode_timeout_seconds)
        try:
            async with limit:
                return await self.run(request, cleanup)
        except HandledEpisodeError as error:
            return self.failure_response(request, error.failure)
        except Exception as error:
            if isinstance(error, TimeoutError) and limit.expired():
                return self._failed(request, "Episode timed out", terminal=False)
            logger.exception("episode %s failed", request.episode_id.capture_key)
            text = f"Unhandled environment server error: {type(error).__name__}: {error}"
            return self._failed(request, text, terminal=True)


async def _finished(work: Any) -> None:
    """Wait for work that goes on although its caller is cancelled."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
