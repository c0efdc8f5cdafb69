"""Every rollout is used for training data or dropped for a reason that is counted."""

import json
import random
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.analysis.export import ExportConfig, ExportReport, export_rollouts
from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.store import StoredRolloutsError
from nemo_gym.testing import calls, example_row, message, response_of, rows_of, says, tool_output
from tests.commands import ng
from tests.jsonl import write_lines

TOOL = {"type": "function", "name": "look", "parameters": {"type": "object"}}


def rollout(task: int | None, reward: Any, text: str = "Hm.", *, repeat: int = 0, **fields: Any) -> dict[str, Any]:
    marks = {} if task is None else {"_task_index": task, "_repeat_index": repeat}
    return {**example_row(f"Question {task}"), "response": says(text), "reward": reward, **fields, **marks}


def exported(folder: Path, records: list[dict[str, Any]], **options: Any) -> tuple[ExportReport, list[dict[str, Any]]]:
    rollouts = write_lines(folder / "rollouts.jsonl", records)
    paths = {"rollouts_jsonl_fpath": str(rollouts), "output_jsonl_fpath": str(folder / "data.jsonl")}
    report = export_rollouts(ExportConfig.model_validate({**paths, **options}))
    return report, rows_of(folder / "data.jsonl")


def texts(examples: list[dict[str, Any]]) -> list[str]:
    return [example["messages"][-1]["content"] for example in examples]


def test_the_best_of_each_task_is_a_conversation(tmp_path: Path) -> None:
    records = [rollout(1, 1.0, "b"), rollout(0, 0.0, "bad"), rollout(0, 1.0, "a", repeat=1), rollout(2, 0.5, "half")]
    report, examples = exported(tmp_path, records)
    assert texts(examples) == ["a", "b"]
    assert examples[0] == {
        "messages": [{"role": "user", "content": "Question 0"}, {"role": "assistant", "content": "a"}]
    }
    assert (report.read, report.used, report.dropped) == (4, 2, {"reward too low": 2})
    assert json.loads((tmp_path / "data_export.json").read_text()) == {
        "rollouts_read": 4,
        "rollouts_used": 2,
        "examples": 2,
        "dropped": {"reward too low": 2},
    }


def test_all_above_a_threshold_are_conversations(tmp_path: Path) -> None:
    records = [rollout(0, 0.5, "a"), rollout(0, 0.7, "b", repeat=1), rollout(1, 0.4, "c")]
    report, examples = exported(tmp_path, records, select="all", min_reward=0.5)
    assert (texts(examples), report.dropped) == (["a", "b"], {"reward too low": 1})
    report, examples = exported(tmp_path, records, min_reward=0.0, overwrite=True)
    assert (texts(examples), report.dropped) == (["b", "c"], {"not the best of its task": 1})


def test_a_conversation_has_its_instructions_tools_and_calls(tmp_path: Path) -> None:
    record = rollout(0, 1.0)
    record["responses_create_params"] |= {"input": "Where?", "instructions": "Look first.", "tools": [TOOL]}
    record["response"] = response_of(calls("look", call_id="1"), tool_output("there", call_id="1"), message("There."))
    _, (example,) = exported(tmp_path, [record])
    assert [message["role"] for message in example["messages"]] == ["system", "user", "assistant", "tool", "assistant"]
    assert example["messages"][:2] == [
        {"role": "system", "content": "Look first."},
        {"role": "user", "content": "Where?"},
    ]
    assert example["messages"][2]["tool_calls"][0]["id"] == example["messages"][3]["tool_call_id"]
    assert example["tools"] == [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


def test_a_conversation_ends_with_the_policy_and_leaves_out_sub_agents(tmp_path: Path) -> None:
    user = {"type": "message", "role": "user", "content": "Thanks.", "produced_by": "user"}
    helper = {**message("I am another."), "produced_by": "policy", "thread": 1}
    record = rollout(0, 1.0)
    record["response"] = response_of(message("Hello."), user, helper, message("Bye."), user)
    submitted = rollout(1, 1.0)
    submitted["response"] = response_of(message("I look."), user, calls("look"), ended_by="harness")
    _, (first, second) = exported(tmp_path, [record, submitted])
    assert [one["content"] for one in first["messages"][1:]] == ["Hello.", "Thanks.", "Bye."]
    assert second["messages"][-1]["tool_calls"][0]["function"]["name"] == "look"


def test_a_pair_is_the_best_and_the_worst_of_a_task(tmp_path: Path) -> None:
    rewards = {0: [0.0, 1.0, 0.4], 1: [0.6, 0.5], 2: [1.0], 3: [0.0, 0.7]}
    records = [
        rollout(task, reward, f"{task}: {reward}", repeat=repeat)
        for task, given in rewards.items()
        for repeat, reward in enumerate(given)
    ]
    report, pairs = exported(tmp_path, records, format="dpo", min_gap=0.5)
    assert [(pair["chosen"][-1]["content"], pair["rejected"][-1]["content"]) for pair in pairs] == [
        ("0: 1.0", "0: 0.0"),
        ("3: 0.7", "3: 0.0"),
    ]
    assert pairs[0]["prompt"] == [{"role": "user", "content": "Question 0"}]
    assert report.dropped == {
        "neither the best nor the worst of its task": 1,
        "rewards too close": 2,
        "the only rollout of its task": 1,
    }
    report, pairs = exported(tmp_path, records, format="dpo", min_reward=1.0, overwrite=True)
    assert (len(pairs), report.dropped["reward too low"]) == (1, 4)


def test_a_gap_is_measured_without_the_noise_of_floats(tmp_path: Path) -> None:
    _, pairs = exported(tmp_path, [rollout(0, 0.7), rollout(0, 0.2, repeat=1)], format="dpo", min_gap=0.5)
    assert len(pairs) == 1


def test_a_pair_needs_one_prompt(tmp_path: Path) -> None:
    odd = {**rollout(0, 0.0), **example_row("Something else")}
    records = [rollout(0, 1.0), odd, rollout(1, 1.0), rollout(1, 0.0, repeat=1)]
    report, pairs = exported(tmp_path, records, format="dpo")
    assert (len(pairs), report.dropped) == (1, {"prompts differ within the task": 2})


def test_rollouts_without_marks_are_grouped_by_their_prompt(tmp_path: Path) -> None:
    records = [
        {**rollout(None, reward, text), **example_row(prompt)}
        for prompt, reward, text in (("x", 1.0, "x1"), ("y", 1.0, "y1"), ("x", 1.0, "x2"))
    ]
    report, examples = exported(tmp_path, records)
    assert (texts(examples), report.dropped) == (["x1", "y1"], {"not the best of its task": 1})


CUT_OFF = [
    response_of(message("As I was say"), incomplete_details={"reason": "max_output_tokens"}),
    response_of(message("As I was say"), status="incomplete"),
    response_of(calls("look", call_id="1"), tool_output("there", call_id="1")),
    response_of(calls("look", call_id="1")),
]


@pytest.mark.parametrize("response", [*CUT_OFF, response_of()])
def test_a_rollout_that_was_cut_off_is_dropped(tmp_path: Path, response: dict[str, Any]) -> None:
    report, _ = exported(tmp_path, [rollout(0, 1.0), rollout(1, 1.0, response=response)])
    assert report.dropped == {"incomplete": 1}


@pytest.mark.parametrize("response", CUT_OFF)
def test_unless_it_is_wanted(tmp_path: Path, response: dict[str, Any]) -> None:
    report, examples = exported(tmp_path, [rollout(1, 1.0, response=response)], include_incomplete=True)
    assert (len(examples), report.dropped) == (1, {})


def test_what_the_format_cannot_hold_is_dropped_and_named(tmp_path: Path) -> None:
    searched = response_of({"type": "web_search_call", "id": "ws"}, message("Found."))
    broken = [{"reward": 1.0}, rollout(2, None), rollout(3, 1.0, response={"output": "text"})]
    records = [rollout(0, 1.0), rollout(1, 1.0, response=searched), *broken]
    report, _ = exported(tmp_path, records)
    reason = "not expressible in chat: an item of type web_search_call"
    assert report.dropped == {reason: 1, "no scored rollout": 3}


def test_the_second_best_is_taken_if_the_best_cannot_be_used(tmp_path: Path) -> None:
    records = [rollout(0, 2.0, response=CUT_OFF[0]), rollout(0, 1.0, "whole", repeat=1)]
    _, examples = exported(tmp_path, records)
    assert texts(examples) == ["whole"]


many = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from([0.0, 0.4, 0.8, 1.0, None]), st.sampled_from([None, *CUT_OFF])),
    min_size=1,
    max_size=20,
)


@given(many, st.sampled_from(["sft", "dpo"]), st.sampled_from(["best", "all"]), st.integers(0, 2**32))
def test_every_rollout_is_used_or_dropped_and_the_order_of_the_file_does_not_matter(
    drawn: list[tuple[int, float | None, dict[str, Any] | None]], kind: str, select: str, seed: int
) -> None:
    records = [
        rollout(
            task, reward, f"answer {number}", repeat=number, **({} if response is None else {"response": response})
        )
        for number, (task, reward, response) in enumerate(drawn)
    ]
    shuffled = random.Random(seed).sample(records, len(records))
    found: list[list[dict[str, Any]]] = []
    for given_records in (records, shuffled):
        with TemporaryDirectory() as folder:
            try:
                report, examples = exported(Path(folder), given_records, format=kind, select=select, min_reward=0.4)
            except StoredRolloutsError:
                found.append([])
                continue
        assert report.read == len(records) == report.used + report.dropped.total()
        assert report.used == len(examples) * (2 if kind == "dpo" else 1)
        found.append(examples)
    if (kind, select) == ("sft", "all"):
        assert sorted(map(json.dumps, found[0])) == sorted(map(json.dumps, found[1]))
    else:
        assert found[0] == found[1]


def test_an_older_file_is_replaced_only_on_request_and_only_by_a_whole_one(tmp_path: Path) -> None:
    exported(tmp_path, [rollout(0, 1.0, "old")])
    with pytest.raises(ConfigError, match=r"\+overwrite=true"):
        exported(tmp_path, [rollout(0, 1.0, "new")])
    with pytest.raises(StoredRolloutsError, match=r"reward too low \(1\)"):
        exported(tmp_path, [rollout(0, 0.0, "new")], overwrite=True)
    with pytest.raises(StoredRolloutsError, match="line 2 is"):
        exported(tmp_path, [rollout(0, 1.0, "new"), [1]], overwrite=True)  # type: ignore[list-item]
    assert texts(rows_of(tmp_path / "data.jsonl")) == ["old"]
    _, examples = exported(tmp_path, [rollout(0, 1.0, "new")], overwrite=True)
    assert texts(examples) == ["new"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.jsonl", "data_export.json", "rollouts.jsonl"]


def test_as_a_user_types_it(tmp_path: Path) -> None:
    records = [rollout(0, 1.0, "a"), rollout(0, 0.0, "b", repeat=1), rollout(1, 1.0, response=CUT_OFF[0])]
    write_lines(tmp_path / "rollouts.jsonl", records)
    arguments = ("+rollouts_jsonl_fpath=rollouts.jsonl", "+output_jsonl_fpath=pairs.jsonl", "+format=dpo")
    done = ng("ng_export", *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "1 pairs in pairs.jsonl" in done.stdout
    assert "1 dropped: incomplete" in done.stdout
    again = ng("ng_export", *arguments, cwd=tmp_path)
    assert (again.returncode, "+overwrite=true" in again.stderr) == (2, True)
