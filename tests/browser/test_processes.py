"""Browsers that die, and servers that are killed: no process stays, and only the rollouts of the dead one are lost."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import orjson
import psutil

from tests.browser.chromium import (
    browser_processes,
    gone,
    main_processes,
    needs_chromium,
    page_server,
    player,
    renderers,
)
from tests.polling import until

SERVER = """
import asyncio, sys
from tests.browser.chromium import page_server, player

async def main():
    async with page_server() as client:
        endless = "setTimeout(() => { while (true) {} }, 300)"
        page = await player(client, f"<p>Hello</p><button onclick='{endless}'>go</button>")
        print((await page.click("go")).count("Hello"), flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


@needs_chromium
async def test_a_page_whose_process_is_killed_from_outside_is_no_result_for_its_rollout_alone() -> None:
    big = "<script>const bytes = new Uint8Array(3e8).fill(7)</script><button>go</button>"
    async with page_server() as client:
        one, other = await player(client, big), await player(client, "<a href=/win>win</a>")
        await one.click("go")
        biggest = max(renderers(), key=lambda each: each.memory_info().rss)
        biggest.kill()
        await gone([biggest])
        await one.click("go")
        assert one.cause == "environment"
        await other.click("win")
        assert (await other.score())["reward"] == 1


@needs_chromium
async def test_a_browser_that_dies_is_replaced_and_only_its_rollouts_are_lost() -> None:
    async with page_server(pages_per_browser=1) as client:
        one = await player(client, "<a href=/win>win</a>")
        (main,) = main_processes()
        other = await player(client, "<a href=/win>win</a>")
        main.kill()
        await gone([main])
        await one.click("win")
        assert one.cause == "environment"
        await other.click("win")
        assert (await other.score())["reward"] == 1
        third = await player(client, "<p>Third</p>")
        assert "Third" in third.seen
    assert await gone(browser_processes())


@needs_chromium
async def test_a_browser_is_replaced_after_some_pages_and_pages_are_closed_with_their_sessions() -> None:
    async with page_server(reuse_browser=3, max_pages=2) as client:
        mains: set[int] = set()
        for _ in range(7):
            page = await player(client, "<p>Hello</p>")
            assert "Hello" in page.seen
            mains |= {each.pid for each in main_processes()}
            await page.end()
        assert len(mains) == 3
        await until(lambda: len(main_processes()) == 1)
    assert await gone(browser_processes())


@needs_chromium
def test_nothing_stays_when_the_server_is_killed(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER],
        stdout=subprocess.PIPE,
        cwd=root,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        started = psutil.Process(process.pid).children(recursive=True)
        assert len(started) > 5
        os.kill(process.pid, signal.SIGKILL)
    _, alive = psutil.wait_procs(started, timeout=30)
    assert alive == []
    assert list(tmp_path.iterdir()) == []


async def test_without_a_browser_the_error_says_what_to_install() -> None:
    async with page_server(executable_path="/nowhere/chromium") as client:
        page = await player(client, "<p>Hello</p>")
        error = orjson.loads(page.reply.content())["error"]
        assert (error["cause"], error["retryable"]) == ("environment", False)
        assert "apt install chromium" in error["message"]
        assert "/nowhere/chromium" in error["message"]


async def test_a_program_that_is_no_browser_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    async with page_server(executable_path="/bin/true") as client:
        page = await player(client, "<p>Hello</p>")
        assert page.cause == "environment"
        assert "/bin/true cannot be started" in page.seen


async def test_a_server_without_a_rollout_starts_no_browser() -> None:
    async with page_server():
        assert browser_processes() == []


async def test_a_session_that_was_not_seeded_is_an_error_of_its_input() -> None:
    async with page_server() as client:
        reply = await client.another().post("/look", json={})
        assert orjson.loads(reply.content())["error"]["cause"] == "input"
