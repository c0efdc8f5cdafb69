"""A program that breaks its sandbox has failed; a sandbox that the machine ended says nothing about the program."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import psutil
import pytest

from nemo_gym.sandbox.registry import Assessment, bubblewrap, landlock
from nemo_gym.testing import BrowserLikeClient, client_for
from resources_servers.code_gen.app import CodeGenResourcesServer
from resources_servers.code_gen.tests.test_app import fenced, row, verified

ATTACKS = {
    "kills its agent": "os.kill(os.getppid(), 9)",
    "kills its agent in the background": """
agent = os.getppid()
if not os.fork():
    os.setsid()
    os.closerange(0, 3)
    time.sleep(0.2)
    os.kill(agent, 9)
    os._exit(0)""",
    "asks its agent to end": "os.kill(os.getppid(), 15)",
    "takes the open files of its agent": "resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (3, 3))",
    "takes the memory of its agent": "resource.prlimit(os.getppid(), resource.RLIMIT_AS, (0, 0))",
    "takes the processor time of its agent": "resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (0, 0))",
    "closes its descriptors": "os.closerange(0, 65536)",
    "fills its pipes": "while True: os.write(1, bytes(65536)), os.write(2, bytes(65536))",
}
PROGRAM = "import os, resource, time\n{attack}\nprint(int(input()) ** 2)\ntime.sleep(0.5)"
SQUARES = (["2\n", "3\n", "4\n"], ["4\n", "9\n", "16\n"])


def environment_of(provider: str, **options: object) -> AbstractAsyncContextManager[BrowserLikeClient]:
    boxes = {provider: {"limits": {"wall_s": 15}, **options}}
    return client_for(CodeGenResourcesServer, unit_test_timeout_secs=2, warm_sandboxes=0, sandbox_provider=boxes)


@pytest.mark.parametrize("what", ATTACKS)
async def test_a_program_fails_that(what: str) -> None:
    """Nothing confines it here: it can do to its agent what it likes."""
    async with environment_of("unconfined") as environment:
        record = await verified(environment, row(fenced(PROGRAM.format(attack=ATTACKS[what])), *SQUARES))
        assert (record["reward"], record["result"][-1] in (-2, -3, -4)) == (0.0, True), record["metadata"]


@pytest.mark.parametrize("what", ATTACKS)
@pytest.mark.parametrize("provider", [bubblewrap, landlock])
async def test_a_confined_program_is_scored_that(provider: Callable[[], Assessment], what: str) -> None:
    if not provider().works:
        pytest.skip(provider().reason)
    async with environment_of(provider().name) as environment:
        await verified(environment, row(fenced(PROGRAM.format(attack=ATTACKS[what])), *SQUARES))
        caught = f"try:\n    {ATTACKS[what]}\nexcept OSError: pass" if "\n" not in ATTACKS[what] else "pass"
        if what not in ("closes its descriptors", "fills its pipes"):
            record = await verified(environment, row(fenced(PROGRAM.format(attack=caught)), *SQUARES))
            assert record["result"] == [True, True, True], record["metadata"]


async def test_a_program_whose_sandbox_was_ended_from_outside_is_run_again() -> None:
    async with environment_of("unconfined") as environment:
        before = set(psutil.Process().children(recursive=True))
        waiting = "import time; time.sleep(3); print(int(input()) ** 2)"
        verifying = asyncio.create_task(verified(environment, row(fenced(waiting), ["2\n"], ["4\n"])))
        started: set[psutil.Process] = set()
        while len(started) < 2:  # the agent and the program
            await asyncio.sleep(0.05)
            started = set(psutil.Process().children(recursive=True)) - before
        min(started, key=lambda process: process.create_time()).kill()
        assert (await verifying)["result"] == [True]


async def test_a_sandbox_that_cannot_start_gives_no_score() -> None:
    if not bubblewrap().works:
        pytest.skip(bubblewrap().reason)
    async with environment_of("bubblewrap", executable="/bin/false") as environment:
        answer = await environment.post("/verify", json=row(fenced("pass"), *SQUARES))
        assert (answer.status, "did not start" in answer.text) == (500, True)
