"""Folders written for the public package run as they are: started by `ng_run` outside the clone, with their rows."""

import json
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.testing import rows_of
from tests.commands import free_port, ng, started
from tests.ray_nodes import only_one_cluster
from tests.served_model import served_model

CONFIGS = "[benchmarks/shopping/config.yaml,responses_api_models/echo/configs/echo.yaml]"


REPLIES = [
    {"user": "Is it kind", "say": "Yes."},
    {"user": "Collect", "turn": 0, "call": [{"name": "add_word", "arguments": {"word": "apple"}}]},
    {"user": "Collect", "turn": 1, "call": [{"name": "add_word", "arguments": {"word": "pear"}}]},
    {"user": "Collect", "turn": 2, "call": [{"name": "add_word", "arguments": {"word": "fig"}}]},
    {"user": "Collect", "turn": 3, "call": [{"name": "fail", "arguments": {}}]},
    {"user": "Collect", "turn": 4, "call": [{"name": "list_words", "arguments": {}}]},
    {"user": "Collect", "turn": 5, "call": [{"name": "unheard_of", "arguments": {"a": 1}}]},
    {"user": "Collect", "say": "All words."},
    {"user": "Sum", "turn": 0, "call": [{"name": "add", "arguments": {"numbers": [1, 2]}}]},
    {"tool_output": "sum", "say": "It is 3."},
    {"user": "Guess", "say": "4"},
    {"user": "Higher", "say": "7"},
    {"user": "Print", "say": "echo hi"},
    {"say": "Hello."},
]


@pytest.mark.slow
def test_a_benchmark_with_its_own_environment_agent_and_model(root: Path) -> None:
    head, paths = f"+head_server.port={free_port()}", f"+config_paths={CONFIGS}"
    prepared = ng("ng_prepare_benchmark", paths, "+prepare_script_args.levels=[easy,hard,hard]", cwd=root)
    assert prepared.returncode == 0, prepared.stderr
    isolated = "++bench_shop.resources_servers.shop.isolation=process"
    with started("ng_run", paths, head, isolated, cwd=root) as run:
        run.wait_for("servers ready")
        assert "verifiers.spare" not in run.text
        done = ng("ng_collect_rollouts", paths, head, isolated, "+output_jsonl_fpath=out/rollouts.jsonl", cwd=root)
    assert done.returncode == 0, done.stderr + run.text
    records = rows_of(root / "out" / "rollouts.jsonl")
    assert len(records) == 6
    assert {record["reward"] for record in records} == {1.0}
    for record in records:
        assert record["cart"] == ["apple", "pear"]
        assert record["reward_components"] == {"right": 1.0, "polite": 1.0}
        assert record["told_index"] == [record["_ng_task_index"], record["_ng_rollout_index"]]
        assert record["responses_create_params"]["input"][1]["content"] == "Please buy apple and pear."
        assert record["ng_agent_observations"]["source"] == "shopper"
        assert str(record["model_url"]).startswith("http://127.0.0.1:")
    (aggregate,) = json.loads((root / "out" / "rollouts_aggregate_metrics.json").read_text())
    assert aggregate["agent_ref"] == {"name": "bench_agent"}
    assert aggregate["key_metrics"] == {"pass@2/accuracy": 100.0}
    assert aggregate["agent_metrics"]["hard/pass@1/accuracy"] == 100.0
    assert aggregate["agent_metrics"]["mean/input_tokens"] == 9
    assert not [name for name in aggregate["agent_metrics"] if "/_" in name]


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
    records = rows_of(root / "out" / "r.jsonl")
    assert [record["reward"] for record in records] == [1.0, 1.0]
    assert not (root / "out" / "r_aggregate_metrics.json").exists()
    assert len(rows_of(root / "out" / "r_materialized_inputs.jsonl")) == 2
    profiled = ng(
        "gym", "eval", "profile", "--inputs", "out/r_materialized_inputs.jsonl", "--rollouts", "out/r.jsonl", cwd=root
    )
    assert profiled.returncode == 0, profiled.stderr
    assert rows_of(root / "out" / "r_reward_profiling.jsonl")[0]["mean/reward"] == 1.0
    for shard, record in enumerate(records):
        (root / "out" / f"shard_{shard}.jsonl").write_text(json.dumps(record) + "\n")
    again = ("-i", "out/shard_*.jsonl", "-o", "out/all.jsonl", head, "+merge_shards=true")
    done = ng("gym", "eval", "aggregate", *select, *again, cwd=root)
    assert done.returncode == 0, done.stderr
    assert "pass@1/accuracy" in (root / "out" / "all_aggregate_metrics.json").read_text()
    assert len(rows_of(root / "out" / "all.jsonl")) == 2


def row(agent: str, text: str, *tools: str, **fields: Any) -> dict[str, Any]:
    asked = [{"role": "user", "content": text}] if text else []
    listed = [{"type": "function", "name": name, "parameters": {"type": "object"}, "strict": False} for name in tools]
    params = {"input": asked, "tools": listed, "tool_choice": None}
    return {"agent_ref": {"type": "responses_api_agents", "name": agent}, "responses_create_params": params, **fields}


def write_rows(path: Path, *rows: dict[str, Any]) -> None:
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))


def endpoint_keys(url: str) -> list[str]:
    return [f"+policy_base_url={url}", "+policy_api_key=k", "+policy_model_name=m"]


SERVERS = (
    "[environments/word_lab_easy/config.yaml,resources_servers/guess_number/configs/guess_number.yaml,"
    "resources_servers/shell_task/configs/shell_task.yaml,responses_api_models/relay_model/configs/relay_model.yaml]"
)


@pytest.mark.slow
def test_environments_agents_and_a_model_of_many_kinds(root: Path) -> None:
    tools = ("add_word", "fail", "list_words", "unheard_of")
    write_rows(
        root / "rows.jsonl",
        row("easy_agent", "Collect words.", *tools, expected=["apple", "pear"]),
        row("guess_number_gym_agent", "", secret=7),
        row("shell_task_loop_agent", "Print hi.", expected_stdout="hi"),
        row("ranked_cli_agent", "Hi."),
        row("ranked_debate", "Hi."),
        row("ranked_debate", "Hi.", give_up=True),
    )
    head = f"+head_server.port={free_port()}"
    observed = ("+observability_enabled=true", f"+model_call_capture_dir={root / 'calls'}")
    steps = "++easy_agent.responses_api_agents.loop_agent.max_steps=9"
    with (
        served_model(REPLIES) as url,
        started("ng_run", f"+config_paths={SERVERS}", head, steps, *observed, *endpoint_keys(url), cwd=root) as run,
    ):
        run.wait_for("servers ready")
        files = ("+input_jsonl_fpath=rows.jsonl", "+output_jsonl_fpath=out/r.jsonl", "+num_repeats=2")
        done = ng("ng_collect_rollouts", head, *files, cwd=root)
    assert done.returncode == 1, done.stderr + run.text  # the row that gives up
    found: dict[str, list[dict[str, Any]]] = {}
    for record in rows_of(root / "out" / "r.jsonl"):
        found.setdefault(record["agent_ref"]["name"], []).append(record)
    assert {name: sorted(each["reward"] for each in records) for name, records in found.items()} == {
        "easy_agent": [1.0, 1.0],
        "guess_number_gym_agent": [1.0, 1.0],
        "shell_task_loop_agent": [1.0, 1.0],
        "ranked_cli_agent": [0.5, 1.0],
        "ranked_debate": [0.5, 1.0],
    }
    check_words(found["easy_agent"][0])
    assert found["guess_number_gym_agent"][0]["num_turns"] == 2
    assert found["shell_task_loop_agent"][0]["metadata"] == {"team": "red"}
    assert found["ranked_debate"][0]["response"]["usage"]["input_tokens_details"]["cached_tokens"] is None
    assert len(found["easy_agent"][0]["ng_model_call_capture"]["calls"]) == 8  # 7 turns and the judge
    for record in found["ranked_cli_agent"]:
        check_captured_calls(record)
        assert record["rollout_id"] == f"{record['_ng_task_index']}-{record['_ng_rollout_index']}"
        assert [each["kind"] for each in record["ng_agent_observations"]["records"]] == [
            "agent_invocation",
            "tool_call",
        ]
    failures = rows_of(root / "out" / "r_failures.jsonl")
    assert [(each["code"], each["is_final"]) for each in failures] == [("skipped", True)] * 2
    aggregate = json.loads((root / "out" / "r_aggregate_metrics.json").read_text())
    (easy,) = (each for each in aggregate if each["agent_ref"]["name"] == "easy_agent")
    assert easy["key_metrics"] == {
        "mean/reward": 1.0,
        "pass@1[avg-of-2]/accuracy": 100.0,
        "pass@1[avg-of-2]/kind": 100.0,
    }
    assert easy["group_level_metrics"][0]["first_words"] == ["apple", "pear"]


def check_captured_calls(record: dict[str, Any]) -> None:
    """The call of a program outside is known by the path of its URL."""
    captured = record["ng_model_call_capture"]
    (call,) = captured["calls"]
    assert captured["rollout_id"] == call["rollout_id"] == record["rollout_id"]
    assert captured["metrics"]["num_calls"] == 1
    assert (call["model_ref"], call["dialect"]) == ("policy_model", "chat_completions")
    (told,) = record["ng_agent_observations"]["records"][0]["model_calls"]
    assert told["response_id"] == call["response"]["id"]


def check_words(record: dict[str, Any]) -> None:
    """What the model saw of its tools: results, refusals, errors and texts."""
    outputs = [item["output"] for item in record["response"]["output"] if item["type"] == "function_call_output"]
    assert outputs[:2] == ['{"words":["apple"]}', '{"words":["apple","pear"]}']
    assert outputs[2] == '{"detail":"at most 2 words"}'
    assert "a tool that breaks" in outputs[3]
    assert outputs[4:] == ["apple pear", "unknown tool unheard_of ['a']"]
    assert record["reward_components"] == {"right": 1.0, "kind": 1.0}
    assert record["judge_text"] == "Yes."


@pytest.mark.slow
def test_functions_sent_to_ray_import_the_modules_of_their_folder(root: Path) -> None:
    pytest.importorskip("ray", reason="the extra 'ray' is not installed")
    write_rows(root / "rows.jsonl", row("ray_sums_loop_agent", "Sum 1 and 2.", "add", numbers=[1, 2]))
    configs = (
        "[resources_servers/ray_sums/configs/ray_sums.yaml,responses_api_models/relay_model/configs/relay_model.yaml]"
    )
    files = ("+input_jsonl_fpath=rows.jsonl", "+output_jsonl_fpath=out/r.jsonl", f"+head_server.port={free_port()}")
    with only_one_cluster(), served_model(REPLIES) as url:
        done = ng("ng_collect_rollouts", f"+config_paths={configs}", *files, *endpoint_keys(url), cwd=root)
    assert done.returncode == 0, done.stderr
    assert [each["reward"] for each in rows_of(root / "out" / "r.jsonl")] == [1.0]


@pytest.mark.slow
def test_the_tests_of_a_folder_run_as_they_are(root: Path) -> None:
    done = ng("ng_test", "+entrypoint=resources_servers/word_lab", cwd=root)
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout
