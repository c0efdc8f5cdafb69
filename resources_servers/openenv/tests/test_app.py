"""Episodes of a real OpenEnv server through the agent have the rewards of the environment's own loop."""

import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from nemo_gym import ServerReply
from nemo_gym.errors import RolloutError
from nemo_gym.testing import running_servers, server_spec, servers_of
from tests.interop import ROLLOUTS, choice, play_all, with_choices
from tests.isolated import OPENENV, interpreter_for

CONFIG = "resources_servers/openenv/configs/openenv.yaml"
CHOICES = ["left", "right", "stay"]
MAX_STEPS = 6


class OpenEnvServer(NamedTuple):
    rewards: list[float]
    """Of the environment's own loop, for the actions of the random policy."""
    game_url: str
    tools_url: str


@pytest.fixture(scope="module")
def openenv() -> Iterator[OpenEnvServer]:
    """A server of the real package, in an interpreter that has it."""
    played = [(seed, [choice(CHOICES, str(seed), turn) for turn in range(MAX_STEPS)]) for seed in range(ROLLOUTS)]
    command = [interpreter_for(OPENENV), str(OPENENV / "server.py"), json.dumps(played)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path("/")) as process:
        assert process.stdout is not None
        try:
            rewards, game, tools = (json.loads(process.stdout.readline()) for _ in range(3))
            yield OpenEnvServer(rewards, f"http://127.0.0.1:{game}", f"http://127.0.0.1:{tools}/")
        finally:
            process.kill()


def settings(url: str) -> dict[str, Any]:
    return {"openenv": {"resources_servers": {"openenv": {"openenv_base_url": url}}}}


def game_row(seed: int) -> dict[str, Any]:
    return {"reset_kwargs": {"seed": seed}, "action_field": "message"}


@pytest.mark.slow
async def test_rewards_are_those_of_the_own_loop(openenv: OpenEnvServer) -> None:
    rows = [with_choices(game_row(seed), CHOICES, seed) for seed in range(ROLLOUTS)]
    results = await play_all(CONFIG, "openenv_agent", rows, **settings(openenv.game_url))
    assert [result["reward"] for result in results] == openenv.rewards
    assert all(result["is_over"] for result in results)
    assert len(set(openenv.rewards)) > 5


async def play(url: str, row: dict[str, Any], *replies: dict[str, Any]) -> dict[str, Any]:
    model = {"policy_model": {"responses_api_models": {"scripted_model": {"entrypoint": "app.py", "replies": []}}}}
    held = [each for each in servers_of(CONFIG, **settings(url), **model) if each.name != "policy_model"]
    policy = server_spec("policy_model", "responses_api_models", "scripted_model", replies=list(replies))
    async with running_servers([*held, policy]) as client:
        reply = await client.call("openenv_agent", "/run", row, answer=ServerReply)
    result: dict[str, Any] = json.loads(reply.content())
    return result


@pytest.mark.slow
async def test_tools_of_the_environment_are_called(openenv: OpenEnvServer) -> None:
    parameters = {"type": "object", "properties": {"number": {"type": "integer"}}}
    tools = [{"type": "function", "name": name, "parameters": parameters} for name in ("guess", "no_such_tool")]
    row = {
        "responses_create_params": {"input": [{"role": "user", "content": "Guess."}], "tools": tools},
        "reset_kwargs": {"seed": 1},
    }
    guesses = [{"turn": at, "call": [{"name": "guess", "arguments": {"number": at + 1}}]} for at in range(3)]
    wrong = {"turn": 3, "call": [{"name": "no_such_tool", "arguments": {}}]}
    result = await play(openenv.tools_url, row, *guesses, wrong, {"say": "Done."})
    outputs = [item["output"] for item in result["response"]["output"] if item["type"] == "function_call_output"]
    assert ["right" in output for output in outputs] == [True, False, False, False]
    assert "The episode is over" in outputs[1]
    assert (result["reward"], result["steps"], result["is_over"]) == (1.0, 1, True)


@pytest.mark.slow
async def test_what_is_no_action_costs_a_turn_and_what_breaks_the_environment_has_no_result(
    openenv: OpenEnvServer,
) -> None:
    row = {"responses_create_params": {"input": []}, "reset_kwargs": {"seed": 1}}
    said = ["left", "[1]", '{"jump": 1}', '{"message": "left"}']
    result = await play(openenv.game_url, row, *({"times": 1, "say": text} for text in said))
    heard = [item["content"] for item in result["response"]["output"] if item.get("produced_by") == "environment"]
    assert [text.startswith("That is no action") for text in heard[1:]] == [True] * 3
    assert result["steps"] == 1
    with pytest.raises(RolloutError, match="The floor gave way") as failed:
        await play(openenv.game_url, row, {"say": '{"message": "crash"}'})
    assert failed.value.cause == "environment"


async def test_without_a_server_there_is_no_result() -> None:
    with socket.socket() as silent:  # it has the port, and does not listen
        silent.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(RolloutError, match="cannot be reached") as failed:
            await play(url, {"responses_create_params": {"input": []}, **game_row(0)}, {"say": "left"})
    assert failed.value.cause == "environment"
