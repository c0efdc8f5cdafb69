"""Environments of Prime Intellect's verifiers, played and scored by verifiers itself, with our model as its policy."""

import asyncio
import contextvars
import logging
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import islice
from typing import Any
from uuid import uuid4

from pydantic import Field, PrivateAttr

from nemo_gym import (
    CookieJar,
    JsonObject,
    ModelServerRef,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    ServerReply,
)
from nemo_gym.base_responses_api_agent import AgentRunRequest, BaseResponsesAPIAgentConfig, SimpleResponsesAPIAgent
from nemo_gym.common.deadline import timeout
from nemo_gym.common.paths import find
from nemo_gym.common.rewards import check_reward
from nemo_gym.episodes import import_extra
from nemo_gym.errors import ConfigError, RolloutError
from nemo_gym.gateway.model_gateway import ModelGateway
from nemo_gym.interop.harness_calls import HarnessCalls, sampling_of
from nemo_gym.llm_api.json_codec import encode, set_fields
from nemo_gym.participants import HARNESS


class VerifiersAgentConfig(BaseResponsesAPIAgentConfig, extra="forbid"):
    """The model and the environment of verifiers that it plays."""

    model_server: ModelServerRef
    env: dict[str, Any]
    """The environment as a config file of verifiers has it under `[env]`, such as `{taskset: {id: my-taskset}}`."""
    tasksets_dirpath: str | None = None
    """A folder with modules of tasksets that are not installed."""
    rollout_timeout_s: float = Field(default=3600.0, gt=0)
    model_timeout_s: float = Field(default=1800.0, gt=0)


class VerifiersRow(AgentRunRequest):
    task_index: int = Field(ge=0)


class VerifiersAgent(SimpleResponsesAPIAgent):
    config: VerifiersAgentConfig

    _verifiers: Any = PrivateAttr()
    _env: Any = PrivateAttr()
    _base_url: str = PrivateAttr()
    _tasks: list[Any] = PrivateAttr(default_factory=list)
    _more_tasks: Iterator[Any] = PrivateAttr()
    _loading: asyncio.Lock = PrivateAttr(default_factory=asyncio.Lock)
    _runs: dict[str, tuple[HarnessCalls, contextvars.Context]] = PrivateAttr(default_factory=dict)
    """The rollouts in progress, by the name under which each asks for its model."""

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """The environment and the gateway to our model are open as long as the server is."""
        if self.config.tasksets_dirpath is not None:
            sys.path.append(str(find(self.config.tasksets_dirpath, what="folder of tasksets")))
        for chatty in ("httpx", "verifiers"):  # a line for every request, with the path that is the secret
            logging.getLogger(chatty).setLevel(logging.WARNING)
        self._verifiers = import_extra("verifiers.v1", extra="verifiers")
        try:
            self._env = self._verifiers.load_environment(self._verifiers.resolve_env_config(self.config.env))
        except (ImportError, ValueError, TypeError, AttributeError) as error:
            raise ConfigError(f"verifiers cannot load the environment {self.config.env}: {error}") from error
        self._more_tasks = iter(self._env.taskset)
        gateway = ModelGateway(self.core())
        async with gateway.serving(), self._env.serving():
            with gateway.opened(self._chat_completions, self._responses, model="policy") as path:
                self._base_url = f"{gateway.url_of(path)}/v1"
                yield

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming) -> NeMoGymResponse:
        raise NotImplementedError("This agent plays whole rows only: POST /run.")

    async def run(self, body: VerifiersRow, jar: CookieJar) -> ServerReply:
        """One episode, with the reward that verifiers gives it."""
        config, limit = self.config, timeout(self.config.rollout_timeout_s, what="The rollout")
        calls = HarnessCalls(self.server_client, config.model_server.name, jar, config.model_timeout_s)
        async with self.server_client.sessions(jar), limit:
            episode = await self._play(await self._task(body.task_index), calls, body)
        _check(episode, calls, server=config.name)
        response = calls.trace.response(ended_by=HARNESS)
        traces = [_summary(trace) for trace in episode.traces]
        trained = [trace["reward"] for trace in traces if trace["trainable"]] or [trace["reward"] for trace in traces]
        scored = {"reward": sum(trained) / len(trained), "verifiers": {"traces": traces}}
        check_reward(scored["reward"], server=config.name)
        params = {**set_fields(body.responses_create_params), **calls.trace.request()}
        record = {**set_fields(body), "responses_create_params": params, "response": response, **scored}
        return ServerReply(config.name or "", 200, encode(record))

    async def _play(self, task: Any, calls: HarnessCalls, body: VerifiersRow) -> Any:
        """verifiers keeps a client for every endpoint it has seen, so the name of the model identifies the rollout."""
        name, verifiers = f"policy-{uuid4().hex}", self._verifiers
        client = verifiers.EvalClientConfig(base_url=self._base_url, api_key_var="NEMO_GYM_NO_KEY")
        sampling = verifiers.SamplingConfig(**sampling_of(body.responses_create_params))
        self._runs[name] = (calls, contextvars.copy_context())
        try:
            return await self._env.run_episode(task, verifiers.ModelContext(name, client, sampling))
        finally:
            del self._runs[name]

    async def _task(self, index: int) -> Any:
        """The task with this index; tasksets may be endless, so no more is loaded than is asked for."""
        async with self._loading:
            if (missing := index + 1 - len(self._tasks)) > 0:
                self._tasks += await asyncio.to_thread(lambda: list(islice(self._more_tasks, missing)))
        if index < len(self._tasks):
            return self._tasks[index]
        raise RolloutError("input", f"The row asks for task_index {index}; the taskset has {len(self._tasks)} tasks.")

    async def _chat_completions(self, body: dict[str, Any]) -> JsonObject:
        calls, context = self._run_of(body)
        return await asyncio.create_task(calls.chat_completions(body), context=context)

    async def _responses(self, body: dict[str, Any]) -> NeMoGymResponse:
        calls, context = self._run_of(body)
        return await asyncio.create_task(calls.responses(body), context=context)

    def _run_of(self, body: dict[str, Any]) -> tuple[HarnessCalls, contextvars.Context]:
        """The rollout that asks. Its deadline, recording and tracing hold for its calls, too."""
        if (run := self._runs.get(str(body.get("model")))) is None:
            raise RolloutError("input", f"No rollout has the model {body.get('model')!r:.100}.", retryable=False)
        return run


def _check(episode: Any, calls: HarnessCalls, *, server: str | None) -> None:
    """Raise unless the episode was scored. What our model server said comes first: verifiers only saw it fail."""
    if episode.ok:
        return
    calls.raise_model_error()
    errors = [error for source in (*episode.traces, episode) for error in source.errors]
    messages = "; ".join(f"{error.type}: {error.message}"[:500] for error in errors)
    raise RolloutError("environment", f"verifiers could not play the episode: {messages}", server=server)


def _summary(trace: Any) -> JsonObject:
    rewards = {name: reward.value for name, reward in trace.rewards.items() if reward is not None}
    about = {"agent": trace.agent.name, "trainable": trace.agent.trainable, "stop_condition": trace.stop_condition}
    return {**about, "reward": trace.reward, "rewards": rewards, "metrics": trace.metrics, "turns": trace.num_turns}
