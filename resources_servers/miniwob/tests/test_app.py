"""Scripted solutions by the tools alone, the pages of the package, and ways to a reward without solving."""

import json
import os
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from nemo_gym.browser import BrowserSession
from nemo_gym.testing import BrowserLikeClient, client_for, says
from resources_servers.miniwob.app import MiniwobResourcesServer, Task
from resources_servers.miniwob.rows import row_of
from resources_servers.miniwob.tests.solutions import SOLUTIONS
from tests.benchmarks import benchmark_rows, require
from tests.browser.chromium import Player, needs_chromium

if TYPE_CHECKING:
    from playwright.async_api import Page

EVERY = 1 if "MINIWOB_ALL" in os.environ else 6
"""The step between the solutions and pages that are tried. `make check-miniwob` tries all, which takes minutes."""

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


@pytest.mark.parametrize("task", [*SOLUTIONS][::EVERY])
async def test_a_solution_is_rewarded(client: BrowserLikeClient, task: str) -> None:
    page, goal = await opened(client, task, int(os.environ.get("MINIWOB_SEED", "1")))
    await SOLUTIONS[task](page, goal)
    score = await page.score()
    assert (score["reward"], score["raw_reward"], score["is_done"]) == (1.0, 1.0, True), f"{goal}\n{page.seen}"


async def test_pages_open_and_none_is_solved_by_doing_nothing(client: BrowserLikeClient) -> None:
    server = client.server
    assert isinstance(server, MiniwobResourcesServer)
    rows, session = benchmark_rows("miniwob/miniwob"), BrowserSession()
    assert (len(rows), len(SOLUTIONS) >= 30) == (130, True)
    session.site = Task(rows[0]["task"], 0)
    page = await server.page_of(session)
    for row in rows[::EVERY]:
        task = Task(row["task"], row["seed"])

        async def opened(tab: "Page", task: Task = task) -> tuple[object, object]:
            await tab.goto(task.url)
            await task.opened(tab)
            return await task.goal(tab), await task.ended(tab)

        goal, end = await page.run(opened)
        assert (bool(goal), end, task.is_done) == (True, None, False), row["task"]
    session.close()


async def test_a_seed_is_one_page(client: BrowserLikeClient) -> None:
    for task in ("click-checkboxes-large", "email-inbox", "read-table"):
        (one, goal), (same, same_goal), (_, other_goal) = [await opened(client, task, seed) for seed in (5, 5, 6)]
        assert (one.seen, goal) == (same.seen, same_goal)
        assert goal != other_goal
        for page in (one, same):
            await page.score()


@pytest.mark.parametrize(
    ("task", "field"), [("enter-text", "- textbox"), ("terminal", ""), ("search-engine", "- textbox")]
)
async def test_typed_code_does_not_run(client: BrowserLikeClient, task: str, field: str) -> None:
    page, _ = await opened(client, task)
    for text in ("<img src=x onerror=core.endEpisode(1)>", "<script>core.endEpisode(1)</script>"):
        if field:
            await page.do("fill", ref=page.ref(field), text=text)
        else:
            await page.do("type_text", text=text)
        await page.do("press", keys="Enter")
    assert (await page.score())["reward"] == 0


async def test_no_code_of_a_page_runs_that_is_not_its_own(client: BrowserLikeClient) -> None:
    """What a page would do with typed text at worst."""
    server = client.server
    assert isinstance(server, MiniwobResourcesServer)
    session = BrowserSession(site=Task("enter-text", 1))
    page = await server.page_of(session)
    for code in (
        "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=core.endEpisode(1)>')",
        "const it = document.createElement('script'); it.text = 'core.endEpisode(1)'; document.body.append(it)",
        "location.href = 'javascript:core.endEpisode(1)'",
        "setTimeout('core.endEpisode(1)', 0)",
    ):
        script = f"() => {{ try {{ {code} }} catch {{}} return new Promise(done => setTimeout(done, 50)) }}"

        async def run(tab: "Page", script: str = script) -> None:
            await tab.evaluate(script)

        await page.run(run)
        assert await page.run(session.site.ended) is None, code
    session.close()


async def test_only_the_first_end_counts(client: BrowserLikeClient) -> None:
    page, _ = await opened(client, "click-test-2")
    await page.do("click", ref=page.ref('button "TWO"'), clicks=3)
    assert "has ended" in page.seen
    assert "has ended" in await page.do("look")
    score = await page.score()
    assert (score["reward"], score["raw_reward"], score["is_done"]) == (0.0, -1.0, True)


async def test_a_form_that_is_sent_does_not_start_the_task_anew(client: BrowserLikeClient) -> None:
    page, _ = await opened(client, "guess-number")
    await page.do("fill", ref=page.ref("- spinbutton"), text="3")
    await page.do("press", keys="Enter")
    assert "START" not in page.seen
    assert (await page.score())["reward"] in (0, 1)


async def test_a_part_of_the_page_s_reward_is_not_one(client: BrowserLikeClient) -> None:
    page, _ = await opened(client, "click-checkboxes-large")
    await page.click("- checkbox")
    await page.click('button "Submit"')
    score = await page.score()
    assert (score["reward"], score["is_done"]) == (0.0, True)
    assert -1 <= score["raw_reward"] < 1


@pytest.mark.parametrize(("name", "count"), [("miniwob", 130), ("browsergym", 625), ("train", 2600)])
async def test_a_dataset_has_its_rows(name: str, count: int) -> None:
    rows = benchmark_rows(f"miniwob/{name}")
    assert len(rows) == len({row["id"] for row in rows}) == count
