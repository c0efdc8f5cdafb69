"""A row that kills every worker that makes it is given up, and takes no other row with it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from nemo_gym.client.server_client import ServerClient
from nemo_gym.config.loading import load_config
from nemo_gym.errors import RolloutError
from nemo_gym.rollouts.collector import RolloutCollectionHelper
from nemo_gym.rollouts.config import RolloutCollectionConfig
from nemo_gym.rollouts.types import Outcome, RowId, Scored
from nemo_gym.rollouts.worker_losses import IN_FLIGHT_AFTER, LostRows
from nemo_gym.runtime.launcher import Launcher
from nemo_gym.testing import example_row, rows_of
from tests.polling import PATIENCE_S
from tests.stacks import agent_config

ABORTING = """
import os

from nemo_gym.base_resources_server import BaseVerifyRequest, SimpleResourcesServer

class AbortingResourcesServer(SimpleResourcesServer):
    async def verify(self, body: BaseVerifyRequest) -> float:
        if body.responses_create_params.input[-1].content == "abort":
            os.abort()
        return 1.0
"""
CONFIG = agent_config("aborting", replies=[{"user": "abort", "say": "Done."}, {"latency_s": 0.2, "say": "Done."}])
ROWS, POISONED = 24, 5


@asynccontextmanager
async def one_worker(folder: Path) -> AsyncIterator[ServerClient]:
    """A worker that all rows share, so that each of its deaths is one for all of them."""
    (folder / "resources_servers" / "aborting").mkdir(parents=True)
    (folder / "resources_servers" / "aborting" / "app.py").write_text(ABORTING)
    (folder / "config.yaml").write_text(CONFIG)
    arguments = ["config_paths=[config.yaml]", "head_server={host: 127.0.0.1, port: 0}"]
    launcher = Launcher(load_config(arguments, use_dotenv=False, fill_ports=False), echo=print)
    async with asyncio.timeout(PATIENCE_S), launcher, launcher.client() as client:
        yield client


def prompt(number: int) -> str:
    return "abort" if number == POISONED else "fine"


async def test_a_row_that_kills_its_workers_is_the_only_one_without_a_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(example_row(prompt(n))) + "\n" for n in range(ROWS)))
    job = RolloutCollectionConfig(
        agent_name="agent",
        input_jsonl_fpath="rows.jsonl",
        output_jsonl_fpath="out.jsonl",
        num_samples_in_parallel=ROWS,
        max_attempts=1,
    )
    async with one_worker(tmp_path) as client:
        metrics = await RolloutCollectionHelper().run_from_config(job, client=client)
    assert (metrics.scored, metrics.failed) == (ROWS - 1, {"environment": 1})
    (final,) = [failure for failure in rows_of("out_failures.jsonl") if failure["is_final"]]
    assert (final["_task_index"], final["code"]) == (POISONED, "worker_lost")


async def test_the_same_for_the_rows_of_a_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{**example_row(prompt(n)), "agent_ref": {"name": "agent"}, "_rowidx": n} for n in range(ROWS)]
    scored: list[int] = []
    failed: list[str | None] = []
    async with one_worker(tmp_path) as client:
        for future in RolloutCollectionHelper().run_examples(rows, client=client):
            try:
                scored.append((await future)[0]["_rowidx"])
            except RolloutError as error:
                failed.append(error.code)
    assert sorted(scored) == [number for number in range(ROWS) if number != POISONED]
    assert failed == ["worker_lost"]


@pytest.mark.parametrize(("lost", "most"), [(0, 40), (1, 40), *IN_FLIGHT_AFTER.items()])
async def test_the_more_workers_a_row_has_lost_the_fewer_go_out_together(lost: int, most: int) -> None:
    rows, in_flight, most_in_flight = LostRows(), 0, 0

    async def make_attempt() -> Outcome:
        nonlocal in_flight, most_in_flight
        in_flight += 1
        most_in_flight = max(most_in_flight, in_flight)
        await asyncio.sleep(0.01)
        in_flight -= 1
        return Scored(RowId(0, 0, "0" * 16), b"{}")

    await asyncio.gather(*(rows.dispatch(make_attempt, lost=lost) for _ in range(40)))
    assert most_in_flight == most
