"""A trainer's session, with real servers in a process of their own."""

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from nemo_gym.common.paths import EXTRA_ROOTS_ENV_VAR
from nemo_gym.errors import RolloutError, StartupError
from nemo_gym.testing import example_row, says
from nemo_gym.training import CompleteGroup, RolloutSession, Source
from tests.polling import until
from tests.runtime.test_workers import CONFIG, adds_twice, model_at
from tests.stub_endpoint import Request, stub_endpoint

COHORT = '''
"""A verifier that waits for all rollouts of its group."""
import asyncio
from nemo_gym.base_resources_server import BaseVerifyRequest, SimpleResourcesServer

SIZE = 4
waiting = {}

class CohortVerifyRequest(BaseVerifyRequest):
    cohort: int

class CohortResourcesServer(SimpleResourcesServer):
    async def verify(self, body: CohortVerifyRequest) -> float:
        count, everybody = waiting.setdefault(body.cohort, ([], asyncio.Event()))
        count.append(body)
        if len(count) >= SIZE:
            everybody.set()
        await asyncio.wait_for(everybody.wait(), 20)
        return 1.0
'''


def config_at(url: str, folder: Path, **more: Any) -> dict[str, Any]:
    path = folder / "config.yaml"
    path.write_text(json.dumps({**CONFIG, "policy_model": model_at(url), **more}))
    return {"config_paths": [str(path)], "head_server": {"host": "127.0.0.1", "port": 1}}


def row_of(number: int, *, expected: int, agent: str = "agent") -> dict[str, Any]:
    reference = {"type": "responses_api_agents", "name": agent}
    row = example_row("Add two, twice.", initial_count=number, expected_count=expected, agent_ref=reference)
    row["responses_create_params"]["tools"] = [{"type": "function", "name": "increment_counter", "parameters": {}}]
    return row


@pytest.mark.parametrize("num_workers", [1, 2])
async def test_submitted_rows_come_back_scored_and_failures_name_their_row(tmp_path: Path, num_workers: int) -> None:
    async with stub_endpoint(adds_twice) as endpoint:

        async def play() -> None:
            rows = [row_of(number, expected=number + 4 + number % 2) for number in range(8)]
            handles = [session.submit(row) for row in rows]
            records = [await handle for handle in handles]
            assert [record["reward"] for record in records] == [1.0, 0.0] * 4
            wrong = session.submit(row_of(0, expected=4, agent="nobody"))
            with pytest.raises(RolloutError) as failed:
                await wrong
            assert failed.value.cause == "input"
            assert (failed.value.row, failed.value.rollout_id) == (wrong.row, wrong.id)

        session = RolloutSession(config_at(endpoint.url, tmp_path, num_workers=num_workers))
        await asyncio.to_thread(session.__enter__)
        try:
            await play()
        finally:
            await asyncio.to_thread(session.__exit__)


def take_all(config: dict[str, Any], sources: dict[str, Source], **options: Any) -> tuple[list[CompleteGroup], Any]:
    with RolloutSession(config) as session:
        stream = session.groups(sources, **options)
        return [*stream], stream.stats()


async def test_groups_without_signal_are_dropped(tmp_path: Path) -> None:
    rows = [row_of(0, expected=4), row_of(1, expected=9), row_of(2, expected=6)]
    async with stub_endpoint(adds_twice) as endpoint:
        config = config_at(endpoint.url, tmp_path)
        keep = lambda results: results[0]["reward"] == 1.0  # noqa: E731
        taken, stats = await asyncio.to_thread(take_all, config, {"a": Source(rows)}, group_size=3, keep=keep)
    assert sorted(group.row["initial_count"] for group in taken) == [0, 2]
    assert all(len(group.results) == 3 for group in taken)
    assert stats["dropped"] == {"a": {"no_signal": 1}}


async def test_an_aborted_rollout_ends_and_its_model_is_asked_no_more(tmp_path: Path) -> None:
    asked, may_go_on = 0, asyncio.Event()

    async def reply(request: Request) -> Any:
        nonlocal asked
        asked += 1
        await may_go_on.wait()
        return await adds_twice(request)

    async with stub_endpoint(reply) as endpoint:
        session = RolloutSession(config_at(endpoint.url, tmp_path))
        await asyncio.to_thread(session.__enter__)
        try:
            handle = session.submit(row_of(0, expected=4))
            await until(lambda: asked == 1)
            handle.abort()
            with pytest.raises(RolloutError) as aborted:
                await handle
            assert aborted.value.code == "aborted"
            may_go_on.set()
            await session.submit(row_of(1, expected=5))
        finally:
            await asyncio.to_thread(session.__exit__)
    assert asked == 1 + 3


@pytest.mark.parametrize(("num_workers", "kills"), [(1, False), (2, False), (4, False), (2, True)])
async def test_verifiers_that_wait_for_their_group_have_it_in_one_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_workers: int, kills: bool
) -> None:
    monkeypatch.setenv(EXTRA_ROOTS_ENV_VAR, str(tmp_path))
    folder = tmp_path / "resources_servers" / "cohort"
    folder.mkdir(parents=True)
    (folder / "app.py").write_text(COHORT)
    cohort = {"resources_servers": {"cohort": {"entrypoint": "app.py", "domain": "agent"}}}
    asked = 0

    async def reply(_request: Request) -> Any:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0.05)
        return says("Done.")

    rows = [{**row_of(number, expected=0), "cohort": number} for number in range(6)]
    async with stub_endpoint(reply) as endpoint:
        config = config_at(endpoint.url, tmp_path, counter=cohort, num_workers=num_workers)
        options = {"group_size": 4, "max_in_flight": 24}
        playing = asyncio.create_task(asyncio.to_thread(take_all, config, {"a": Source(rows)}, **options))
        if kills:
            await until(lambda: asked > 0)
            workers = [
                each for each in psutil.Process().children(True) if "rollouts.worker" in " ".join(each.cmdline())
            ]
            os.kill(workers[0].pid, signal.SIGKILL)
        taken, _stats = await playing
    assert sorted(group.row["cohort"] for group in taken) == [0, 1, 2, 3, 4, 5]
    assert [result["reward"] for group in taken for result in group.results] == [1.0] * 24


def test_a_session_whose_servers_do_not_start_says_so(tmp_path: Path) -> None:
    config = config_at(
        "http://127.0.0.1:1/v1", tmp_path, agent={"responses_api_agents": {"no_such_folder": {"entrypoint": "app.py"}}}
    )
    with pytest.raises(StartupError, match="did not start"), RolloutSession(config):
        pass
