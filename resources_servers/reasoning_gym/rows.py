"""Rows of a dataset of reasoning-gym, at its own difficulty or at a level of its curriculum.

`python -m resources_servers.reasoning_gym.rows leg_counting --count 100 --seed 1 --level 2 > rows.jsonl`
"""

import argparse
import json
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

from nemo_gym.episodes import import_extra
from nemo_gym.errors import ConfigError
from resources_servers.reasoning_gym.notation import is_readable

MAX_TRIES = 4
"""Rows to make for each that is wanted."""
INSTRUCTION = "Think, then give your final answer between <answer> and </answer>."


def dataset_rows(name: str, *, seed: int, count: int, level: int | None = None, **config: Any) -> Iterator[Any]:
    """Yield rows of a dataset. `level` sets all attributes of its curriculum, from 0; `config` is passed on. Left out
    are rows whose gold answer is no answer, such as an integral that the dataset cannot solve."""
    dataset = make_dataset(name, seed=seed, size=count * MAX_TRIES, level=level, **config)
    answered = (each for each in dataset if each["answer"] is None or is_readable(each["answer"], each, name))
    for entry in islice(answered, count):
        messages = [{"role": "system", "content": INSTRUCTION}, {"role": "user", "content": entry["question"]}]
        made = {name: entry[name] for name in ("question", "answer", "metadata")}
        yield {"responses_create_params": {"input": messages}, **json.loads(json.dumps(made, default=str))}


def make_dataset(name: str, *, seed: int, size: int, level: int | None, **config: Any) -> Any:
    factory = import_extra("reasoning_gym.factory", extra="reasoning-gym")
    if name not in factory.DATASETS:
        raise ConfigError(f"reasoning-gym has no dataset {name!r}. There are: {', '.join(sorted(factory.DATASETS))}.")
    if level is None:
        return factory.create_dataset(name, seed=seed, size=size, **config)
    if not factory.has_curriculum(name):
        raise ConfigError(f"The dataset {name!r} has no curriculum. Leave out the level.")
    try:
        return _dataset_at_level(factory, name, level, {"seed": seed, "size": size, **config})
    except (AssertionError, ValueError) as error:
        raise ConfigError(f"reasoning-gym has no level {level} of {name!r}: {error}. Choose another level.") from error


def _dataset_at_level(factory: Any, name: str, level: int, config: dict[str, Any]) -> Any:
    curriculum = factory.create_curriculum(name)
    for attribute, described in curriculum.attributes.items():
        curriculum.set_attr_level(attribute, min(level, len(described.levels) - 1))
    kind, _ = factory.DATASETS[name]
    return kind(curriculum.generate_configuration(config))


def main() -> None:
    parser = argparse.ArgumentParser(description="Write rows of a dataset of reasoning-gym.")
    parser.add_argument("dataset")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--level", type=int, help="level of the dataset's curriculum, from 0")
    given = parser.parse_args()
    try:
        for row in dataset_rows(given.dataset, seed=given.seed, count=given.count, level=given.level):
            sys.stdout.write(json.dumps(row) + "\n")
    except ConfigError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
