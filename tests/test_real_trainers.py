"""Views against the types of the trainers themselves, where these are installed."""

import typing
from importlib.util import find_spec
from typing import Any

import pytest
import typing_extensions

from nemo_gym.training import ModelCall, TrainingSample, columns, skyrl_sample, trace_of_calls, verl_sample

CALLS = [ModelCall([1, 2], [3, 4], [-0.1, -0.2], 7), ModelCall([1, 2, 3, 4, 5], [6], [-0.3], 8)]
SAMPLE = TrainingSample(trace_of_calls(CALLS).segments[0].flatten(), 1.0)


@pytest.mark.skipif(find_spec("verl") is None, reason="verl is not installed")
@pytest.mark.filterwarnings("ignore")
def test_verl_takes_its_view() -> None:
    from verl.experimental.agent_loop.agent_loop import AgentLoopOutput

    taken = AgentLoopOutput(**verl_sample(SAMPLE))
    assert (taken.prompt_ids, taken.response_ids, taken.response_mask) == ([1, 2], [3, 4, 5, 6], [1, 1, 0, 1])
    assert (taken.response_logprobs, taken.reward_score) == ([-0.1, -0.2, 0.0, -0.3], 1.0)
    assert taken.extra_fields["policy_versions"] == [7, 8]


@pytest.mark.skipif(find_spec("skyrl") is None, reason="skyrl is not installed")
@pytest.mark.filterwarnings("ignore")
def test_skyrl_takes_its_view(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typing, "TypedDict", typing_extensions.TypedDict)  # skyrl 0.3 is for Python 3.12
    from skyrl.train.generators.base import GeneratorOutput
    from skyrl.train.utils.trainer_utils import validate_generator_output

    made: dict[str, Any] = columns([skyrl_sample(SAMPLE), skyrl_sample(SAMPLE)])
    assert made.keys() <= GeneratorOutput.__annotations__.keys()
    validate_generator_output(2, made | {"rollout_metrics": None})
