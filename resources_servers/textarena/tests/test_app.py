"""Games of TextArena through the agent have the rewards of TextArena's own loop, also when played at the same time."""

import copy
import importlib.abc
import random
import re
import sys
import threading
from typing import Any

import orjson
import pytest
import textarena  # type: ignore[import-untyped]

from nemo_gym.errors import RolloutError
from nemo_gym.testing import example_row, message, response_of, running_servers, server_spec
from resources_servers.textarena.app import TextArenaGame, TextArenaRow
from tests.interop import ROLLOUTS, choice, play_all, with_choices

CONFIG = "resources_servers/textarena/configs/textarena.yaml"


def own_loop(game: str, choices: list[str], seed: int, *, player: int, num_players: int) -> float:
    """The policy's reward if it moves at random, and the others choose among the moves that are listed last."""
    env = textarena.make(game)
    env.reset(num_players=num_players, seed=seed)
    opponent, turn, is_over = random.Random(seed), 0, False
    while not is_over:
        now, observation = env.get_observation()
        if now == player:
            action, turn = choice(choices, str(seed), turn), turn + 1
        else:
            lines = [re.findall(r"\[[^\[\]]+\]", line) for line in observation.splitlines()]
            action = legal_move(env, opponent, [moves for moves in lines if moves])
        is_over, _ = env.step(action)
    return float(env.close()[0][player])


def legal_move(env: Any, chance: random.Random, listed: list[list[str]]) -> str:
    """A move that was listed last, or another one if that is not legal."""
    named = sorted({move for moves in listed for move in moves})
    for move in (chance.choice(listed[-1]), *chance.sample(named, len(named))):
        tried, shared = copy.deepcopy(env), random.getstate()
        tried.step(move)
        random.setstate(shared)
        if tried.state.error_count <= env.state.error_count and not any(
            player["invalid_move"] for player in tried.state.game_info.values()
        ):
            return move
    raise AssertionError(listed)


@pytest.mark.parametrize(
    ("game", "player", "num_players", "choices"),
    [
        ("TicTacToe-v0", 0, 2, [f"[{square}]" for square in range(9)]),
        ("TicTacToe-v0", 1, 2, [f"[{square}]" for square in range(9)]),
        ("KuhnPoker-v0", 0, 2, ["[check]", "[bet]", "[call]", "[fold]"]),
        ("FrozenLake-v0", 0, 1, ["[up]", "[down]", "[left]", "[right]"]),
    ],
)
async def test_rewards_are_those_of_the_own_loop(game: str, player: int, num_players: int, choices: list[str]) -> None:
    seeds, row = range(ROLLOUTS), {"game": game, "player": player, "num_players": num_players}
    results = await play_all(CONFIG, "textarena_agent", [with_choices({**row, "seed": s}, choices, s) for s in seeds])
    expected = [own_loop(game, choices, seed, player=player, num_players=num_players) for seed in seeds]
    assert [result["reward"] for result in results] == expected
    assert all(result["is_over"] for result in results)
    assert len(set(expected)) > 1


def opponent(reply: dict[str, Any]) -> dict[str, Any]:
    """The settings for an opponent that is a model."""
    scripted = {"entrypoint": "app.py", "replies": [reply]}
    return {
        "opponent": {"responses_api_models": {"scripted_model": scripted}},
        "textarena": {
            "resources_servers": {
                "textarena": {"opponent_model_server": {"type": "responses_api_models", "name": "opponent"}}
            }
        },
    }


AGAINST_A_MODEL = with_choices(
    {"game": "TicTacToe-v0", "opponent": "model", "seed": 3}, [f"[{square}]" for square in range(9)], 3
)


async def test_a_model_can_be_the_opponent() -> None:
    settings = opponent({"user": "Available Moves.*'(\\[\\d\\])'", "say": "\\1"})
    (result,) = await play_all(CONFIG, "textarena_agent", [AGAINST_A_MODEL], **settings)
    assert result["is_over"]
    assert result["reward"] in (-1.0, 0.0, 1.0)


async def test_an_opponent_whose_endpoint_fails_makes_no_move() -> None:
    died = response_of(message("[4]"), error={"code": "server_error", "message": "GPU died"})
    settings = opponent({"garbage": orjson.dumps(died).decode()})
    with pytest.raises(RolloutError, match="GPU died") as caught:
        await play_all(CONFIG, "textarena_agent", [AGAINST_A_MODEL], **settings)
    assert caught.value.cause == "model"


def test_a_game_leaves_the_global_generator_alone() -> None:
    random.seed(5)
    before = random.getstate()
    game = TextArenaGame(TextArenaRow(game="KuhnPoker-v0", seed=1))
    game.step("[check]")
    assert random.getstate() == before


class ImportWatch(importlib.abc.MetaPathFinder):
    """Finds nothing, and remembers in which thread it was asked for TextArena."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "textarena":
            self.threads.append(threading.current_thread())
            raise ModuleNotFoundError(fullname)


async def test_the_package_is_imported_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = ImportWatch()
    monkeypatch.delitem(sys.modules, "textarena")
    monkeypatch.setattr(sys, "meta_path", [watch, *sys.meta_path])
    async with running_servers([server_spec("textarena", "resources_servers", "textarena", domain="games")]) as client:
        reply = await client.post("textarena", "/seed_session", json=example_row(game="TicTacToe-v0"))
    assert reply.status >= 400
    assert watch.threads
    assert threading.current_thread() not in watch.threads


@pytest.mark.parametrize(
    ("game", "player"), [("KuhnPoker-v0", 0), ("KuhnPoker-v0", 1), ("ConnectFour-v0", 0), ("ConnectFour-v0", 1)]
)
async def test_doing_nothing_wins_no_game(game: str, player: int) -> None:
    rows = [
        with_choices({"game": game, "player": player, "seed": seed}, ["I will not act."], seed) for seed in range(4)
    ]
    results = await play_all(CONFIG, "textarena_agent", rows)
    assert all(result["reward"] <= 0 and result["steps"] > 0 for result in results)


TOOLS_FOR_EVER: dict[str, Any] = {"textarena_agent": {"responses_api_agents": {"multi_turn_agent": {"max_steps": 2}}}}


@pytest.mark.parametrize(("game", "num_players", "reward"), [("TicTacToe-v0", 2, -1.0), ("FrozenLake-v0", 1, 0.0)])
async def test_to_leave_a_game_is_to_lose_it(game: str, num_players: int, reward: float) -> None:
    row = with_choices({"game": game, "num_players": num_players, "seed": 1}, ['{"name": "noop", "arguments": {}}'], 1)
    (result,) = await play_all(CONFIG, "textarena_agent", [row], **TOOLS_FOR_EVER)
    assert (result["reward"], result["is_over"]) == (reward, False)


async def test_one_move_does_not_win_against_the_random_opponent() -> None:
    rows = [with_choices({"game": "ConnectFour-v0", "seed": seed}, ["[3]"], seed) for seed in range(4)]
    results = await play_all(CONFIG, "textarena_agent", rows)
    assert all(result["steps"] > 3 for result in results)


@pytest.mark.parametrize("row", [{"player": 5}, {"player": -1}, {"num_players": 99}, {"num_players": 0}])
def test_a_game_that_cannot_be_played_so_is_refused(row: dict[str, Any]) -> None:
    with pytest.raises(RolloutError) as caught:
        TextArenaGame(TextArenaRow(**example_row(game="TicTacToe-v0", **row)))
    assert caught.value.cause == "input"
