"""Our environments as Gymnasium environments: the rewards are those of our own agents."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

from nemo_gym.errors import ConfigError
from nemo_gym.interop.environment_host import EnvironmentHost
from nemo_gym.interop.gymnasium_env import NeMoGymEnv
from tests.interop import ROLLOUTS, choice, play_all, with_choices

COUNTER = "resources_servers/example_stateful_counter/configs/stateful_counter.yaml"
GUESSING = "resources_servers/example_multi_turn/configs/example_multi_turn.yaml"
ADD = [json.dumps({"name": "increment_counter", "arguments": {"count": count}}) for count in (1, 3, 4)]
BAD_CALL = json.dumps({"name": "increment_counter", "arguments": {"count": "much"}})
COUNTING = [*ADD, *ADD, BAD_CALL, json.dumps({"name": "get_counter_value", "arguments": {}}), "Done."]


@pytest.fixture(scope="module")
def counter() -> Iterator[EnvironmentHost]:
    with EnvironmentHost(COUNTER) as host:
        yield host


def episode(env: NeMoGymEnv, row: dict[str, Any], choices: list[str], seed: int) -> float:
    env.reset(options={"row": row})
    turn, is_over, total = 0, False, 0.0
    while not is_over:
        _, reward, terminated, truncated, _ = env.step(choice(choices, str(seed), turn))
        total, turn, is_over = total + reward, turn + 1, terminated or truncated
    return total


@pytest.mark.parametrize(
    ("config", "agent", "choices"),
    [
        (COUNTER, "stateful_counter_simple_agent", COUNTING),
        (GUESSING, "example_multi_turn_agent", [str(number) for number in range(10, 30)]),
    ],
)
async def test_rewards_are_those_of_our_agents(config: str, agent: str, choices: list[str]) -> None:
    with EnvironmentHost(config) as host:
        rows = host.rows()
        played = [(with_choices(rows[seed % len(rows)], choices, seed), seed) for seed in range(ROLLOUTS)]
        env = NeMoGymEnv(host=host)
        rewards = [episode(env, row, choices, seed) for row, seed in played]
        env.close()
    expected = [result["reward"] for result in await play_all(config, agent, [row for row, _ in played])]
    assert rewards == expected


def test_gymnasium_checks_it(counter: EnvironmentHost) -> None:
    env = NeMoGymEnv(host=counter)
    check_env(env, skip_render_check=True)
    env.close()


def test_an_episode_is_described_played_and_scored(counter: EnvironmentHost) -> None:
    env = NeMoGymEnv(host=counter)
    row = counter.rows()[0]
    observation, info = env.reset(options={"row": row})
    assert info["row"] == row
    assert row["responses_create_params"]["input"][0]["content"] in observation
    assert "increment_counter" in observation
    missing = row["expected_count"] - row["initial_count"]
    told, reward, *_ = env.step(json.dumps({"name": "increment_counter", "arguments": {"count": missing}}))
    assert (json.loads(told), reward) == ({"success": True}, 0.0)
    assert "no tool" in env.step('{"name": "verify", "arguments": {}}')[0]
    _, reward, terminated, truncated, info = env.step("It is done.")
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert info["reward"] == 1.0
    assert [item["type"] for item in env.record["response"]["output"]][-1] == "message"
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("More?")
    env.close()


def test_the_same_seed_gives_the_same_row_and_too_many_steps_truncate(counter: EnvironmentHost) -> None:
    env = NeMoGymEnv(host=counter, max_steps=2)
    rows = [[env.reset(seed=seed)[1]["row"], env.reset()[1]["row"]] for seed in (3, 3)]
    assert rows[0] == rows[1]
    assert env.step(ADD[0])[2:4] == (False, False)
    assert env.step(ADD[0])[2:4] == (False, True)
    env.close()


def test_a_config_without_datasets_says_what_to_do(tmp_path: Path) -> None:
    server = {"resources_servers": {"example_stateful_counter": {"entrypoint": "app.py", "domain": "agent"}}}
    (tmp_path / "bare.yaml").write_text(json.dumps({"counter": server}))
    with pytest.raises(ConfigError, match=r"counter .*\(none\)"):
        NeMoGymEnv(str(tmp_path / "bare.yaml"))

    assert not [thread for thread in threading.enumerate() if thread.name == "nemo_gym counter"]


def test_what_cannot_be_played_is_refused(counter: EnvironmentHost) -> None:
    with pytest.raises(ConfigError, match="no rows to play"):
        NeMoGymEnv(host=counter, rows=[])
    env = NeMoGymEnv(host=counter)
    env.reset(seed=0)
    with pytest.raises(gymnasium.error.InvalidAction, match="Expected a text, found bytes"):
        env.step(b"Done.")  # type: ignore[arg-type]
    env.close()


def test_several_can_be_stepped_together(counter: EnvironmentHost) -> None:
    envs = gymnasium.vector.SyncVectorEnv([lambda: NeMoGymEnv(host=counter)] * 2)
    envs.reset(seed=3)
    assert [json.loads(value).keys() for value in envs.step([COUNTING[-2]] * 2)[0]] == [{"count"}] * 2
    assert envs.step(["Done."] * 2)[2].all()
    envs.close()
    with pytest.raises(ValueError, match="shared_memory=False"):
        gymnasium.vector.AsyncVectorEnv([lambda: NeMoGymEnv(host=counter)])
