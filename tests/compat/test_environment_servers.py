"""Environment servers of the public NeMo Gym: relays are aliases of their agents, others play episodes in limits."""

import asyncio
from typing import Any, ClassVar

import pytest
from fastapi.testclient import TestClient
from omegaconf import OmegaConf

from nemo_gym.client.server_client import ServerClient
from nemo_gym.compat.environment_server import (
    BaseEnvironmentServer,
    BaseEnvironmentServerConfig,
    CleanupContext,
    HandledEpisodeError,
)
from nemo_gym.compat.episodes import (
    BaseEpisodeRequest,
    BaseEpisodeResponse,
    EpisodeFailure,
    EpisodeId,
    materialize_task,
)
from nemo_gym.config.keys import ALIASES_KEY_NAME
from nemo_gym.config.sources import apply_directives
from nemo_gym.server.aggregate_metrics import AggregateMetrics, AggregateMetricsRequest

AGENT: dict[str, Any] = {"responses_api_agents": {"simple_agent": {"entrypoint": "app.py"}}}


def front(agent: str, implementation: str = "legacy_agent", **more: Any) -> dict[str, Any]:
    reference = {"type": "responses_api_agents", "name": agent}
    return {"environment_servers": {implementation: {"entrypoint": "app.py", "agent_server": reference, **more}}}


def applied(**blocks: Any) -> Any:
    config = OmegaConf.create(blocks)
    apply_directives(config)
    return OmegaConf.to_container(config)


def test_a_relay_starts_nothing_and_is_an_alias() -> None:
    config = applied(agent=AGENT, relay=front("agent"), other=front("agent", "single_agent_turn"))
    assert set(config) == {"agent", "other", ALIASES_KEY_NAME}
    assert config[ALIASES_KEY_NAME] == {"relay": "agent", "other": "agent"}


def test_an_agent_that_was_renamed_by_inheriting_is_renamed_in_its_servers() -> None:
    turn = front("agent", "single_agent_turn")
    config = applied(agent=AGENT, new_agent={"_inherit_from": "agent"}, turn=turn)
    assert config["turn"]["environment_servers"]["single_agent_turn"]["agent_server"]["name"] == "new_agent"


def test_a_relay_may_inherit_from_another_one() -> None:
    derived = {"_inherit_from": "relay", "environment_servers": {"legacy_agent": {"agent_server": {"name": "b"}}}}
    assert applied(b=AGENT, relay=front("a"), derived=derived)[ALIASES_KEY_NAME] == {"derived": "b"}


class Played(BaseEpisodeResponse[dict[str, Any]]):
    """The result of a test's episode."""


class ScriptedServer(BaseEnvironmentServer[BaseEpisodeRequest[Any], Played]):
    """Does what the task says, and remembers what was cleaned up."""

    ray_enabled = False
    request_model = BaseEpisodeRequest[dict[str, Any]]
    response_model = Played
    cleaned: ClassVar[list[str]] = []

    async def run(self, request: BaseEpisodeRequest[Any], cleanup: CleanupContext) -> Played:
        async def clean(name: str) -> None:
            self.cleaned.append(name)
            if name == "breaks":
                raise RuntimeError(name)

        cleanup.register_cleanup("first", lambda: clean("first"))
        cleanup.register_cleanup("breaks", lambda: clean("breaks"))
        await cleanup.register_cleanup("closed", lambda: clean("closed")).close()
        task = request.task.task_input
        if task.get("fails"):
            raise HandledEpisodeError(EpisodeFailure(failure_reason="known", terminal=False, stage="agent"))
        if task.get("raises"):
            raise KeyError("inner")
        await asyncio.sleep(task.get("sleeps", 0))
        other = EpisodeId(rollout_id="other") if task.get("mixes_up") else request.episode_id
        return Played(episode_id=other, task_id=request.task.task_id, result={"reward": 1.0})

    async def aggregate_metrics(self, body: AggregateMetricsRequest) -> AggregateMetrics:
        return AggregateMetrics()


def play(**task: Any) -> Any:
    limits = {"default_episode_timeout_seconds": 0.05, "cleanup_timeout_seconds": 5}
    address = {"host": "127.0.0.1", "port": 1, "entrypoint": "app.py", "name": "played"}
    config = BaseEnvironmentServerConfig.model_validate({**address, **limits})
    server = ScriptedServer(config=config, server_client=ServerClient())
    ScriptedServer.cleaned.clear()
    body = {
        "episode_id": {"rollout_id": "r"},
        "task": {"task_id": {"taskset": "s", "task_id": "0"}, "task_input": task},
    }
    return TestClient(server.setup_webserver(), raise_server_exceptions=False).post("/run", json=body)


@pytest.mark.parametrize(
    ("task", "failure"),
    [
        ({}, None),
        ({"fails": True}, {"failure_reason": "known", "terminal": False, "stage": "agent"}),
        ({"sleeps": 5}, {"failure_reason": "Episode timed out", "terminal": False}),
        (
            {"raises": True},
            {"failure_reason": "Unhandled environment server error: KeyError: 'inner'", "terminal": True},
        ),
    ],
)
def test_an_episode_has_a_result_or_a_failure_and_is_cleaned_up(task: dict[str, Any], failure: Any) -> None:
    reply = play(**task)
    assert reply.status_code == 200
    assert reply.json()["failure"] == failure
    assert (reply.json()["result"] is None) == (failure is not None)
    assert ScriptedServer.cleaned == ["closed", "breaks", "first"]


def test_a_reply_of_another_episode_is_an_error() -> None:
    assert play(mixes_up=True).status_code == 500


@pytest.mark.parametrize("name", ["a-a1", "-a", "", "a b"])
def test_names_that_are_no_rollout_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="rollout_id"):
        EpisodeId(rollout_id=name)


def test_a_row_becomes_a_task_without_what_routes_it() -> None:
    row = {"instance_id": "i", "agent_ref": {}, "task_source": "s", "_ng_task_index": 3, "text": "t"}
    identity = {"taskset": "set", "task_id": "i"}
    assert materialize_task(row, taskset="set") == {
        "task_id": identity,
        "task_input": {"instance_id": "i", "text": "t"},
    }
    assert materialize_task({"_ng_task_index": 3}, taskset="set")["task_id"]["task_id"] == "3"
