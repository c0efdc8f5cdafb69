import math
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from bench import soak
from bench.__main__ import write
from bench.others import OtherCost, measure_public_nemo_gym, measure_verifiers
from bench.report import Machine, Results, as_markdown
from bench.rollout_cost import ONE_TURN, TWO_TURNS, RolloutCost, Scenario, collect, measure
from nemo_gym.bench.measure import BenchError
from nemo_gym.bench.processes import cpu_s, memory, tree, tree_cpu_s
from nemo_gym.common.paths import PARENT_DIR


@pytest.mark.slow
@pytest.mark.parametrize("scenario", [ONE_TURN, TWO_TURNS], ids=["one turn", "two turns"])
def test_the_real_commands_are_measured(scenario: Scenario, tmp_path: Path) -> None:
    cost = measure(scenario, rows=60)
    assert min(cost.bare_us, cost.ready_cpu_s, cost.idle_pss_mb) > 0
    write(Results(Machine(), 60, [cost]), tmp_path)
    assert scenario.name in (tmp_path / "results.md").read_text()
    assert orjson.loads((tmp_path / "results.json").read_bytes())["costs"][0]["name"] == scenario.name


@pytest.mark.parametrize(("us", "word"), [(300.0, "met"), (301.0, "**missed**")])
def test_a_target_is_met_up_to_its_limit(us: float, word: str) -> None:
    cost = RolloutCost(ONE_TURN.name, 100.0, us, 1.0, 1.0, 1.0)
    assert f"≤ 3: {word}" in as_markdown(Results(Machine(), 1, [cost]))


@pytest.mark.slow
def test_a_soak_says_what_the_run_holds() -> None:
    taken = soak.soak(soak.ROWS, in_flight=64, every_s=0.2)
    assert all(min(each.run_mb, each.descriptors, each.threads) > 0 for each in taken)
    assert any(each.collector_mb > 0 for each in taken), "but for one that has just started or ended"


@pytest.mark.parametrize("rewards", [[1.0], [1.0, 0.0]], ids=["one is missing", "one is wrong"])
def test_a_soak_with_a_lost_or_wrong_rollout_fails(rewards: list[float], tmp_path: Path) -> None:
    (tmp_path / "out.jsonl").write_bytes(b"".join(orjson.dumps({"reward": reward}) + b"\n" for reward in rewards))
    with pytest.raises(BenchError, match=f"{len(rewards)} records"):
        soak.check(tmp_path / "out.jsonl", 2)


def test_rollouts_that_fail_give_no_measurement(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("no JSON\n")
    model = "responses_api_models/scripted_model/configs/scripted_model.yaml"
    settings = [f"+config_paths=[{ONE_TURN.config},{model}]", "+head_server.port=1"]
    with pytest.raises(BenchError, match="0 of 1"):
        collect(ONE_TURN.agent, tmp_path / "rows.jsonl", tmp_path / "out.jsonl", 1, settings)


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


def _process(script: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def test_what_another_framework_costs_is_shown_beside_ours() -> None:
    cost = RolloutCost(ONE_TURN.name, 100.0, 300.0, 1.0, 1.0, 1.0)
    page = as_markdown(Results(Machine(), 1, [cost], [OtherCost("other 1.0", 30_000.0, 100)]))
    assert "| other 1.0 | 30,000 µs | 300.00 | 100 |" in page


@pytest.mark.slow
def test_another_nemo_gym_is_measured_through_its_own_commands(tmp_path: Path) -> None:
    (tmp_path / ".venv").symlink_to(Path(sys.executable).parent.parent)
    for folder in ("resources_servers", "responses_api_agents", "responses_api_models"):
        (tmp_path / folder).symlink_to(PARENT_DIR / folder)
    measured = measure_public_nemo_gym(tmp_path, rollouts=30)
    assert (measured.rollouts, math.isfinite(measured.us)) == (30, True)  # so few take less time than start-up varies
    with pytest.raises(BenchError, match="ng_run"):
        measure_public_nemo_gym(tmp_path / "nowhere", rollouts=30)


def test_a_python_without_verifiers_is_refused() -> None:
    with pytest.raises(BenchError, match="verifiers"):
        measure_verifiers(Path(sys.executable), rollouts=1)
