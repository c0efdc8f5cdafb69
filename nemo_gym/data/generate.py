"""Generate datasets from a seed, without a download, with the `generate_rows` of an environment.

Train and validation rows are two parts of one run without equal prompts, so they are disjoint. Nothing is written
before the environment's verifier has given the gold responses the full reward.
"""

import asyncio
import importlib
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import combinations, islice
from pathlib import Path
from random import Random
from typing import NamedTuple

import orjson
from omegaconf import DictConfig
from pydantic import Field

from nemo_gym.analysis.gold import Gold, gold_finder
from nemo_gym.analysis.reverify import verify_items
from nemo_gym.client.server_client import ServerClient
from nemo_gym.common import event_loop
from nemo_gym.common.atomic_files import atomic_write, check_writable
from nemo_gym.common.paths import find, make_importable
from nemo_gym.config.command_options import CommandConfig
from nemo_gym.config.loading import ServerSpec, load_config, server_instances
from nemo_gym.data.row_check import BadRowError, RowCheck
from nemo_gym.errors import ConfigError, GymError, RolloutError
from nemo_gym.llm_api.base import JsonObject
from nemo_gym.runtime.connect import connect_servers
from nemo_gym.server.tools import default_tools, with_tools
from nemo_gym.server.watchdog import interruptible

GENERATOR = "generate.py"
JUDGE_CONFIG = "responses_api_models/scripted_model/configs/scripted_model.yaml"
"""Replaces every model that an environment refers to. Gold responses need no model."""
VERIFIED_AT_ONCE = 16
VERIFY_TIMEOUT_S = 120.0
FULL_REWARD = 1.0

GenerateRows = Callable[[int, int, int], Iterator[JsonObject]]


class GenerateDataConfig(CommandConfig):
    """Generate train and validation data for an environment from a seed, without a download.

    Examples:

    ```bash
    ng_generate_data +entrypoint=resources_servers/mcqa +output_dirpath=data/mcqa +train_count=1000 +difficulty=2
    ```
    """

    entrypoint: str
    """The folder of the environment: resources_servers/<name>."""

    output_dirpath: str
    """The folder for train.jsonl and validation.jsonl."""

    train_count: int = Field(default=1000, ge=0)
    """Number of training rows."""

    validation_count: int = Field(default=100, ge=0)
    """Number of validation rows. They stay the same when train_count changes."""

    seed: int = 0
    """The same seed gives the same files."""

    difficulty: int = Field(default=1, ge=1, le=5)
    """From 1 (easy) to 5."""

    verify_limit: int | None = Field(default=None, ge=0)
    """Verify the gold responses of the first N rows only. All by default."""

    overwrite: bool = False
    """Overwrite existing files."""


class GoldResponseError(GymError):
    """The verifier does not give the gold response of a generated row the full reward."""


class GeneratedFile(NamedTuple):
    """A file that was written."""

    path: Path
    rows: int


class Generated(NamedTuple):
    """The files that were written, and the number of verified rows."""

    files: list[GeneratedFile]
    verified: int


def generate_data(config: GenerateDataConfig, folder: Path) -> Generated:
    """Generate the rows, verify them, and write them atomically."""
    output = Path(config.output_dirpath)
    counts = {"validation": config.validation_count, "train": config.train_count}
    paths = {kind: output / f"{kind}.jsonl" for kind, count in counts.items() if count}
    for path in paths.values():
        check_writable(path, overwrite=config.overwrite)
    total = config.train_count + config.validation_count
    with interruptible():
        rows = _checked(load_generator(folder)(config.seed, total, config.difficulty), folder)
        lines = [orjson.dumps(row) + b"\n" for row in rows]
    to_verify = [orjson.loads(line) for line in lines[: config.verify_limit]]
    if to_verify:
        event_loop.run_embedded(_verify(folder, to_verify))
    files, left = [], iter(lines)
    for kind, path in paths.items():
        with atomic_write(path) as file:
            file.writelines(islice(left, counts[kind]))
        files.append(GeneratedFile(path, counts[kind]))
    return Generated(files, len(to_verify))


def load_generator(folder: Path) -> GenerateRows:
    """Import `generate_rows` from an environment's folder."""
    if not (folder / GENERATOR).is_file():
        raise ConfigError(f"{folder} has no {GENERATOR}, so its rows cannot be generated.")
    make_importable(folder.parent.name, folder)
    module = importlib.import_module(f"{folder.parent.name}.{folder.name}.{Path(GENERATOR).stem}")
    generate: GenerateRows | None = getattr(module, "generate_rows", None)
    if generate is None:
        raise ConfigError(f"{folder / GENERATOR} defines no generate_rows(seed, count, difficulty).")
    return generate


def _checked(rows: Iterator[JsonObject], folder: Path) -> Iterator[JsonObject]:
    check = RowCheck()
    for index, row in enumerate(rows):
        try:
            check.read(orjson.dumps(row))
        except BadRowError as error:
            raise GymError(f"Row {index} of {folder / GENERATOR} is not valid: {error}") from None
        yield row


async def _verify(folder: Path, rows: Sequence[JsonObject]) -> None:
    config, environment = _environment_of(folder)
    async with connect_servers(config) as client:
        golds_of = gold_finder(environment)
        indexed, tools = iter(enumerate(rows)), await default_tools(client, environment.name)

        async def worker() -> None:
            for index, row in indexed:
                await _check_gold(client, environment, index, with_tools(row, tools), golds_of(row))

        async with asyncio.TaskGroup() as workers:
            for _ in range(VERIFIED_AT_ONCE):
                workers.create_task(worker())


def _environment_of(folder: Path) -> tuple[DictConfig, ServerSpec]:
    """Return the configuration that starts the environment of a folder: the one with the folder's name, else the
    first.

    A configuration for an alias of the folder is not used."""
    for path in sorted((folder / "configs").glob("*.yaml"), key=lambda path: (path.stem != folder.name, path.name)):
        config = load_config([f"+config_paths=[{path},{find(JUDGE_CONFIG)}]"], use_dotenv=False)
        for each in server_instances(config):
            if each.server_type == "resources_servers" and each.implementation == folder.name:
                return config, each
    raise ConfigError(f"No configuration in {folder / 'configs'} starts the resources server '{folder.name}'.")


async def _check_gold(
    client: ServerClient, environment: ServerSpec, index: int, row: JsonObject, golds: Sequence[Gold]
) -> None:
    """Raise GoldResponseError unless one of the gold responses gets the full reward."""
    name, found = environment.name, "no gold response is known"
    for gold in golds:
        try:
            record = await verify_items(
                client, name, row, gold.items, timeout_s=VERIFY_TIMEOUT_S, what=f"Verifying row {index}"
            )
        except RolloutError as error:
            found = str(error)
            continue
        if record.record["reward"] >= FULL_REWARD:
            return
        found = f"its gold response has the reward {record.record['reward']}"
    raise GoldResponseError(f"Row {index} for '{name}' is not usable: {found}. Nothing was written.")


EASIEST, HARDEST = 1, 5
MAX_TRIES = 200
"""After this many consecutive duplicates the generator counts as exhausted."""

MakeRow = Callable[[Random, int], JsonObject]
"""Makes a row from a source of randomness and a difficulty from 1 to 5."""


def difficulty_level(difficulty: float | str | None) -> int:
    """Return a difficulty from 1 to 5; 1 by default."""
    if difficulty is None:
        return EASIEST
    try:
        level = int(difficulty)
        is_whole = level == float(difficulty)
    except (TypeError, ValueError, OverflowError):
        level, is_whole = 0, False
    if not is_whole or not EASIEST <= level <= HARDEST:
        raise ConfigError(
            f"difficulty={difficulty} is not valid. Expected a whole number from {EASIEST} to {HARDEST}."
        )
    return level


def distinct_rows(
    environment: str, make: MakeRow, *, seed: int, count: int, difficulty: float | str | None
) -> Iterator[JsonObject]:
    """Yield `count` rows with different prompts."""
    level = difficulty_level(difficulty)
    prompts: set[str] = set()
    tried = 0
    while len(prompts) < count:
        for _ in range(MAX_TRIES):
            row = make(Random(f"{environment} {seed} {level} {tried}"), level)
            tried += 1
            prompt = json.dumps(row["responses_create_params"]["input"])
            if prompt not in prompts:
                prompts.add(prompt)
                yield row
                break
        else:
            raise ConfigError(
                f"{environment} has only about {len(prompts)} different rows of difficulty {level}; expected {count}."
            )


def trivial_numbers(question: str) -> set[Fraction]:
    r"""Return the trivial answers to a question: 0, 1, every number in it, their sum and product, and the sum,
    difference, product and quotient of each two, with either sign. Numbers are digits and `\frac{1}{2}`."""
    given = [Fraction(digits) for digits in re.findall(r"\d+", question)]
    found = {Fraction(0), Fraction(1), *given, sum(given, Fraction(0)), math.prod(given, start=Fraction(1))}
    found |= {Fraction(int(up), int(down)) for up, down in re.findall(r"\\frac\{(\d+)\}\{([1-9]\d*)\}", question)}
    for one, other in combinations(given, 2):
        low, high = sorted((one, other))
        found |= {low + high, high - low, low * high, *((high / low, Fraction(high // low)) if low else ())}
    return found | {-number for number in found}
