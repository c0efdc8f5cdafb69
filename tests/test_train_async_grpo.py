"""The asynchronous training example in short form: it goes on from its checkpoint, and no group is too old."""

from pathlib import Path

from examples.train_async_grpo import train
from examples.train_grpo import Settings


def test_training_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    short = {"groups": 2, "group_size": 4, "warm_up_steps": 40}
    first = [*train(tmp_path, Settings(steps=2, **short))]
    second = [*train(tmp_path, Settings(steps=4, **short))]
    assert [point["step"] for point in (*first, *second)] == [1, 2, 3, 4]
    assert all(0 <= point["staleness"] <= 2 and 0 <= point["reward"] <= 1 for point in (*first, *second))
