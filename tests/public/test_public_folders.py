"""Folders written for the public package run as they are: started by `ng_run` outside the clone, with their rows."""

import json
from pathlib import Path

import pytest

from tests.commands import free_port, ng, started
from tests.public.files import FILES

CONFIGS = "[benchmarks/shopping/config.yaml,responses_api_models/echo/configs/echo.yaml]"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.lstrip("\n"))
    return tmp_path


def records_in(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["shared", "process"])
def test_a_benchmark_with_its_own_environment_agent_and_model(root: Path, isolation: str) -> None:
    head, paths = f"+head_server.port={free_port()}", f"+config_paths={CONFIGS}"
    prepared = ng("ng_prepare_benchmark", paths, "+prepare_script_args.levels=[easy,hard,hard]", cwd=root)
    assert prepared.returncode == 0, prepared.stderr
    isolated = f"++bench_shop.resources_servers.shop.isolation={isolation}"
    with started("ng_run", paths, head, isolated, cwd=root) as run:
        run.wait_for("servers ready")
        assert "verifiers.spare" not in run.text
        done = ng("ng_collect_rollouts", paths, head, isolated, "+output_jsonl_fpath=out/rollouts.jsonl", cwd=root)
    assert done.returncode == 0, done.stderr + run.text
    records = records_in(root / "out" / "rollouts.jsonl")
    assert len(records) == 6
    assert {record["reward"] for record in records} == {1.0}
    for record in records:
        assert record["cart"] == ["apple", "pear"]
        assert record["reward_components"] == {"right": 1.0, "polite": 1.0}
        assert record["told_index"] == [record["_ng_task_index"], record["_ng_rollout_index"]]
        assert record["responses_create_params"]["input"][1]["content"] == "Please buy apple and pear."  # type: ignore[index]
        assert record["ng_agent_observations"]["source"] == "shopper"  # type: ignore[index]
        assert str(record["model_url"]).startswith("http://127.0.0.1:")
    (figures,) = json.loads((root / "out" / "rollouts_aggregate_metrics.json").read_text())
    assert figures["agent_ref"] == {"name": "bench_agent"}
    assert figures["key_metrics"] == {"pass@2/accuracy": 100.0}
    assert figures["agent_metrics"]["hard/pass@1/accuracy"] == 100.0
    assert figures["agent_metrics"]["mean/input_tokens"] == 9


@pytest.mark.slow
def test_the_same_by_the_public_commands_without_servers_that_run(root: Path) -> None:
    """The agent hands out a URL of its model, so the servers get ports although one command holds them."""
    select = ("--benchmark", "shopping", "--model-type", "echo")
    prepared = ng("gym", "eval", "prepare", *select, cwd=root)
    assert prepared.returncode == 0, prepared.stderr
    head = f"+head_server.port={free_port()}"
    output = ("-o", "out/r.jsonl", "--disable-aggregation", "--num-repeats", "1", head)
    done = ng("gym", "eval", "run", *select, *output, cwd=root)
    assert done.returncode == 0, done.stderr
    records = records_in(root / "out" / "r.jsonl")
    assert [record["reward"] for record in records] == [1.0, 1.0]
    assert not (root / "out" / "r_aggregate_metrics.json").exists()
    again = ("-i", "out/r.jsonl", "--agent", "bench_agent", head)
    assert ng("gym", "eval", "aggregate", *select, *again, cwd=root).returncode == 0
    assert "pass@1/accuracy" in (root / "out" / "r_aggregate_metrics.json").read_text()
