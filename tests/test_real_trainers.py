"""Views against the types of the trainers themselves, where these are installed."""

import json
import os
import typing
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typing_extensions

from nemo_gym.common.paths import PARENT_DIR
from nemo_gym.interop.trl_environment import TrlEnvironment
from nemo_gym.training import (
    ModelCall,
    TrainingSample,
    areal_sample,
    columns,
    prime_rl_sample,
    skyrl_sample,
    tinker_sample,
    trace_of_calls,
    trl_sample,
    verl_sample,
)
from nemo_gym.training.token_traces import RewardSpan

EXPERTS = [[[0, 1]]] * 6
"""For each token the experts of each layer."""
CALLS = [
    ModelCall([1, 2], [3, 4], [-0.1, -0.2], 7),
    ModelCall([1, 2, 3, 4, 5], [6], [-0.3], 8, routed_experts=EXPERTS, rewards=[RewardSpan(0, 1, 0.5)]),
]
SAMPLE = TrainingSample(trace_of_calls(CALLS).segments[0].flatten(), 1.0, reward_components={"right": 1.0})
SHORT = trace_of_calls(CALLS[:1]).segments[0].flatten()


def source_of(package: str, path: str) -> str:
    """The source of a module that cannot be imported here."""
    spec = find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0], path).read_text()


@pytest.mark.parametrize("package", ["verl", "skyrl", "tinker", "trl", "verifiers", "areal"])
def test_the_table_of_views_names_the_version_that_is_checked(package: str) -> None:
    try:
        found = version(package)
    except PackageNotFoundError:
        pytest.skip(f"{package} is not installed")
    assert f"{package} {found} |" in (PARENT_DIR / "docs/training.md").read_text()


@pytest.mark.skipif(find_spec("verl") is None, reason="verl is not installed")
@pytest.mark.filterwarnings("ignore")
def test_verl_takes_its_view() -> None:
    from verl.experimental.agent_loop.agent_loop import AgentLoopOutput

    taken = AgentLoopOutput(**verl_sample(SAMPLE))
    assert (taken.prompt_ids, taken.response_ids, taken.response_mask) == ([1, 2], [3, 4, 5, 6], [1, 1, 0, 1])
    assert (taken.response_logprobs, taken.reward_score) == ([-0.1, -0.2, 0.0, -0.3], 1.0)
    assert taken.extra_fields["policy_versions"] == [7, 8]
    assert (taken.extra_fields["min_global_steps"], taken.extra_fields["max_global_steps"]) == (7, 8)
    assert taken.extra_fields["reward_extra_info"] == {"right": 1.0}
    assert taken.as_dict()["routed_experts"].shape[1:] == (1, 2)
    readers = source_of("verl", "trainer/ppo/v1/agent_loop_tq.py")
    for name in ("min_global_steps", "max_global_steps"):
        assert f'field["extra_fields"].get("{name}")' in readers


@pytest.mark.skipif(find_spec("skyrl") is None, reason="skyrl is not installed")
@pytest.mark.filterwarnings("ignore")
def test_skyrl_takes_its_view(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typing, "TypedDict", typing_extensions.TypedDict)  # skyrl 0.3 is for Python 3.12
    from skyrl.train.generators.base import GeneratorOutput
    from skyrl.train.utils.trainer_utils import validate_generator_output

    made: dict[str, Any] = columns([skyrl_sample(SAMPLE), skyrl_sample(SAMPLE)])
    assert made["rewards"] == [[0.0, 0.0, 0.0, 0.5]] * 2
    assert made.keys() <= GeneratorOutput.__annotations__.keys()
    validate_generator_output(2, made | {"rollout_metrics": None})


@pytest.mark.skipif(find_spec("tinker") is None, reason="tinker is not installed")
@pytest.mark.filterwarnings("ignore")
def test_tinker_takes_its_view() -> None:
    from tinker import types

    made = tinker_sample(SAMPLE)
    kinds = {"target_tokens": "int64", "logprobs": "float32", "advantages": "float32", "mask": "float32"}
    inputs = {
        name: types.TensorData(data=made["loss_fn_inputs"][name], dtype=kind, shape=[len(SAMPLE.tokens.ids) - 1])
        for name, kind in kinds.items()
    }
    (chunk,) = made["model_input"]["chunks"]
    datum = types.Datum(model_input=types.ModelInput.from_ints(chunk["tokens"]), loss_fn_inputs=inputs)
    assert datum.model_input.to_ints() == [1, 2, 3, 4, 5]
    assert datum.loss_fn_inputs["target_tokens"].to_numpy().tolist() == [2, 3, 4, 5, 6]
    assert datum.loss_fn_inputs["mask"].to_numpy().tolist() == [0, 1, 1, 0, 1]


@pytest.mark.skipif(find_spec("areal") is None, reason="areal is not installed")
@pytest.mark.filterwarnings("ignore")
def test_areal_batches_and_packs_its_view() -> None:
    """The fields are those of a workflow, whose module cannot be imported: it needs CUDA kernels."""
    import torch
    from areal.utils.data import concat_padded_tensors, pack_tensor_dict

    made = [areal_sample(sample) for sample in (SAMPLE, replace(SAMPLE, tokens=SHORT))]
    workflow = source_of("areal", "workflow/rlvr.py")
    assert made[0].keys() == {name for name in made[0] if f'"{name}": torch' in workflow}
    batch = concat_padded_tensors([{name: torch.tensor([each[name]]) for name in each} for each in made])
    assert batch["attention_mask"].tolist() == [[True] * 6, [True] * 4 + [False] * 2]
    assert batch["versions"].tolist() == [[-1, -1, 7, 7, -1, 8], [-1, -1, 7, 7, 0, 0]]
    packed = pack_tensor_dict(batch)
    assert packed["input_ids"].tolist() == [*SAMPLE.tokens.ids, *SHORT.ids]
    assert packed["loss_mask"].tolist() == [*SAMPLE.tokens.loss_mask, *SHORT.loss_mask]
    assert packed["logprobs"].tolist() == pytest.approx([*SAMPLE.tokens.log_probs, *SHORT.log_probs])


@pytest.mark.skipif(find_spec("verifiers") is None, reason="verifiers is not installed")
@pytest.mark.filterwarnings("ignore")
def test_verifiers_takes_the_view_of_prime_rl() -> None:
    from verifiers.v1.types import TurnTokens

    made = prime_rl_sample(SAMPLE)
    taken = TurnTokens(**{name: value for name, value in made.items() if name in TurnTokens.model_fields})
    assert (taken.prompt_ids, taken.completion_ids) == ([1, 2], [3, 4, 5, 6])
    assert taken.completion_logprobs == [-0.1, -0.2, 0.0, -0.3]


needs_trl = pytest.mark.skipif(find_spec("trl") is None, reason="trl is not installed")


@needs_trl
@pytest.mark.filterwarnings("ignore")
def test_trl_trains_on_its_view(tmp_path: Path) -> None:
    """What a `rollout_func` returns, with a token of a tool in the middle."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    scored: list[Any] = []
    samples = [replace(SAMPLE, reward=float(at % 2)) for at in range(4)]

    class Watched(GRPOTrainer):
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            scored.append(super()._generate_and_score_completions(inputs))
            return scored[-1]

    tokenizer = byte_tokenizer()
    settings = {"per_device_train_batch_size": 4, "num_generations": 4, "max_completion_length": 8, "max_steps": 1}
    trainer = Watched(
        model=tiny_model(len(tokenizer)),
        processing_class=tokenizer,
        reward_funcs=[lambda reward, **_: reward],
        rollout_func=lambda _prompts, _trainer: columns(map(trl_sample, samples)),
        train_dataset=Dataset.from_dict({"prompt": ["Hi."] * 4}),
        args=GRPOConfig(
            output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to=[], save_strategy="no", **settings
        ),
    )
    trainer.train()
    (made,) = scored
    assert made["prompt_ids"].tolist() == [[1, 2]] * 4
    assert made["completion_ids"].tolist() == [[3, 4, 5, 6]] * 4
    assert (made["completion_mask"] * made["tool_mask"]).tolist() == [[1, 1, 0, 1]] * 4
    assert [value > 0 for value in made["advantages"].tolist()] == [False, True, False, True]


COUNTER = "resources_servers/example_stateful_counter/configs/stateful_counter.yaml"
CALL = '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call><|im_end|>'


Reply = Callable[[str, int], str]
"""What is sampled after a prompt, by the place in the batch."""


def train(environment: TrlEnvironment, reply: Reply, folder: Path, *, steps: int) -> tuple[Any, list[Any], list[Any]]:
    """GRPOTrainer with a tiny model. Only what is sampled is scripted. The trainer, its rewards and its advantages."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    tokenizer = byte_tokenizer()
    rewards: list[list[float | None]] = []
    advantages: list[list[float]] = []

    class Scripted(GRPOTrainer):
        def _generate_single_turn(self, prompt_ids: list[list[int]], *_args: Any, **_kwargs: Any) -> Any:
            replies = [tokenizer.encode(reply(tokenizer.decode(ids), at)) for at, ids in enumerate(prompt_ids)]
            return replies, [[-0.1] * len(ids) for ids in replies]

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            scored = super()._generate_and_score_completions(inputs)
            advantages.append(scored["advantages"].tolist())
            return scored

    def reward(**columns: Any) -> list[float | None]:
        rewards.append(environment.reward_func(**columns))
        return rewards[-1]

    settings = {
        "per_device_train_batch_size": 4,
        "num_generations": 4,
        "max_completion_length": 256,
        "max_steps": steps,
    }
    trainer = Scripted(
        model=tiny_model(len(tokenizer)),
        processing_class=tokenizer,
        reward_funcs=[reward],
        environment_factory=environment.environment_factory,
        train_dataset=Dataset.from_list(environment.dataset()),
        args=GRPOConfig(
            output_dir=str(folder), use_cpu=True, bf16=False, report_to=[], save_strategy="no", **settings
        ),
    )
    trainer.train()
    environment.close()
    return trainer, rewards, advantages


@pytest.mark.slow
@needs_trl
@pytest.mark.filterwarnings("ignore")
def test_trl_plays_and_scores_an_environment_with_its_factory(tmp_path: Path) -> None:
    environment = TrlEnvironment(COUNTER)
    rows = {row["prompt"][-1]["content"]: json.loads(row["nemo_gym_row"]) for row in environment.dataset()}

    def reply(prompt: str, at: int) -> str:
        """Every other rollout makes the right call."""
        if "<tool_response>" in prompt:
            return "Done.<|im_end|>"
        row = rows[prompt.split("<|im_start|>user\n")[-1].split("<|im_end|>")[0]]
        count = row["expected_count"] - row["initial_count"] + at % 2
        return CALL % ("increment_counter", json.dumps({"count": count}))

    trainer, rewards, _ = train(environment, reply, tmp_path, steps=2)
    assert rewards == [[1.0, 0.0, 1.0, 0.0]] * 2
    assert trainer.state.log_history[-1]["tools/call_frequency"] == 1.0


@pytest.mark.slow
@needs_trl
@pytest.mark.filterwarnings("ignore")
def test_trl_learns_nothing_from_a_rollout_in_which_the_environment_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = {"resources_servers": {"unreliable": {"entrypoint": "app.py", "domain": "other"}}}
    (tmp_path / "config.yaml").write_text(json.dumps({"unreliable": server}))
    monkeypatch.chdir(PARENT_DIR / "tests/servers")
    with open(os.devnull, "w") as events:
        row = {"responses_create_params": {"input": "Hi."}, "events_fd": events.fileno()}
        environment = TrlEnvironment(tmp_path / "config.yaml", rows=[row])
        called = ["work", "lose", "work", "rest"]

        def reply(prompt: str, at: int) -> str:
            return "Done.<|im_end|>" if "<tool_response>" in prompt else CALL % (called[at], "{}")

        trainer, rewards, advantages = train(environment, reply, tmp_path, steps=1)
    assert rewards == [[1.0, None, 1.0, 0.0]]
    assert advantages[0][1] == 0.0
    assert advantages[0][3] < 0 < advantages[0][0] == advantages[0][2]
    assert trainer.state.log_history[0]["reward"] == pytest.approx(2 / 3)


def byte_tokenizer() -> Any:
    """Bytes, with a chat template that TRL ships: no file has to be downloaded."""
    import trl
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.add_special_tokens([AddedToken(name) for name in ("<|im_start|>", "<|im_end|>", "<|endoftext|>")])
    tags = [f"<{slash}{name}>" for name in ("tool_call", "tool_response", "think") for slash in ("", "/")]
    made.add_tokens([AddedToken(tag, special=False) for tag in tags])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.chat_template = (Path(trl.__file__).parent / "chat_templates/qwen3.jinja").read_text()
    return tokenizer


def tiny_model(vocabulary: int) -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "head_dim": 16}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    return Qwen3ForCausalLM(Qwen3Config(vocab_size=vocabulary, **size, **heads))
