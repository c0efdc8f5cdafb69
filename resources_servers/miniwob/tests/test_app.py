"""Scripted solutions by the tools alone, the pages of the package, and ways to a reward without solving."""

import json
import os
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from nemo_gym.testing import BrowserLikeClient, client_for, says
from resources_servers.miniwob.app import MiniwobResourcesServer
from resources_servers.miniwob.rows import row_of
from resources_servers.miniwob.tests.solutions import SOLUTIONS
from tests.benchmarks import require
from tests.browser.chromium import Player, needs_chromium

pytestmark = [needs_chromium, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def client() -> AsyncIterator[BrowserLikeClient]:
    require("miniwob/miniwob")
    async with client_for(MiniwobResourcesServer) as found:
        yield found


async def opened(client: BrowserLikeClient, task: str, seed: int = 1) -> tuple[Player, str]:
    """The page of a task, and its goal."""
    page = Player(client, row_of(task, seed))
    assert (await page.client.post("/seed_session", json=page.row)).status == 200
    reply = await page.client.post("/next_message", json={**page.row, "response": says(""), "turn": 0})
    assert reply.status == 200, reply.text
    goal, _, page.seen = json.loads(reply.content())["message"]["content"].partition("\n")
    return page, goal.removeprefix("Goal: ")


@pytest.mark.parametrize("task", SOLUTIONS)
async def test_a_solution_is_rewarded(client: BrowserLikeClient, task: str) -> None:
    page, goal = await opened(client, task, int(os.environ.get("MINIWOB_SEED", "1")))
    await SOLUTIONS[task](page, goal)
    score = await page.score()
    assert (score["reward"], score["raw_reward"], score["is_done"]) == (1.0, 1.0, True), f"{goal}\n{page.seen}"
