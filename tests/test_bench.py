import asyncio
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from bench.__main__ import QUICK, run, write
from bench.load import Cost, Load, drive
from bench.processes import Memory, cpu_s, memory, tree, tree_cpu_s
from bench.report import Machine, Results, as_markdown, targets_of
from bench.rollouts import BARE, ONE_PROCESS, OVER_HTTP, TWO_TURNS, Figure, summarised
from bench.stacks import BenchError, bare_client, held_stack
from bench.start import Start
from bench.stub import serving_stub

TINY = replace(
    QUICK, rounds=1, count=40, in_flight=4, starts=1, latency_loads=(Load(4, 1), Load(4, 2)), latency_s=0.01
)


@pytest.fixture(scope="module")
def results() -> Results:
    return run(TINY)


def test_every_figure_is_a_positive_number(results: Results) -> None:
    found = asdict(results)
    figures = [found["start"], found["rollouts"], [target["value"] for target in found["targets"]]]
    assert all(number > 0 for number in _numbers(figures))


def test_every_scenario_is_measured_against_a_bare_request(results: Results) -> None:
    assert list(results.rollouts) == [BARE, ONE_PROCESS, OVER_HTTP, TWO_TURNS]
    assert results.rollouts[BARE].ratio == results.rollouts[BARE].own_ratio == 1.0


def test_latency_is_given_for_each_load_in_its_order(results: Results) -> None:
    assert [each.in_flight for each in results.latency] == [1, 2]
    assert all(side.p50_ms <= side.p99_ms for each in results.latency for side in (each.bare, each.rollout))


def test_results_are_kept_as_a_page_and_as_figures(results: Results, tmp_path: Path) -> None:
    write(results, tmp_path / "kept")
    kept = orjson.loads((tmp_path / "kept" / "results.json").read_bytes())
    page = (tmp_path / "kept" / "results.md").read_text()
    assert kept["machine"]["cores"] >= 1
    assert set(kept) == {"machine", "settings", "start", "rollouts", "latency", "targets"}
    assert all(f"| {target['what']} |" in page for target in kept["targets"])


def test_a_ratio_is_taken_within_its_round_and_then_the_median() -> None:
    rounds = [
        {BARE: Cost(bare, bare, 1.0), ONE_PROCESS: Cost(bare * ratio, bare * 2, 1.0)}
        for bare, ratio in ((1.0, 2.0), (10.0, 3.0), (0.1, 9.0))
    ]
    figure = summarised(rounds)[ONE_PROCESS]
    assert (figure.ratio, figure.own_ratio) == pytest.approx((3.0, 2.0))


@pytest.mark.parametrize(("ratio", "word"), [(2.5, "met"), (2.6, "**missed**")])
def test_a_target_is_met_up_to_its_limit(ratio: float, word: str) -> None:
    figures = dict.fromkeys((BARE, ONE_PROCESS, OVER_HTTP, TWO_TURNS), Figure(1, 1.0, 1.0, 1.0, ratio, 1.0))
    start = Start(cpu_s=1.0, bare_cpu_s=1.0, ratio=1.0, wall_s=1.0, processes=1, memory=Memory(1.0, 1.0))
    targets = targets_of(start, figures)
    page = as_markdown(Results(Machine(), QUICK, start, figures, [], targets))
    assert f"| {ONE_PROCESS} | {ratio:.2f} bare requests of CPU time | at most 2.5 | {word} |" in page


async def test_a_load_makes_all_its_calls_and_no_more_at_once_than_told() -> None:
    now = most = made = 0

    async def call() -> None:
        nonlocal now, most, made
        now, made = now + 1, made + 1
        most = max(most, now)
        await asyncio.sleep(0)
        now -= 1

    assert len(await drive(call, Load(count=10, in_flight=3))) == made == 10
    assert most == 3


def test_what_a_process_started_counts_even_when_it_has_ended() -> None:
    child = "subprocess.run([sys.executable, '-c', 'sum(range(10**7))'])"
    script = f"import subprocess, sys; {child}; print('done', flush=True); input()"
    with _process(script) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"done\n"
        assert tree_cpu_s(process.pid) > cpu_s([process.pid])
        process.communicate()


def test_a_tree_is_a_process_and_its_descendants_and_memory_is_theirs_together() -> None:
    script = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    with _process(script) as process:
        assert process.stdout is not None
        process.stdout.readline()
        pids = tree(process.pid)
        assert pids[0] == process.pid
        assert len(pids) == 2
        assert memory(pids).rss_mb > memory(pids[:1]).rss_mb >= memory(pids[:1]).pss_mb > 0
        process.communicate()


async def test_a_call_that_fails_is_no_figure() -> None:
    async with serving_stub([{"status": 400}]) as stub, bare_client(stub) as bare, held_stack(stub) as rollout:
        for call in (bare, rollout):
            with pytest.raises(BenchError, match=r"found (400|502)"):
                await call()


def _process(script: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _numbers(value: Any) -> list[float]:
    if isinstance(value, dict):
        return _numbers(list(value.values()))
    return [number for item in value for number in _numbers(item)] if isinstance(value, list) else [value]
