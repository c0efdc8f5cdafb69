"""Train the tiny model with TRL's GRPOTrainer and torch, on rollouts that NeMo Gym makes.

Needs `pip install torch trl`, which are not in the project's extras. Run `python -m examples.train_grpo_trl`.

TRL's `rollout_func` gets token ids, log-probs and the mask of tool outputs from `run_examples`; TRL never generates.
The model server samples from the same weights, which are written for it before every batch.
"""

import argparse
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import transformers
import trl
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from examples.train_grpo import ASKS, COUNTER, Settings, agent_row, collect, prompt_of, running_servers, warm_up
from nemo_gym.testing import rows_of
from nemo_gym.training import columns, samples_of, trl_sample
from responses_api_models.tiny_policy.network import Network, initial_weights
from responses_api_models.tiny_policy.sampler import SHAPE, save_weights
from responses_api_models.tiny_policy.vocabulary import END, ID_OF, PAD, UNKNOWN


class TinyConfig(transformers.PretrainedConfig):
    model_type = "tiny_policy"
    vocab_size = SHAPE.vocabulary


class TinyBackbone(transformers.PreTrainedModel):
    """The network of `tiny_policy` in torch up to its output layer, with the same weights."""

    config_class = TinyConfig

    def __init__(self, config: TinyConfig, weights: dict[str, Any]) -> None:
        super().__init__(config)
        self.weights = torch.nn.ParameterDict(
            {name.replace(".", "_"): torch.nn.Parameter(torch.tensor(value)) for name, value in weights.items()}
        )

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **_: Any) -> Any:
        """TRL pads prompts on the left: positions count from the first token that is not padding."""
        weights, is_read = self.weights, torch.ones_like(input_ids) if attention_mask is None else attention_mask
        positions = (is_read.cumsum(-1) - 1).clamp(min=0)
        x = weights["tokens"][input_ids] + weights["positions"][positions]
        time = input_ids.shape[1]
        visible = torch.ones(time, time, dtype=torch.bool).tril() & is_read.bool()[:, None, None, :]
        visible |= torch.eye(time, dtype=torch.bool)  # padding sees itself, so that its softmax is defined
        for layer in range(SHAPE.layers):
            query, key, value = self._heads(_normalize(x) @ weights[f"qkv_{layer}"])
            attended = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=visible)
            x = x + attended.transpose(1, 2).flatten(2) @ weights[f"attention_{layer}"]
            x = x + torch.relu(_normalize(x) @ weights[f"up_{layer}"]) @ weights[f"down_{layer}"]
        return transformers.modeling_outputs.BaseModelOutput(last_hidden_state=_normalize(x))

    def _heads(self, qkv: torch.Tensor) -> torch.Tensor:
        batch, time, _ = qkv.shape
        return qkv.view(batch, time, 3, SHAPE.heads, -1).permute(2, 0, 3, 1, 4)


class TinyModel(transformers.PreTrainedModel, transformers.GenerationMixin):
    """The model as TRL trains it."""

    config_class = TinyConfig
    base_model_prefix = "model"

    def __init__(self, config: TinyConfig, weights: dict[str, Any]) -> None:
        super().__init__(config)
        self.model = TinyBackbone(config, {name: value for name, value in weights.items() if name != "output"})
        self.lm_head = torch.nn.Linear(SHAPE.width, SHAPE.vocabulary, bias=False)
        self.lm_head.weight = torch.nn.Parameter(torch.tensor(weights["output"].T.copy()))
        self.generation_config = transformers.GenerationConfig()

    def forward(self, input_ids: torch.Tensor, **inputs: Any) -> Any:
        hidden = self.model(input_ids, **inputs).last_hidden_state
        return transformers.modeling_outputs.CausalLMOutput(logits=self.lm_head(hidden))

    def get_output_embeddings(self) -> torch.nn.Linear:
        return self.lm_head

    def numpy_weights(self) -> dict[str, Any]:
        found = {name.replace("_", "."): value for name, value in self.model.weights.items()}
        found["output"] = self.lm_head.weight.T
        return {name: value.detach().to(torch.float64).numpy().copy() for name, value in found.items()}


def _normalize(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


class GymRollouts:
    """A `rollout_func`. The trainer lists every prompt as often as it wants it played."""

    def __init__(self, weights: Path, head: Any) -> None:
        self._weights, self._head, self._calls = weights, head, 0
        self.rewards: list[float] = []

    def __call__(self, prompts: list[str], trainer: Any) -> dict[str, list[Any]]:
        save_weights(self._weights, Network(SHAPE, trainer.model.numpy_weights()), self._calls)
        self._calls += 1
        results, failed = collect(iter(self._rows(prompts)), self._head)
        if failed:
            raise RuntimeError(f"{failed} rollouts have no result")
        samples = [samples_of(result)[0] for _, result in sorted(results, key=lambda pair: pair[0])]
        self.rewards.append(float(np.mean([sample.reward for sample in samples])))
        return columns(map(trl_sample, samples))

    def _rows(self, prompts: list[str]) -> list[dict[str, Any]]:
        tools = rows_of(f"{COUNTER}/data/example.jsonl")[0]["responses_create_params"]["tools"]
        numbers = [int(re.findall(r"\d+", prompt)[0]) for prompt in prompts]
        return [
            agent_row(prompt, tools, start=0, number=number, seed=self._calls * 100_000 + at, group=at)
            for at, (prompt, number) in enumerate(zip(prompts, numbers, strict=True))
        ]


def environment_reward(reward: list[float], **_: Any) -> list[float]:
    """What the environment said."""
    return reward


def tokenizer() -> transformers.PreTrainedTokenizerFast:
    model = Tokenizer(WordLevel(ID_OF, unk_token=UNKNOWN))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=model, pad_token=PAD, eos_token=END, unk_token=UNKNOWN
    )


def make_trainer(rollouts: GymRollouts, network: Network, settings: Settings, folder: str) -> trl.GRPOTrainer:
    config = trl.GRPOConfig(
        output_dir=folder,
        max_steps=settings.steps,
        num_generations=settings.group_size,
        per_device_train_batch_size=settings.groups * settings.group_size,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="constant",
        adam_beta2=0.99,
        seed=settings.seed,
        beta=0.0,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to=[],
        save_strategy="no",
        logging_steps=10,
    )
    chance = np.random.default_rng(settings.seed)
    prompts = [prompt_of(int(chance.integers(1, 10)), ASKS[chance.integers(len(ASKS))]) for _ in range(512)]
    return trl.GRPOTrainer(
        model=TinyModel(TinyConfig(), network.weights).float(),
        reward_funcs=environment_reward,
        args=config,
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        processing_class=tokenizer(),
        rollout_func=rollouts,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the tiny model with TRL on the counter environment.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=200)
    arguments = parser.parse_args()
    settings = Settings(seed=arguments.seed, steps=arguments.steps)
    network = Network(SHAPE, initial_weights(SHAPE, settings.seed))
    warm_up(network, settings)
    with TemporaryDirectory() as folder:
        weights = Path(folder) / "weights.npz"
        save_weights(weights, network, 0)
        with running_servers(weights) as head:
            rollouts = GymRollouts(weights, head)
            make_trainer(rollouts, network, settings, folder).train()
    for at in range(0, len(rollouts.rewards), 10):
        print(f"step {at + 1:4} reward {np.mean(rollouts.rewards[at : at + 10]):.3f}")


if __name__ == "__main__":
    main()
