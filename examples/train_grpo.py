"""Train a tiny model with GRPO on an environment, on the CPU, with numpy alone.

`make train-demo` runs it. docs/training.md shows the learning curves of three seeds, and how they were made.

The model server serves the weights that are being trained: after every step the trainer writes them to a file, and the
next request is sampled from them. Rollouts come from `run_examples` with the token ids and log-probs that the server
sampled; the trainer never tokenizes anything.
"""

import argparse
import contextlib
import json
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from omegaconf import DictConfig

from nemo_gym import BaseServerConfig
from nemo_gym.cli import GlobalConfigDictParserConfig, RunHelper
from nemo_gym.config.keys import HEAD_SERVER_KEY_NAME
from nemo_gym.errors import RolloutError
from nemo_gym.rollouts.collector import RolloutCollectionHelper
from nemo_gym.testing import rows_of
from nemo_gym.training import Group, TrainingSample, make_groups
from responses_api_models.tiny_policy.network import Adam, Array, Ids, Network, initial_weights
from responses_api_models.tiny_policy.sampler import SHAPE, save_weights
from responses_api_models.tiny_policy.vocabulary import END, ID_OF, MODEL, TOOL, encode_messages, encode_text

COUNTER = "resources_servers/example_stateful_counter"
AGENT = "stateful_counter_simple_agent"
ASKS = ("and tell me what the counter says.", "and read the counter.", "and tell me the count.")
CLIP = 0.2
RIGHT_SHARE = 0.25
"""Share of the imitated transcripts that have the correct number on purpose."""


@dataclass(frozen=True)
class Settings:
    """Training options."""

    seed: int = 0
    steps: int = 100
    groups: int = 8
    """Prompts per step."""
    group_size: int = 16
    """Rollouts per prompt."""
    learning_rate: float = 5e-3
    warm_up_steps: int = 500
    warm_up_batch: int = 64
    warm_up_rate: float = 3e-3
    """With less imitation the model may ignore the number in the prompt, and its rewards are chance."""


@dataclass(frozen=True, slots=True)
class Step:
    """One point of the learning curve."""

    step: int
    reward: float
    policy_versions: list[Any]
    """Version of the weights that sampled the rollouts."""
    max_ratio_error: float
    """Maximum relative difference of the probability of a sampled token between server and trainer."""
    failed: int
    """Rollouts without a result."""


def prompt_of(number: int, ask: str) -> str:
    return f"Add {number}, {ask}"


def make_rows(step: int, settings: Settings) -> Iterator[dict[str, Any]]:
    """Return the rows of one step: every prompt `group_size` times, each with its own sampling seed."""
    chance = np.random.default_rng([settings.seed, step])
    tools = rows_of(f"{COUNTER}/data/example.jsonl")[0]["responses_create_params"]["tools"]
    for group in range(settings.groups):
        number, start = int(chance.integers(1, 10)), int(chance.integers(0, 20))
        prompt = prompt_of(number, ASKS[chance.integers(len(ASKS))])
        for _ in range(settings.group_size):
            seed = int(chance.integers(2**31))
            yield agent_row(prompt, tools, start=start, number=number, seed=seed, group=group)


def agent_row(
    prompt: str, tools: list[dict[str, Any]], *, start: int, number: int, seed: int, group: int
) -> dict[str, Any]:
    """A row of the counter environment for `run_examples`. `metadata.seed` is the sampling seed."""
    return {
        "responses_create_params": {
            "input": [{"role": "user", "content": prompt}],
            "tools": tools,
            "metadata": {"seed": str(seed)},
        },
        "initial_count": start,
        "expected_count": start + number,
        "agent_ref": {"type": "responses_api_agents", "name": AGENT},
        "_group": group,
    }


def warm_up(network: Network, settings: Settings) -> None:
    """Imitate transcripts in the correct format, few with the correct number. This stands in for pretraining."""
    chance, optimizer = np.random.default_rng(settings.seed), Adam(network.weights, rate=settings.warm_up_rate)
    for _ in range(settings.warm_up_steps):
        pairs = [_transcript(chance) for _ in range(settings.warm_up_batch)]
        ids, mask = _padded([ids for ids, _ in pairs]), _padded([mask for _, mask in pairs])
        optimizer.step(network.weights, network.gradients(ids, mask[:, 1:] / mask.sum()))


def _transcript(chance: np.random.Generator) -> tuple[list[int], list[int]]:
    asked, called = chance.integers(1, 10, size=2)
    if chance.random() < RIGHT_SHARE:
        called = asked
    prompt = prompt_of(int(asked), ASKS[chance.integers(len(ASKS))])
    ids = encode_messages([{"role": "user", "content": prompt}])
    mask = [0] * len(ids)
    result = [ID_OF[TOOL], *encode_text("success true"), ID_OF[MODEL]]
    for text, trained in (
        ([*encode_text(f"+{called}"), ID_OF[END]], 1),
        (result, 0),
        ([*encode_text("."), ID_OF[END]], 1),
    ):
        ids, mask = [*ids, *text], [*mask, *[trained] * len(text)]
    return ids, mask


def _padded(rows: list[list[Any]]) -> Any:
    longest = max(map(len, rows))
    return np.array([[*row, *[0] * (longest - len(row))] for row in rows])


def improve(network: Network, optimizer: Adam, groups: list[Group]) -> float:
    """One step of GRPO with a clipped ratio. Returns the largest relative difference between the probabilities of
    tokens here and in the server; on the policy's own samples it is rounding alone."""
    samples = [sample for group in groups if group.has_signal for sample in group.samples]
    if not samples:
        return 0.0
    ids: Ids = _padded([sample.tokens.ids for sample in samples])
    mask, old = _targets(samples, "loss_mask"), _targets(samples, "log_probs")
    advantages = np.array([sample.advantage for sample in samples])[:, None]
    ratio = np.where(mask > 0, np.exp(_chosen_log_probs(network, ids) - old), 1.0)
    is_clipped = np.where(advantages > 0, ratio > 1 + CLIP, ratio < 1 - CLIP)
    coefficients = advantages * ratio * mask * ~is_clipped / mask.sum()
    optimizer.step(network.weights, network.gradients(ids, coefficients))
    return float(np.abs(ratio - 1).max())


def _targets(samples: list[TrainingSample], name: str) -> Array:
    """A list of the tokens, for each token but the first: the first is never predicted."""
    values: Array = _padded([getattr(sample.tokens, name) for sample in samples])[:, 1:].astype(np.float64)
    return values


def _chosen_log_probs(network: Network, ids: Ids) -> Array:
    predicted = network.log_probs(ids[:, :-1])
    row, column = np.indices(ids[:, 1:].shape)
    result: Array = predicted[row, column, ids[:, 1:]]
    return result


def config_of(weights: Path, *more_paths: str) -> dict[str, Any]:
    """The environment, the agent, and the model with these weights."""
    return {
        "config_paths": [
            f"{COUNTER}/configs/stateful_counter.yaml",
            "responses_api_models/tiny_policy/configs/tiny_policy.yaml",
            *more_paths,
        ],
        "policy_model": {"responses_api_models": {"tiny_policy": {"weights_fpath": str(weights)}}},
        AGENT: {"responses_api_agents": {"simple_agent": {"max_steps": 4}}},
    }


@contextlib.contextmanager
def running_servers(weights: Path) -> Iterator[BaseServerConfig]:
    """Start the environment, the agent and the model in separate processes."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = {**config_of(weights), HEAD_SERVER_KEY_NAME: {"host": "127.0.0.1", "port": port}}
    servers = RunHelper()
    servers.start(
        GlobalConfigDictParserConfig(
            initial_global_config_dict=DictConfig(config), skip_load_from_cli=True, skip_load_from_dotenv=True
        )
    )
    try:
        yield BaseServerConfig(host="127.0.0.1", port=port)
    finally:
        servers.shutdown()


def collect(rows: Iterator[dict[str, Any]], head: BaseServerConfig) -> tuple[list[tuple[int, dict[str, Any]]], int]:
    """Collect results with their groups, and the number of rollouts without a result."""
    results, failed = [], 0
    for future in RolloutCollectionHelper().run_examples(rows, head):
        try:
            row, result = future.result()
        except RolloutError:
            failed += 1
        else:
            results.append((row["_group"], result))
    return results, failed


def train(settings: Settings) -> Iterator[Step]:
    """Train from scratch, one step at a time."""
    network = Network(SHAPE, initial_weights(SHAPE, settings.seed))
    warm_up(network, settings)
    optimizer = Adam(network.weights, rate=settings.learning_rate)
    with TemporaryDirectory() as folder:
        weights = Path(folder) / "weights.npz"
        save_weights(weights, network, 0)
        with running_servers(weights) as head:
            for step in range(settings.steps):
                results, failed = collect(make_rows(step, settings), head)
                groups = make_groups(results)
                error = improve(network, optimizer, groups)
                save_weights(weights, network, step + 1)
                yield Step(step, _mean_reward(groups), _versions(groups), error, failed)


def _mean_reward(groups: list[Group]) -> float:
    return float(np.mean([reward for group in groups for reward in group.rewards]))


def _versions(groups: list[Group]) -> list[Any]:
    return sorted({version for group in groups for each in group.samples for version in each.tokens.policy_versions})


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a tiny model with GRPO on the counter environment.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=Settings.steps)
    parser.add_argument("--output", type=Path, help="write the learning curve, one JSON object per step")
    arguments = parser.parse_args()
    started = time.monotonic()
    rewards: list[float] = []
    with contextlib.ExitStack() as opened:
        output = opened.enter_context(arguments.output.open("w")) if arguments.output else None
        for step in train(Settings(seed=arguments.seed, steps=arguments.steps)):
            rewards.append(step.reward)
            if output:
                print(json.dumps({"seed": arguments.seed, **asdict(step)}), file=output, flush=True)
            if step.step % 10 == 9 or step.step == 0:
                mean = float(np.mean(rewards[-10:]))
                passed = f"{time.monotonic() - started:4.0f} s"
                print(f"step {step.step + 1:4} {passed}  reward {mean:.3f} {'#' * round(40 * mean)}", flush=True)


if __name__ == "__main__":
    main()
