"""What the names that public folders import do."""

import pickle
from pathlib import Path

import pytest
from pydantic import ValidationError

from nemo_gym.base_resources_server import normalize_tool_name
from nemo_gym.errors import RolloutError
from nemo_gym.judge import JudgeError, reraise_judge_errors
from nemo_gym.openai_utils import NeMoGymChatCompletion, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.prompt import apply_prompt_to_row, fill_prompt, load_prompt_config, materialize_prompts
from nemo_gym.prompt import validate_prompt_compatibility as validate
from nemo_gym.responses_converter import ResponsesConverter, _usage_detail, split_responses_input_output_items
from nemo_gym.rollout_correlation import maybe_rollout_id_from_run_body as rollout_id
from nemo_gym.rollout_observability import AgentInvocation, AgentObservationBundle, ModelCallRef, ToolCallObservation
from nemo_gym.server_utils import apply_rollout_prefix, rollout_path_prefix
from nemo_gym.skills import load_skill_directory, stage_skills


def test_a_prompt_is_filled_in_with_the_fields_of_a_row(tmp_path: Path) -> None:
    file = tmp_path / "prompt.yaml"
    file.write_text("system: 'Be {tone!r:>8}.'\nuser: 'Add {numbers[0]} {{literally}}.'\nunknown: 1\n")
    prompt = load_prompt_config(str(file))
    row = {"tone": "kind", "numbers": [4], "responses_create_params": {"temperature": 1}}
    messages = [
        {"role": "system", "content": "Be   'kind'."},
        {"role": "user", "content": "Add 4 {literally}."},
    ]
    assert fill_prompt(prompt, row) == messages
    assert apply_prompt_to_row(row, prompt)["responses_create_params"] == {"temperature": 1, "input": messages}
    with pytest.raises(KeyError, match=r"'tone'.*numbers"):
        fill_prompt(prompt, {"numbers": [1]})
    with pytest.raises(ValueError, match=r"rows \[1\]"):
        validate([row, {"responses_create_params": {"input": "hi"}}], prompt)
    (tmp_path / "rows.jsonl").write_text('{"tone": "kind", "numbers": [4]}\n\n')
    assert materialize_prompts(str(tmp_path / "rows.jsonl"), str(file), str(tmp_path / "new" / "out.jsonl")) == 1
    assert "prompt_config_used" in (tmp_path / "new" / "out.jsonl").read_text()


def test_the_id_of_a_rollout_comes_from_its_indices() -> None:
    assert rollout_id({"_ng_task_index": 3, "_ng_rollout_index": 1}) == "3-1"
    assert rollout_id({"_ng_task_index": 3, "_ng_rollout_index": 1, "_ng_attempt_index": 2}) == "3-1-a2"
    assert rollout_id({"_ng_rollout_id": "mine"}) == "mine"
    assert (rollout_id({}), rollout_id(None)) == (None, None)
    with pytest.raises(ValueError, match="expected letters"):
        rollout_id({"_ng_rollout_id": "../x"})
    assert apply_rollout_prefix("http://h:1/", "3-1") == "http://h:1/ng-rollout/3-1"
    assert rollout_path_prefix("3-1", token_capture=True) == "/ng-rollout/3-1/training-token-capture"
    assert rollout_path_prefix(None) == ""


async def test_whatever_a_judge_raises_is_a_judge_error() -> None:
    async def fails() -> None:
        raise TimeoutError("too slow")

    with pytest.raises(JudgeError, match="TimeoutError: too slow") as caught:
        await reraise_judge_errors(fails())  # type: ignore[type-var]
    assert (caught.value.cause, caught.value.status, caught.value.code) == ("judge", 500, "error")
    assert str(JudgeError("alone")) == "alone"


def test_an_error_has_a_status_and_a_content_and_survives_pickling() -> None:
    for error, status in (
        (RolloutError("model", "x", status=429), 429),
        (RolloutError("timeout", "x"), 504),
        (RolloutError("input", "x"), 422),
        (RolloutError("tool", "x"), 500),
    ):
        again = pickle.loads(pickle.dumps(error))
        assert (again.status, again.response_content) == (status, b"x")


def test_the_converter_goes_both_ways() -> None:
    converter = ResponsesConverter(return_token_id_information=False)
    params = NeMoGymResponseCreateParamsNonStreaming.model_validate(
        {
            "instructions": "One.",
            "input": [
                {"role": "system", "content": "Two."},
                {"role": "user", "content": [{"type": "input_text", "text": "Hi."}]},
                {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "hm"}]},
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": "1"},
            ],
        }
    )
    chat = converter.responses_to_chat_completion_create_params(params)
    assert [message["role"] for message in chat.messages] == ["system", "user", "assistant", "tool"]
    assert chat.messages[0]["content"] == "One.\n\nTwo."
    back = converter.chat_completion_to_responses_create_params(chat)
    assert [item.type for item in back.input if not isinstance(item, str)] == [
        *("message", "message", "reasoning", "function_call", "function_call_output"),
    ]
    before, written = split_responses_input_output_items(list(back.input))
    assert (len(before), written[0].type) == (2, "reasoning")
    with pytest.raises(ValueError, match="no tools"):
        converter.responses_to_chat_completion_create_params(
            NeMoGymResponseCreateParamsNonStreaming(input="Hi.", tool_choice="required")
        )
    completion = NeMoGymChatCompletion.model_validate(
        {
            "id": "c",
            "created": 1,
            "model": "m",
            "choices": [{"index": 0, "finish_reason": "length", "message": {"content": "<think>a</think>b"}}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3},
        }
    )
    response = converter.chat_completion_to_response(params, completion)
    assert (response.status, [item.type for item in response.output]) == ("incomplete", ["reasoning", "message"])
    whole = ResponsesConverter(return_token_id_information=False, uses_reasoning_parser=False)
    assert whole.chat_completion_to_response(params, completion).output_text == "<think>a</think>b"
    assert _usage_detail({"a": {"b": None}, "c": 4}, "a", "b", "c") == 4


def test_observations_name_calls_and_have_no_circles() -> None:
    with pytest.raises(ValidationError, match="model_call_id is required"):
        ModelCallRef(response_id="r")
    with pytest.raises(ValidationError, match="before started_at"):
        ToolCallObservation(
            invocation_id="a",
            tool_call_id="c",
            started_at=2.0,
            completed_at=1.0,
        )
    one = AgentInvocation(invocation_id="a", parent_invocation_id="b")
    other = AgentInvocation(invocation_id="b", parent_invocation_id="a")
    for wrong, message in (([one, other], "own ancestor"), ([one, one], "used twice")):
        with pytest.raises(ValidationError, match=message):
            AgentObservationBundle(source="x", records=list(wrong))
    with pytest.raises(ValidationError, match="extra"):
        AgentObservationBundle(source="x", surprise=1)  # type: ignore[call-arg]


def test_skills_are_read_hashed_and_copied(tmp_path: Path) -> None:
    skill = tmp_path / "skills" / "sum"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text("---\nname: sum\nmetadata:\n  version: 2\n---\nAdd numbers.\n")
    found = load_skill_directory(tmp_path / "skills")
    assert ([each.model_dump() for each in found.skills], len(found.hash)) == (
        [{"name": "sum", "description": None, "version": "2"}],
        12,
    )
    assert (stage_skills(tmp_path / "skills", tmp_path / "copy") / "sum" / "SKILL.md").is_file()
    with pytest.raises(ValueError, match="exists already"):
        stage_skills(tmp_path / "skills", tmp_path / "copy")
    (skill / "SKILL.md").write_text("no front matter")
    with pytest.raises(ValueError, match="has no `name`"):
        load_skill_directory(tmp_path / "skills")


def test_the_prefix_of_mcp_is_cut_for_the_server_that_it_names() -> None:
    assert normalize_tool_name("mcp__srv__a__b") == "a__b"
    assert normalize_tool_name("mcp__srv__a", "other") == "mcp__srv__a"
    assert normalize_tool_name("plain") == "plain"
