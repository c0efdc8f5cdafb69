"""Train the tiny policy with asynchronous GRPO: `python -m examples.train_async_grpo FOLDER [SEED]`.

Two environments. Rollouts go on while a step is computed, so groups may be up to two policy versions old. Groups
without signal are dropped and refilled (DAPO). Every step is checkpointed: run the same command again to go on after
it was killed. docs/training.md shows the learning curve."""

import json
import pickle
import sys
from collections import deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from examples.train_grpo import AGENT, ASKS, COUNTER, Settings, agent_row, config_of, improve, prompt_of, warm_up
from nemo_gym.testing import rows_of
from nemo_gym.training import RolloutSession, Source, make_groups
from responses_api_models.tiny_policy.network import Adam, Network, initial_weights
from responses_api_models.tiny_policy.sampler import SHAPE, save_weights


def rows(agent: str, asks: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Rows without end, the same each time."""
    tools = rows_of(f"{COUNTER}/data/example.jsonl")[0]["responses_create_params"]["tools"]
    chance = np.random.default_rng(0)
    while True:
        number, start, ask = (int(chance.integers(*limits)) for limits in ((1, 10), (0, 20), (0, len(asks))))
        row = agent_row(prompt_of(number, asks[ask]), tools, start=start, number=number, seed=0, group=0)
        del row["responses_create_params"]["metadata"]  # the rollouts of a group are sampled independently
        yield {**row, "agent_ref": {"name": agent}}


def train(folder: Path, settings: Settings) -> Iterator[dict[str, Any]]:
    """Yield one point of the learning curve for each step that is not in the folder's checkpoint."""
    checkpoint, weights, seen = folder / "checkpoint.pickle", folder / "weights.npz", deque[float](maxlen=128)
    if checkpoint.exists():
        done, network, optimizer, state = pickle.loads(checkpoint.read_bytes())
    else:
        done, network, state = 0, Network(SHAPE, initial_weights(SHAPE, settings.seed)), None
        warm_up(network, settings)
        optimizer = Adam(network.weights, rate=settings.learning_rate)
    save_weights(weights, network, done)

    def has_signal(records: list[dict[str, Any]]) -> bool:
        seen.extend(record["reward"] for record in records)  # of groups without signal, too, for the learning curve
        return len({record["reward"] for record in records}) > 1

    sources = {"counter": Source(rows(AGENT, ASKS[:2]), weight=2.0)}
    sources["other_counter"] = Source(rows("other_counter_agent", ASKS[2:]))
    config, journal = config_of(weights, "examples/two_counters.yaml"), str(folder / "journal.jsonl")
    with RolloutSession(config, journal=journal, version=done) as session:
        options = {"group_size": settings.group_size, "max_in_flight": 128, "max_staleness": 2}
        stream = session.groups(sources, keep=has_signal, state=state, **options)
        groups = iter(stream)
        for step in range(done + 1, settings.steps + 1):
            taken = [*islice(groups, settings.groups)]
            improve(network, optimizer, make_groups((each.number, one) for each in taken for one in each.results))
            save_weights(weights, network, step)
            session.set_version(step)
            scratch = checkpoint.with_suffix(".new")
            scratch.write_bytes(pickle.dumps((step, network, optimizer, stream.state())))
            scratch.replace(checkpoint)
            staleness = max(group.staleness for group in taken)
            yield {"seed": settings.seed, "step": step, "reward": float(np.mean(seen)), "staleness": staleness}


if __name__ == "__main__":
    output, seed = Path(sys.argv[1]), int((sys.argv[2:] or ["0"])[0])
    output.mkdir(parents=True, exist_ok=True)
    with (output / "curve.jsonl").open("a") as curve:
        for point in train(output, Settings(steps=60, seed=seed)):
            print(json.dumps(point), file=curve, flush=True)
            print(point, flush=True)
