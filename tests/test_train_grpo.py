"""The training example in short form: weights change with every step, and tokens are those of the server."""

import numpy as np

from examples.plot_curves import plot
from examples.train_grpo import Settings, improve, make_rows, train
from nemo_gym.training import FlatTokens, Group, TrainingSample
from responses_api_models.tiny_policy.network import Adam, Network, initial_weights
from responses_api_models.tiny_policy.sampler import SHAPE
from responses_api_models.tiny_policy.vocabulary import ID_OF, encode_messages

SHORT = Settings(seed=0, steps=3, groups=2, group_size=8, warm_up_steps=40)


def test_every_step_is_sampled_from_the_weights_of_the_step_before() -> None:
    steps = list(train(SHORT))
    assert [step.policy_versions for step in steps] == [[0], [1], [2]]
    assert [step.failed for step in steps] == [0, 0, 0]
    assert all(step.max_ratio_error < 1e-6 for step in steps)
    assert all(0 <= step.reward <= 1 for step in steps)


def test_a_rewarded_token_becomes_likelier() -> None:
    network = Network(SHAPE, initial_weights(SHAPE, 0))
    optimizer = Adam(network.weights, rate=1e-3)
    prompt = encode_messages([{"role": "user", "content": "Add 3, and read the counter."}])
    before = network.next_log_probs(prompt)
    good, bad = ID_OF["+"], ID_OF["."]
    samples = [
        _sample(prompt, token, float(before[token]), advantage) for token, advantage in ((good, 1.0), (bad, -1.0))
    ]
    group = Group("a", [1.0, 0.0], [1.0, -1.0], [[sample] for sample in samples])
    assert improve(network, optimizer, [group]) < 1e-9
    after = network.next_log_probs(prompt)
    assert after[good] > before[good]
    assert after[bad] < before[bad]


def _sample(prompt: list[int], token: int, log_prob: float, advantage: float) -> TrainingSample:
    mask, log_probs = [0] * len(prompt) + [1], [0.0] * len(prompt) + [log_prob]
    return TrainingSample(FlatTokens([*prompt, token], mask, log_probs, len(prompt)), 0.0, advantage=advantage)


def test_rows_are_the_same_for_the_same_seed() -> None:
    assert list(make_rows(4, SHORT)) == list(make_rows(4, SHORT))
    seeds = [row["responses_create_params"]["metadata"]["seed"] for row in make_rows(4, SHORT)]
    assert len(set(seeds)) == len(seeds) == 16


def test_curves_are_drawn() -> None:
    drawn = plot({"seed 0": [0.0, 0.5, 1.0], "seed 1": list(np.linspace(0, 1, 7))}, title="a < b")
    assert drawn.count("<polyline") == 4
    assert "a &lt; b" in drawn
    assert "seed 1" in drawn
