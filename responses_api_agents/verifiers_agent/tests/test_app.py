"""Episodes of verifiers through the agent have the rewards of verifiers' own loop."""

from pathlib import Path
from typing import Any

import pytest

from nemo_gym import ServerReply
from nemo_gym.errors import ConfigError, RolloutError
from nemo_gym.testing import client_for, running_servers, server_spec, servers_of
from tests.interop import ROLLOUTS, play_all
from tests.servers.responses_api_models.choosing_model.app import ChoosingModel

vf: Any = pytest.importorskip(
    "verifiers.v1", reason="verifiers is not in this interpreter; ng_test runs this folder in one that has it"
)

CONFIG = "responses_api_agents/verifiers_agent/configs/verifiers_agent.yaml"
TASKSETS = Path(__file__).parent.parent / "tasksets"
ENV = {"taskset": {"id": "nemo_gym_letters"}, "agent": {"runtime": {"type": "subprocess"}}}
CHOICES = ("1", "2", "3", "I think it is 2.")


def row(index: int) -> dict[str, Any]:
    return {"responses_create_params": {"input": []}, "task_index": index}


async def own_loop(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The rewards of verifiers alone, with the same policy behind its own client."""
    monkeypatch.syspath_prepend(str(TASKSETS))
    env = vf.load_environment(vf.resolve_env_config(ENV))
    async with client_for(ChoosingModel, choices=list(CHOICES)) as model, env.serving():
        client = vf.EvalClientConfig(base_url=f"{model.url}/v1", api_key_var="NO_KEY")
        tasks = list(env.taskset.take(ROLLOUTS))
        episodes = [await env.run_episode(task, vf.ModelContext("any", client)) for task in tasks]
    return [episode.traces[0].reward for episode in episodes]


async def test_rewards_are_those_of_the_own_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = await own_loop(monkeypatch)
    results = await play_all(CONFIG, "verifiers_agent", [row(at) for at in range(ROLLOUTS)], choices=CHOICES)
    assert [result["reward"] for result in results] == expected
    assert set(expected) == {0.0, 0.1, 1.1}
    assert all(len(result["response"]["output"]) == 3 for result in results)
    assert results[0]["responses_create_params"]["input"][0]["content"].startswith("How often is the letter")
    assert results[0]["verifiers"]["traces"][0]["rewards"].keys() == {"is_right", "is_short"}


def scripted(*replies: dict[str, Any], **agent: Any) -> list[Any]:
    model = {"policy_model": {"responses_api_models": {"scripted_model": {"entrypoint": "app.py", "replies": []}}}}
    held = servers_of(CONFIG, **model, verifiers_agent={"responses_api_agents": {"verifiers_agent": agent}})
    policy = server_spec("policy_model", "responses_api_models", "scripted_model", replies=list(replies))
    return [*(each for each in held if each.name != "policy_model"), policy]


async def play(servers: list[Any], asked: dict[str, Any]) -> None:
    async with running_servers(servers) as client:
        await client.call("verifiers_agent", "/run", asked, answer=ServerReply)


async def test_a_model_that_fails_is_no_result_of_the_model() -> None:
    with pytest.raises(RolloutError) as failed:
        await play(scripted({"status": 500}), row(0))
    assert (failed.value.cause, failed.value.server) == ("model", "policy_model")


async def test_a_task_that_is_not_there_is_an_error_of_the_row() -> None:
    with pytest.raises(RolloutError, match="the taskset has 100 tasks") as refused:
        await play(scripted({"say": "1"}), row(100))
    assert refused.value.cause == "input"


async def test_an_environment_that_is_not_there_is_an_error_of_the_config() -> None:
    with pytest.raises(ConfigError, match="no-such-taskset"):
        await play(scripted({"say": "1"}, env={"taskset": {"id": "no-such-taskset"}}), row(0))
