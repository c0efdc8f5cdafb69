"""Episodes of Gymnasium through the agent have the rewards of Gymnasium's own loop."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import gymnasium
import numpy as np
import pytest

from nemo_gym.errors import RolloutError
from nemo_gym.testing import example_row
from resources_servers.gymnasium.app import GymnasiumEpisode, GymnasiumRow
from tests.interop import ROLLOUTS, choice, play_all, with_choices

CONFIG = "resources_servers/gymnasium/configs/gymnasium.yaml"
MAX_TURNS = 200


def own_loop(env_id: str, kwargs: dict[str, Any], choices: list[str], seed: int) -> tuple[float, int, bool]:
    """The sum of rewards, the number of steps, and whether the episode ended."""
    env = gymnasium.make(env_id, **kwargs)
    env.reset(seed=seed)
    total, is_over, steps = 0.0, False, 0
    while not is_over and steps < MAX_TURNS:
        _, reward, terminated, truncated, _ = env.step(int(choice(choices, str(seed), steps)))
        total, is_over, steps = total + float(reward), terminated or truncated, steps + 1
    env.close()
    return total, steps, is_over


@pytest.mark.parametrize(
    ("env_id", "kwargs", "choices"),
    [
        ("Taxi-v4", {"render_mode": "ansi", "max_episode_steps": 30}, ["0", "1", "2", "3", "4", "5"]),
        ("Blackjack-v1", {}, ["0", "1"]),
        ("CartPole-v1", {}, ["0", "1"]),
    ],
)
async def test_rewards_are_those_of_the_own_loop(env_id: str, kwargs: dict[str, Any], choices: list[str]) -> None:
    rows = [
        with_choices({"env_id": env_id, "seed": seed, "env_kwargs": kwargs}, choices, seed) for seed in range(ROLLOUTS)
    ]
    results = await play_all(CONFIG, "gymnasium_agent", rows)
    expected = [own_loop(env_id, kwargs, choices, seed) for seed in range(ROLLOUTS)]
    assert [(result["reward"], result["steps"], result["is_over"]) for result in results] == expected
    assert len({reward for reward, _, _ in expected}) > 1


@pytest.mark.parametrize(
    ("env_id", "text", "action"),
    [
        ("FrozenLake-v1", "I go right: 2", 2),
        ("FrozenLake-v1", "1 or 3? I take 3.", 3),
        ("FrozenLake-v1", "7", None),
        ("FrozenLake-v1", "left", None),
        ("FrozenLake-v1", "<think>1</think>", None),
        ("FrozenLake-v1", "not 1", None),
        ("FrozenLake-v1", "0 or 1", None),
        ("FrozenLake-v1", "0.1", None),
        ("FrozenLake-v1", "9" * 5000, None),
        ("Pendulum-v1", "[0.5]", [0.5]),
        ("Pendulum-v1", "[99]", None),
        ("Pendulum-v1", "not JSON", None),
        ("Pendulum-v1", "{}", None),
        ("Pendulum-v1", "[" * 100_000, None),
    ],
)
def test_an_action_is_read_from_text_or_refused(env_id: str, text: str, action: Any) -> None:
    episode = GymnasiumEpisode(GymnasiumRow(env_id=env_id, seed=0))
    episode.reset()
    if action is None:
        step = episode.step(text)
        assert step.observation.startswith("That is no action")
        assert step.reward == 0 if env_id == "FrozenLake-v1" else step.reward < -1
        assert not step.is_over
    else:
        assert episode.read_action(text) == action
    episode.close()


@pytest.mark.parametrize(
    "row",
    [
        {"env_id": "NoSuchEnvironment-v0"},
        {"env_id": "FrozenLake-v1", "env_kwargs": {"a": 1}},
        {"env_id": "FrozenLake-v1", "env_kwargs": {"render_mode": []}},
        {"env_id": "FrozenLake-v1", "env_kwargs": {"map_name": "9x9"}},
    ],
)
def test_an_environment_that_cannot_be_made_is_an_error_of_the_row(row: dict[str, Any]) -> None:
    with pytest.raises(RolloutError, match="Gymnasium cannot make") as refused:
        GymnasiumEpisode(GymnasiumRow.model_validate(row))
    assert refused.value.cause == "input"


class Nested(gymnasium.Env[Any, Any]):
    """An environment whose actions and observations have parts."""

    action_space = gymnasium.spaces.Dict(
        {"move": gymnasium.spaces.Tuple((gymnasium.spaces.Discrete(3), gymnasium.spaces.Box(-1, 1, (2,))))}
    )
    observation_space = action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return {"move": (1, np.zeros(2, dtype=np.float32))}, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return action, float(action["move"][0]), True, False, {}


@contextmanager
def registered(env_id: str, make: Callable[..., gymnasium.Env[Any, Any]]) -> Iterator[None]:
    gymnasium.register(env_id, make)
    try:
        yield
    finally:
        del gymnasium.registry[env_id]


def test_actions_and_observations_may_have_parts() -> None:
    with registered("Nested-v0", lambda **_: Nested()):
        episode = GymnasiumEpisode(GymnasiumRow(env_id="Nested-v0"))
        assert episode.reset().endswith('{"move": [1, [0.0, 0.0]]}')
        assert episode.step('{"move": [2]}').observation.startswith("That is no action")
        assert episode.step('{"move": [2, [0.5, 5]]}').observation.startswith("That is no action")
        assert episode.step('{"move": [2, [0.5, 0]]}') == ('{"move": [2, [0.5, 0.0]]}', 2.0, True)


@pytest.mark.parametrize("env_id", ["CliffWalking-v1", "Taxi-v4", "MountainCar-v0"])
def test_not_to_act_costs_no_less_than_to_act(env_id: str) -> None:
    episode = GymnasiumEpisode(GymnasiumRow(env_id=env_id, seed=0))
    episode.reset()
    assert episode.step("I will not act.").reward <= -1.0
    episode.close()


TOOLS_FOR_EVER: dict[str, Any] = {"gymnasium_agent": {"responses_api_agents": {"multi_turn_agent": {"max_steps": 2}}}}


@pytest.mark.parametrize(("env_id", "worst"), [("CliffWalking-v1", -100 * 200), ("Taxi-v4", -10 * 200)])
async def test_to_leave_costs_no_less_than_to_act(env_id: str, worst: float) -> None:
    row = with_choices({"env_id": env_id, "seed": 0}, ['{"name": "noop", "arguments": {}}'], 0)
    (result,) = await play_all(CONFIG, "gymnasium_agent", [row], **TOOLS_FOR_EVER)
    assert (result["reward"], result["is_over"]) == (worst, False)


async def test_a_row_that_ends_with_a_message_of_the_user_is_refused() -> None:
    """The policy would act without an observation."""
    row = with_choices({"env_id": "Taxi-v4", "seed": 0, **example_row()}, ["1"], 0)
    with pytest.raises(RolloutError) as caught:
        await play_all(CONFIG, "gymnasium_agent", [row])
    assert caught.value.cause == "input"


async def test_environments_are_made_one_at_a_time() -> None:
    """Two threads that import modules of one package for the first time fail each other's import."""
    both, overlaps = threading.Barrier(2), []

    def make(**_kwargs: Any) -> gymnasium.Env[Any, Any]:
        with suppress(threading.BrokenBarrierError):
            both.wait(timeout=0.3)
            overlaps.append("two at once")
        return gymnasium.make("Blackjack-v1")

    row = GymnasiumRow.model_validate({**example_row(), "env_id": "nemo_gym/Slow-v0"})
    with registered("nemo_gym/Slow-v0", make):
        await asyncio.gather(*(asyncio.to_thread(GymnasiumEpisode, row) for _ in range(2)))
    assert overlaps == []
