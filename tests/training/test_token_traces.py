"""Calls become segments, segments become one sequence with a mask, and every trainer's view gives it back."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.errors import RolloutError
from nemo_gym.training import (
    VIEWS,
    ModelCall,
    TokenTraceError,
    TrainingSample,
    columns,
    group_advantages,
    make_groups,
    samples_of,
    trace_of,
    trace_of_calls,
    trl_sample,
)

IDS = st.lists(st.integers(0, 99), max_size=6)


def call(prompt: list[int], sampled: list[int], version: int | None = None) -> ModelCall:
    return ModelCall(prompt, sampled, [-0.1 * (token + 1) for token in sampled], version)


@st.composite
def conversations(draw: st.DrawFn) -> list[ModelCall]:
    """Calls of which each prompt is all before it and then more. At least one token is sampled."""
    calls: list[ModelCall] = []
    so_far = draw(st.lists(st.integers(0, 99), min_size=1, max_size=6))
    for version in range(draw(st.integers(1, 4))):
        sampled = draw(IDS) if calls else draw(st.lists(st.integers(0, 99), min_size=1, max_size=6))
        calls.append(call(list(so_far), sampled, version))
        so_far = [*so_far, *sampled, *draw(IDS)]
    return calls


@given(calls=conversations())
def test_the_mask_selects_exactly_what_was_sampled(calls: list[ModelCall]) -> None:
    trace = trace_of_calls(calls)
    assert (len(trace.segments), trace.breaks, trace.num_calls) == (1, [], len(calls))
    flat = trace.segments[0].flatten()
    assert flat.ids == [*calls[-1].prompt_ids, *calls[-1].sampled_ids]
    assert flat.sampled_ids == [token for each in calls for token in each.sampled_ids]
    log_probs = [value for value, trained in zip(flat.log_probs, flat.loss_mask, strict=True) if trained]
    assert log_probs == [value for each in calls for value in each.log_probs]
    assert not any(value for value, trained in zip(flat.log_probs, flat.loss_mask, strict=True) if not trained)
    assert flat.prompt_length == len(calls[0].prompt_ids)
    assert flat.policy_versions == list(range(len(calls)))


@pytest.mark.parametrize("trainer", VIEWS)
@given(calls=conversations(), reward=st.floats(-1, 1))
def test_every_view_gives_back_the_tokens_it_was_made_of(trainer: str, calls: list[ModelCall], reward: float) -> None:
    tokens = trace_of_calls(calls).segments[0].flatten()
    view = VIEWS[trainer]
    read = view.read(view.write(TrainingSample(tokens, reward)))
    assert (read.ids, read.loss_mask, read.log_probs) == (tokens.ids, tokens.loss_mask, tokens.log_probs)
    assert read.prompt_length == tokens.prompt_length


def test_a_compacted_context_starts_a_new_segment() -> None:
    calls = [call([1, 2], [3]), call([1, 2, 3, 4], [5]), call([1, 9], [6]), call([1, 9, 6, 7], [8])]
    trace = trace_of_calls(calls)
    assert [segment.flatten().ids for segment in trace.segments] == [[1, 2, 3, 4, 5], [1, 9, 6, 7, 8]]
    assert [str(found) for found in trace.breaks] == ["turn 3: token 1 of the prompt is 9, expected 2 as in turn 2"]


def test_a_conversation_goes_on_in_its_own_segment_after_a_sub_agent() -> None:
    calls = [call([1], [2]), call([50], [51]), call([50, 51, 52], [53]), call([1, 2, 3], [4])]
    trace = trace_of_calls(calls)
    assert [segment.flatten().sampled_ids for segment in trace.segments] == [[2, 4], [51, 53]]
    assert [found.call for found in trace.breaks] == [2]


def item(prompt: list[int], sampled: list[int], **more: Any) -> dict[str, Any]:
    log_probs = [-0.5] * len(sampled)
    tokens = {"prompt_token_ids": prompt, "generation_token_ids": sampled, "generation_log_probs": log_probs}
    return {"type": "message", **tokens, **more}


def record(*items: dict[str, Any], reward: Any = 1.0, **response: Any) -> dict[str, Any]:
    return {"reward": reward, "response": {"output": [{"type": "reasoning"}, *items], **response}}


def test_a_record_has_its_policy_versions() -> None:
    (segment,) = trace_of(record(item([1], [2], policy_version="step-7"), item([1, 2], [3]))).segments
    assert segment.flatten().policy_versions == ["step-7", None]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"generation_log_probs": None}, "turn 1: the output item has tokens, but no list `generation_log_probs`"),
        ({"generation_log_probs": []}, "turn 1: 1 tokens were generated, but 0 have log-probs"),
        ({"generation_log_probs": [None]}, "turn 1: a log-prob is not a finite number"),
        ({"generation_log_probs": [float("nan")]}, "turn 1: a log-prob is not a finite number"),
        ({"prompt_token_ids": ["1"]}, "turn 1: a token id is not a whole number from 0 on"),
        ({"generation_token_ids": [True]}, "turn 1: a token id is not a whole number from 0 on"),
        ({"generation_token_ids": [-1]}, "turn 1: a token id is not a whole number from 0 on"),
        ({"generation_log_probs": [0.5]}, "turn 1: a log-prob is 0.5, expected at most 0"),
    ],
)
def test_bad_tokens_are_refused(change: dict[str, Any], fault: str) -> None:
    with pytest.raises(TokenTraceError) as refused:
        samples_of(record(item([1], [2]) | change))
    assert str(refused.value) == fault


@pytest.mark.parametrize("bad", [{}, {"response": None}, {"response": {}}])
def test_a_record_without_a_response_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(TokenTraceError, match=r"no `response.output`"):
        trace_of(bad)


def test_a_sample_says_whether_the_rollout_was_cut_off() -> None:
    (sample,) = samples_of(record(item([1], [2]), incomplete_details={"reason": "max_output_tokens"}))
    assert sample.is_cut_off
    assert VIEWS["slime"].write(sample)["status"] == "truncated"
    assert VIEWS["skyrl"].write(sample)["stop_reasons"] == "length"


def test_advantages_are_relative_to_the_group() -> None:
    records = [("a", record(item([1], [2]), reward=reward)) for reward in (0.0, 1.0, 1.0, 0.0)]
    records += [("b", record(item([3], [4]), reward=0.5)), ("b", record(item([3], [5]), reward=0.5))]
    first, second = make_groups(records)
    assert [round(value, 3) for value in first.advantages] == [-0.866, 0.866, 0.866, -0.866]
    assert [sample.advantage for sample in first.samples] == first.advantages
    assert first.has_signal
    assert second.advantages == [0.0, 0.0]
    assert not second.has_signal
    assert group_advantages([0.0, 1.0], scale=False) == [-0.5, 0.5]
    assert group_advantages([0.7]) == [0.0]


def test_all_segments_of_a_rollout_have_its_advantage() -> None:
    twice = record(item([1], [2]), item([8], [9]), reward=1.0)
    (group,) = make_groups([("a", twice), ("a", record(item([1], [3]), reward=0.0))])
    assert [sample.segment for sample in group.samples] == [0, 1, 0]
    assert [sample.advantage for sample in group.samples] == [
        group.advantages[0],
        group.advantages[0],
        group.advantages[1],
    ]


def test_a_rollout_without_sampled_tokens_counts_for_the_mean_only() -> None:
    (group,) = make_groups([("a", record(reward=0.0)), ("a", record(item([1], [2]), reward=1.0))])
    assert group.rewards == [0.0, 1.0]
    assert [len(segments) for segments in group.rollouts] == [0, 1]


def test_a_model_server_that_returns_no_tokens_is_noticed() -> None:
    with pytest.raises(TokenTraceError, match="return_token_id_information"):
        make_groups([("a", record(reward=0.0))])


@pytest.mark.parametrize("reward", [None, "1", float("nan")])
def test_a_record_without_a_reward_is_refused(reward: Any) -> None:
    with pytest.raises(RolloutError, match="reward"):
        make_groups([("a", record(item([1], [2]), reward=reward))])


def test_columns_are_what_a_rollout_function_of_trl_returns() -> None:
    samples = samples_of(record(item([1], [2]), item([1, 2, 3], [4])))
    assert columns(map(trl_sample, samples)) == {
        "prompt_ids": [[1]],
        "completion_ids": [[2, 3, 4]],
        "logprobs": [[-0.5, 0.0, -0.5]],
        "env_mask": [[1, 0, 1]],
        "reward": [1.0],
    }
    assert columns([]) == {}


def test_versions_that_changed_within_a_generation_reach_the_views() -> None:
    calls = [
        ModelCall([1, 2], [3, 4, 5], [-0.1] * 3, 8, version_runs=[(7, 1), (8, 2)]),
        ModelCall([1, 2, 3, 4, 5, 6], [7], [-0.1], 9),
    ]
    tokens = trace_of_calls(calls).segments[0].flatten()
    assert tokens.versions() == [None, None, 7, 8, 8, None, 9]
    assert [tuple(span) for span in tokens.version_spans] == [(2, 3, 7), (3, 5, 8), (6, 7, 9)]
    sample = TrainingSample(tokens, 1.0, advantage=0.5, task_index=4, repeat_index=1)
    steps = VIEWS["verl"].write(sample)["extra_fields"]
    assert (steps["min_global_steps"], steps["max_global_steps"]) == (7, 9)
    assert VIEWS["areal"].write(sample)["versions"] == [-1, -1, 7, 8, 8, -1, 9]
    assert VIEWS["slime"].write(sample)["rollout_id"] == "4-1"
    assert VIEWS["nemo_rl"].write(sample)["message_log"][1]["policy_versions"] == [7, 8, 8]
    skyrl = VIEWS["skyrl"].write(sample)
    assert (skyrl["rewards"], skyrl["trajectory_ids"].to_string()) == ([0.0, 0.0, 0.0, 0.0, 1.0], "4_1")
    assert VIEWS["tinker"].write(sample)["loss_fn_inputs"]["advantages"] == [0.0, 0.5, 0.5, 0.5, 0.0, 0.5]


def test_only_the_last_segment_of_a_rollout_has_its_reward_for_skyrl() -> None:
    tokens = {"generation_token_ids": [3], "generation_log_probs": [-0.1]}
    output = [{"prompt_token_ids": [1], **tokens}, {"prompt_token_ids": [9], **tokens}]
    samples = samples_of({"reward": 2.0, "response": {"output": output}, "_task_index": 0, "_repeat_index": 0})
    assert [sample.is_last for sample in samples] == [False, True]
    assert [VIEWS["skyrl"].write(sample)["rewards"] for sample in samples] == [[0.0], [2.0]]


def test_a_trace_does_not_change_its_record() -> None:
    original = record(item([1], [2]), item([1, 2, 3], [4]))
    before = copy.deepcopy(original)
    VIEWS["nemo_rl"].write(samples_of(original)[0])["message_log"][0]["token_ids"].append(7)
    assert original == before
