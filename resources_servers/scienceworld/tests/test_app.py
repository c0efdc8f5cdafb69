"""A task by its answer with the real agent and the real game, and games that are used again."""

import shutil
from typing import Any

import orjson
import pytest

from nemo_gym import ServerReply
from nemo_gym.testing import client_for, rows_of, running_servers, server_spec
from resources_servers.scienceworld.app import ScienceWorldResourcesServer
from resources_servers.scienceworld.game import GamePool, ScienceWorldEpisode

pytest.importorskip("scienceworld", reason="pip install scienceworld")
if shutil.which("java") is None:
    pytest.skip("there is no java", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
"""py4j leaves sockets open."""
ROW = rows_of("resources_servers/scienceworld/data/example.jsonl")[0]


def answer_of(pool: GamePool, row: dict[str, Any]) -> list[str]:
    game = pool.take()
    game.load(row["task"], row["variation"], "", generateGoldPath=True)
    game.reset()
    found = list(game.get_gold_action_sequence())
    pool.give_back(game)
    return found


async def play(row: dict[str, Any], actions: list[str]) -> dict[str, Any]:
    servers: dict[str, Any] = {
        "resources_server": {"type": "resources_servers", "name": "scienceworld"},
        "model_server": {"type": "responses_api_models", "name": "policy_model"},
    }
    # The first reply whose condition holds is given: each once, in order.
    replies = [{"say": action, "times": 1, "turn": 0} for action in actions]
    stack = [
        server_spec("agent", "responses_api_agents", "multi_turn_agent", max_turns=len(actions), **servers),
        server_spec("scienceworld", "resources_servers", "scienceworld", domain="games"),
        server_spec("policy_model", "responses_api_models", "scripted_model", replies=replies),
    ]
    async with running_servers(stack) as client:
        reply = await client.call("agent", "/run", row, answer=ServerReply)
    record: dict[str, Any] = orjson.loads(reply.content())
    return record


async def test_the_answer_has_all_points_and_looking_around_has_few() -> None:
    pool = GamePool(1, 512)
    try:
        actions = answer_of(pool, ROW)
    finally:
        pool.close()
    solved = await play(ROW, actions)
    assert (round(solved["reward"], 6), solved["is_over"]) == (1.0, True)
    idle = await play(ROW, ["look around", "inventory", "no such action"])
    assert (idle["reward"] < 0.2, idle["is_over"]) == (True, False)


def test_a_game_is_used_again_and_given_back() -> None:
    pool = GamePool(1, 512)
    try:
        first = ScienceWorldEpisode(pool, "find-plant", 0, "", 100)
        game = first._game
        assert "plant" in first.reset()
        first.close()
        first.close()
        for task, variation in (("no-such-task", 0), ("find-plant", 10**6)):
            with pytest.raises(Exception, match="no "):
                ScienceWorldEpisode(pool, task, variation, "", 100)
        second = ScienceWorldEpisode(pool, "boil", 0, "", 3)
        assert second._game is game
        assert "boil" in second.reset()
        steps = [second.step("wait1") for _ in range(5)]
        assert steps[-1].is_over, "beyond the moves of the row"
        second.close()
    finally:
        pool.close()


async def test_a_row_without_such_a_task_is_refused() -> None:
    async with client_for(ScienceWorldResourcesServer) as environment:
        reply = await environment.post("/seed_session", json={**ROW, "task": "fly"})
        assert "fly" in reply.text
        assert reply.status >= 400
