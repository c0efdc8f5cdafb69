"""A row that kills every process that it is in is given up, and takes no other row with it."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.client.server_client import ServerClient
from nemo_gym.config.loading import load_config
from nemo_gym.errors import RolloutError
from nemo_gym.rollouts.collector import RolloutCollectionHelper
from nemo_gym.rollouts.config import RolloutCollectionConfig
from nemo_gym.rollouts.process_losses import (
    ALONE_AFTER,
    FEW,
    FEW_AFTER,
    MAX_CHARGED,
    MAX_LOST_ALONE,
    LostRows,
    ProcessLosses,
    RowLosses,
    Suspects,
)
from nemo_gym.rollouts.types import Outcome, Row
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
REPLIES = [{"user": "abort", "say": "Done."}, {"latency_s": 0.2, "say": "Done."}]
ROWS, POISONED = 24, 5
ROW = Row(0, 0, "0" * 16, "agent", b"{}")
LOST = RolloutError("environment", "Its process died.", code="process_lost")


@asynccontextmanager
async def one_worker(folder: Path, *, isolation: str = "shared") -> AsyncIterator[ServerClient]:
    """A worker that all rows share, or an isolated environment, so that each of its deaths is one for all of them."""
    (folder / "resources_servers" / "aborting").mkdir(parents=True)
    (folder / "resources_servers" / "aborting" / "app.py").write_text(ABORTING)
    (folder / "config.yaml").write_text(agent_config("aborting", replies=REPLIES, isolation=isolation))
    arguments = ["config_paths=[config.yaml]", "head_server={host: 127.0.0.1, port: 0}"]
    launcher = Launcher(load_config(arguments, use_dotenv=False, fill_ports=False), echo=print)
    async with asyncio.timeout(PATIENCE_S), launcher, launcher.client() as client:
        yield client


def prompt(number: int) -> str:
    return "abort" if number == POISONED else "fine"


@pytest.mark.parametrize(("isolation", "code"), [("shared", "worker_lost"), ("process", "process_lost")])
async def test_a_row_that_kills_its_process_is_the_only_one_without_a_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isolation: str, code: str
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
    async with one_worker(tmp_path, isolation=isolation) as client:
        metrics = await RolloutCollectionHelper().run_from_config(job, client=client)
    assert (metrics.scored, metrics.failed) == (ROWS - 1, {"environment": 1})
    (final,) = [failure for failure in rows_of("out_failures.jsonl") if failure["is_final"]]
    assert (final["_task_index"], final["code"]) == (POISONED, code)


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


async def most_in_flight_of(lost: int, *, is_lost: bool) -> tuple[int, list[RowLosses]]:
    """Forty rows that lost so many processes, each with one attempt that ends well or loses its process, too."""
    rows, in_flight, most_in_flight = LostRows(), 0, 0
    losses = [RowLosses(lost=lost) for _ in range(40)]

    async def make_attempt() -> Outcome:
        nonlocal in_flight, most_in_flight
        in_flight += 1
        most_in_flight = max(most_in_flight, in_flight)
        await asyncio.sleep(0.01)
        in_flight -= 1
        return Outcome.failed(ROW, LOST) if is_lost else Outcome(ROW, b"{}")

    await asyncio.gather(*(rows.dispatch(make_attempt, each) for each in losses))
    return most_in_flight, losses


@pytest.mark.parametrize(
    ("lost", "most"), [(0, 40), (1, 40), (FEW_AFTER, FEW), (ALONE_AFTER, 1), (ALONE_AFTER + 2, 1)]
)
async def test_the_more_processes_a_row_has_lost_the_fewer_go_out_together(lost: int, most: int) -> None:
    assert (await most_in_flight_of(lost, is_lost=True))[0] == most


async def test_more_and_more_rows_go_out_together_while_they_end_well() -> None:
    most, losses = await most_in_flight_of(ALONE_AFTER, is_lost=False)
    assert 4 < most < 40
    assert [each.is_alone for each in losses].count(True) == 1


async def test_a_suspect_that_is_cancelled_while_it_waits_leaves_its_place_to_others() -> None:
    suspects, done, outcome = Suspects(), asyncio.Event(), Outcome(ROW, b"{}")

    async def make_attempt() -> Outcome:
        await done.wait()
        return outcome

    waiting = [asyncio.create_task(suspects.run(make_attempt, RowLosses())) for _ in range(4)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    waiting[1].cancel()
    done.set()
    assert await asyncio.wait_for(asyncio.gather(*waiting[2:]), PATIENCE_S) == [outcome, outcome]


def test_a_row_is_not_charged_for_a_death_that_others_may_have_caused() -> None:
    policy, row = ProcessLosses(), RowLosses("a", lost=ALONE_AFTER, is_alone=False)
    assert all(attempts_of(policy, [row]) == [True] for _ in range(MAX_CHARGED + MAX_LOST_ALONE))
    assert row.charged == 0


def attempts_of(policy: ProcessLosses, rows: Sequence[RowLosses], process: str = "worker 0") -> list[bool]:
    """Start an attempt at each row, then let the process die with all of them."""
    for row in rows:
        row.started = policy.count
    return [policy.lose(row, process) for row in rows]


def test_a_row_that_always_kills_its_process_ends_after_its_attempts() -> None:
    policy, row, innocent = ProcessLosses(), RowLosses("a"), RowLosses("b")
    verdicts = [attempts_of(policy, [row, innocent] if number < ALONE_AFTER else [row])[0] for number in range(6)]
    assert verdicts == [True] * 5 + [False]
    assert (row.charged, innocent.charged) == (MAX_CHARGED, 0)


def test_a_row_is_not_charged_while_processes_die_that_never_had_it() -> None:
    policy, row = ProcessLosses(), RowLosses("a")
    for _ in range(ALONE_AFTER + MAX_CHARGED + 1):
        assert attempts_of(policy, [row]) == [True]
        attempts_of(policy, [RowLosses("b")])
    assert row.charged == 0


def test_a_death_of_another_worker_at_the_same_time_excuses_a_row_and_one_in_its_own_does_not() -> None:
    for process, charged in (("worker 0", 1), ("worker 1", 0)):
        policy, row, other = ProcessLosses(), RowLosses("a", lost=ALONE_AFTER), RowLosses("b")
        row.started = other.started = policy.count
        policy.lose(other, process)
        policy.lose(row, "worker 0")
        assert row.charged == charged


def test_rollouts_that_a_row_took_with_it_do_not_excuse_it_when_they_notice_late() -> None:
    policy, row, other = ProcessLosses(), RowLosses("a", lost=ALONE_AFTER), RowLosses("b")
    row.started = other.started = policy.count
    policy.lose(row, "environment")
    policy.lose(other, "environment")
    attempts_of(policy, [row], "environment")
    assert row.charged == 2


def test_the_repeats_of_a_row_do_not_excuse_each_other() -> None:
    policy, repeats = ProcessLosses(), [RowLosses("a", lost=ALONE_AFTER) for _ in range(2)]
    verdicts = [attempts_of(policy, [repeat]) for _ in range(MAX_CHARGED) for repeat in repeats]
    assert verdicts == [[True]] * 4 + [[False]] * 2


def test_two_rows_that_kill_processes_do_not_excuse_each_other_for_ever() -> None:
    policy, rows = ProcessLosses(), [RowLosses("a"), RowLosses("b")]
    for _ in range(ALONE_AFTER + MAX_LOST_ALONE - 1):
        assert all(attempts_of(policy, [row]) == [True] for row in rows)
    assert all(attempts_of(policy, [row]) == [False] for row in rows)


@given(st.randoms(use_true_random=False), st.integers(2, 12), st.integers(0, 3), st.integers(1, 4))
@settings(deadline=None, max_examples=200)
def test_every_row_ends_and_only_killers_end_without_a_result(
    chance: Random, num_rows: int, num_killers: int, num_workers: int
) -> None:
    """Rows on workers of which killers kill their own, with nothing else that kills."""
    policy, rows = ProcessLosses(), [RowLosses(str(number)) for number in range(num_rows)]
    killers, waiting, ended = set(range(min(num_killers, num_rows))), [*range(num_rows)], dict[int, bool]()
    while waiting:
        alone = [number for number in waiting if rows[number].lost >= ALONE_AFTER]
        narrowed = {number for number in alone if number != (alone[0] if alone else None)}
        out = [number for number in waiting if number not in narrowed]
        placed = {number: chance.randrange(num_workers) for number in out}
        for number in out:
            rows[number].started = policy.count
        dead = {placed[number] for number in out if number in killers}
        waiting = [number for number in waiting if number in narrowed]  # those that ran go to the end of the queue
        for number in chance.sample(out, len(out)):
            if placed[number] not in dead:
                ended[number] = True
            elif policy.lose(rows[number], f"worker {placed[number]}"):
                waiting.append(number)
            else:
                ended[number] = False
    assert {number for number, is_scored in ended.items() if not is_scored} == killers
    assert max(row.lost for row in rows) <= ALONE_AFTER + MAX_LOST_ALONE
