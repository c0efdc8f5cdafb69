"""Rollouts become trajectories of the Agent Trajectory Interchange Format, and come back as they were scored."""

import json
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.analysis.atif import NotTrajectoryError, read_trajectories, record_of, trajectory_of
from nemo_gym.analysis.export import ExportConfig, export_rollouts
from nemo_gym.data.import_rows import ImportConfig, import_rows
from nemo_gym.testing import calls, message, response_of, rows_of, tool_output
from tests.jsonl import write_lines

TOOL = {"type": "function", "name": "look", "parameters": {"type": "object"}}
THOUGHT = {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "Hm."}]}
IMAGE = {"type": "input_image", "image_url": "https://example.org/a.jpg", "detail": "auto"}
TOKENS = {"prompt_token_ids": [1, 2], "generation_token_ids": [3], "generation_log_probs": [-0.5]}
USAGE = {"input_tokens": 5, "output_tokens": 3, "total_tokens": 8}


def record() -> dict[str, Any]:
    asked = [{"role": "user", "content": [{"type": "input_text", "text": "Where?"}, IMAGE]}]
    output = [
        *(THOUGHT, calls("look", {"at": 1}, call_id="1"), calls("look", "no JSON", call_id="2")),
        *(tool_output("here", call_id="1"), tool_output("there", call_id="2")),
        {**message("There."), **TOKENS},
    ]
    return {
        "responses_create_params": {"input": asked, "instructions": "Look first.", "tools": [TOOL]},
        "response": {**response_of(*output, model="m"), "usage": USAGE},
        "agent_ref": {"name": "seeker"},
        "reward": 0.5,
        "expected": "there",
        "_task_index": 3,
        "_repeat_index": 1,
    }


def test_a_step_is_what_the_model_made_at_once_with_the_outputs_of_its_tools() -> None:
    found = trajectory_of(record())
    assert (found["session_id"], found["agent"]["name"], found["agent"]["model_name"]) == ("3-1", "seeker", "m")
    assert found["agent"]["tool_definitions"][0]["function"]["name"] == "look"
    assert [(step["step_id"], step["source"]) for step in found["steps"]] == [
        *((1, "system"), (2, "user"), (3, "agent"), (4, "agent"))
    ]
    assert found["steps"][1]["message"][1]["source"] == {"media_type": "image/jpeg", "path": IMAGE["image_url"]}
    step = found["steps"][2]
    assert (step["message"], step["reasoning_content"]) == ("", "Hm.")
    assert [call["arguments"] for call in step["tool_calls"]] == [{"at": 1}, {}]
    assert [result["content"] for result in step["observation"]["results"]] == ["here", "there"]
    assert found["steps"][3]["metrics"]["completion_token_ids"] == [3]
    assert found["final_metrics"] == {"total_prompt_tokens": 5, "total_completion_tokens": 3, "total_steps": 4}


def test_a_rollout_comes_back_as_it_was_scored(tmp_path: Path) -> None:
    given = record()
    rollouts = write_lines(tmp_path / "rollouts.jsonl", [given, {"no": "rollout"}])
    paths = {"rollouts_jsonl_fpath": str(rollouts), "output_jsonl_fpath": str(tmp_path / "atif.jsonl")}
    report = export_rollouts(ExportConfig.model_validate({**paths, "format": "atif"}))
    assert (report.used, report.dropped) == (1, {"no scored rollout": 1})
    back = {"input_fpath": paths["output_jsonl_fpath"], "output_jsonl_fpath": str(tmp_path / "back.jsonl")}
    import_rows(ImportConfig.model_validate({**back, "format": "atif"}))
    (found,) = rows_of(tmp_path / "back.jsonl")
    assert {name: value for name, value in found.items() if name not in ("response", "responses_create_params")} == {
        name: value for name, value in given.items() if name not in ("response", "responses_create_params")
    }
    asked, wanted = found["responses_create_params"], given["responses_create_params"]
    assert asked["instructions"] == wanted["instructions"]
    assert asked["tools"] == [TOOL]
    assert asked["input"] == [{"type": "message", **wanted["input"][0]}]
    assert (found["response"]["model"], found["response"]["usage"]["total_tokens"]) == ("m", 8)
    assert [_said(item) for item in found["response"]["output"]] == [
        _said(item) for item in given["response"]["output"]
    ]
    assert found["response"]["output"][-1]["generation_token_ids"] == [3]


def _said(item: dict[str, Any]) -> Any:
    return {
        name: value for name, value in item.items() if name in ("call_id", "name", "arguments", "output", "summary")
    }


def test_trajectories_of_others_have_no_reward(tmp_path: Path) -> None:
    steps = [
        {"step_id": 1, "source": "user", "message": "Hi."},
        {"step_id": 2, "source": "agent", "message": "Earlier.", "is_copied_context": True},
        {"step_id": 3, "source": "agent", "message": "Hello."},
    ]
    agent = {"name": "other", "version": "1"}
    (tmp_path / "run").mkdir()
    file = tmp_path / "run" / "trajectory.json"
    file.write_text(json.dumps({"schema_version": "ATIF-v1.6", "agent": agent, "steps": steps}))
    (tmp_path / "run" / "config.json").write_text("{}")
    (found,) = map(record_of, read_trajectories(tmp_path))
    assert "reward" not in found
    assert found["agent_ref"] == {"name": "other"}
    assert len(found["responses_create_params"]["input"]) == 2
    assert [item["content"][0]["text"] for item in found["response"]["output"]] == ["Hello."]
    with pytest.raises(NotTrajectoryError, match="schema_version"):
        record_of({"steps": []})
    (tmp_path / "run" / "trajectory.json").unlink()
    with pytest.raises(NotTrajectoryError, match=r"no \.json file"):
        list(read_trajectories(tmp_path))
