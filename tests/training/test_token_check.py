"""Tokens that are one growing sequence pass; the first one that is not is named."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.analysis.export import ExportConfig, export_rollouts
from nemo_gym.cli.analyze import check_tokens as check_tokens_command
from nemo_gym.training.token_check import check_tokens

IDS = st.lists(st.integers(0, 9), max_size=5)


def turn(prompt: list[int], generation: list[int]) -> dict[str, Any]:
    log_probs = [-0.5] * len(generation)
    return {"prompt_token_ids": prompt, "generation_token_ids": generation, "generation_log_probs": log_probs}


def line(*turns: dict[str, Any], **fields: Any) -> bytes:
    output = [{"type": "function_call", **tokens} for tokens in turns]
    return orjson.dumps({"response": {"output": [{"type": "reasoning"}, *output]}, "reward": 1.0, **fields})


@st.composite
def rollouts(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Turns of which each prompt is all before, and then more."""
    turns, so_far = [], draw(st.lists(st.integers(0, 9), min_size=1))
    for _ in range(draw(st.integers(1, 4))):
        turns.append(turn(list(so_far), draw(IDS)))
        so_far = so_far + turns[-1]["generation_token_ids"] + draw(IDS)
    return turns


@settings(deadline=None)
@given(turns=rollouts())
def test_a_growing_sequence_passes(turns: list[dict[str, Any]]) -> None:
    report = check_tokens([line(*turns), b"\n"])
    assert (report.rollouts, report.turns, report.faults) == (1, len(turns), [])


@settings(deadline=None)
@given(turns=rollouts(), data=st.data())
def test_one_changed_token_is_found_and_named(turns: list[dict[str, Any]], data: st.DataObject) -> None:
    so_far = turns[-1]["prompt_token_ids"] + turns[-1]["generation_token_ids"]
    turns.append(turn([*so_far, 1], [2]))
    at = data.draw(st.integers(0, len(so_far) - 1))
    turns[-1]["prompt_token_ids"][at] += 10
    report = check_tokens([line(*turns, _task_index=7, _repeat_index=2)])
    assert (report.faults, report.segments) == ([], 2)
    (found,) = report.breaks
    assert found == (
        f"line 1 (_task_index 7, _repeat_index 2), turn {len(turns)}: token {at} of the prompt is {so_far[at] + 10}, "
        f"expected {so_far[at]} as in turn {len(turns) - 1}"
    )


@pytest.mark.parametrize(
    ("turns", "fault"),
    [
        (
            [turn([1], [2]) | {"generation_log_probs": []}],
            "line 1, turn 1: 1 tokens were generated, but 0 have log-probs",
        ),
        (
            [{"generation_token_ids": [1]}],
            "line 1, turn 1: the output item has tokens, but no list `prompt_token_ids`",
        ),
    ],
)
def test_what_is_missing_is_named(turns: list[dict[str, Any]], fault: str) -> None:
    assert check_tokens([line(*turns)]).faults == [fault]


def test_a_prompt_that_is_too_short_is_a_break() -> None:
    report = check_tokens([line(turn([1], [2]), turn([1], [3]))])
    assert report.breaks == ["line 1, turn 2: token 1 of the prompt is missing, expected 2 as in turn 1"]


@pytest.mark.parametrize("content", [b"{half", b"null", b"[]", b'{"reward":1}'])
def test_a_line_that_is_no_rollout_is_a_fault(content: bytes) -> None:
    assert len(check_tokens([content]).faults) == 1


@pytest.mark.parametrize(
    ("content", "options", "status"),
    [
        (line(turn([1], [2]), turn([1, 2, 3], [4])), [], 0),
        (line(turn([1], [2]), turn([1, 9, 3], [4])), [], 1),
        (line(turn([1], [2]), turn([1, 9, 3], [4])), ["+allow_breaks=true"], 0),
        (line(), [], 1),
    ],
)
def test_the_command_ends_with_what_it_found(
    content: bytes,
    options: list[str],
    status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "rollouts.jsonl"
    file.write_bytes(content + b"\n")
    monkeypatch.setattr(sys, "argv", ["ng_check_tokens", f"+rollouts_jsonl_fpath={file}", *options])
    assert exit_code(check_tokens_command) == status
    printed = capsys.readouterr()
    assert "1 rollouts" in printed.out
    assert bool(printed.err) == bool(status or options)


def exit_code(command: Callable[[], None]) -> Any:
    try:
        command()
    except SystemExit as end:
        return end.code
    return 0


def two_policies(**buyer: Any) -> dict[str, Any]:
    """A rollout of two policies, and of a simulated user that is not trained on."""
    untrained = {"is_trainable": False, "response": {"output": [{"type": "message"}]}}
    traded = {"is_trainable": True, "response": {"output": [turn([5], [6]), turn([5, 6, 7], [8]) | buyer]}}
    sides = {"participant": "seller", "participants": {"buyer": traded, "user": untrained}}
    return {"response": {"output": [turn([1], [2])], **sides}, "reward": 1.0}


@pytest.mark.parametrize(
    ("spoilt", "faults", "breaks"),
    [
        ({}, [], []),
        (
            {"prompt_token_ids": [5, 9]},
            [],
            ["line 1, buyer, turn 2: token 1 of the prompt is 9, expected 6 as in turn 1"],
        ),
        (
            {"generation_log_probs": []},
            ["line 1, buyer, turn 2: 1 tokens were generated, but 0 have log-probs"],
            [],
        ),
    ],
)
def test_the_tokens_of_every_policy_are_checked(spoilt: dict[str, Any], faults: list[str], breaks: list[str]) -> None:
    report = check_tokens([orjson.dumps(two_policies(**spoilt))])
    assert (report.faults, report.breaks) == (faults, breaks)
    assert report.turns == (1 if faults else 3)


def test_every_policy_is_exported_with_the_advantage_among_its_own_rewards(tmp_path: Path) -> None:
    rollouts, output = tmp_path / "rollouts.jsonl", tmp_path / "samples.jsonl"
    rewards = [{"seller": 1.0, "buyer": 0.0}, {"seller": 0.0, "buyer": 0.0}, {"seller": 0.0, "buyer": 3.0}]
    records = [{**two_policies(), "rewards": each, "reward": each["seller"], "_task_index": 0} for each in rewards]
    rollouts.write_bytes(b"".join(orjson.dumps(record) + b"\n" for record in records))
    config = {"rollouts_jsonl_fpath": str(rollouts), "output_jsonl_fpath": str(output), "format": "trl"}
    assert export_rollouts(ExportConfig.model_validate(config)).used == 3
    lines = [orjson.loads(each) for each in output.read_bytes().splitlines()]
    assert [(each["policy"], round(each["advantage"], 2)) for each in lines] == [
        ("seller", 1.15),
        ("buyer", -0.58),
        ("seller", -0.58),
        ("buyer", -0.58),
        ("seller", -0.58),
        ("buyer", 1.15),
    ]
    assert [each["sample"]["completion_ids"] for each in lines[:2]] == [[2], [6, 7, 8]]
