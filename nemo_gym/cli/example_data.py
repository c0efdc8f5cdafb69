"""Check the example data of an environment."""

from pathlib import Path
from typing import Any

import orjson

from nemo_gym.base_resources_server import BaseRunRequest
from nemo_gym.common.words import json_type
from nemo_gym.config.error_messages import validate
from nemo_gym.errors import ConfigError

MIN_EXAMPLES = 5
"""Enough to see what the data is like, few enough to read."""


def data_problems(folder: Path) -> list[str]:
    """The problems of the folder's `data`, one message each."""
    data = folder / "data"
    problems = _example_problems(data / "example.jsonl")
    problems += _metrics_problems(data / "example_metrics.json", data / "example.jsonl")
    problems += _rollouts_problems(data / "example_rollouts.jsonl")
    return problems + [
        f"Found {file}, expected no conflict: the metrics of the data changed since they were written. "
        "Compare it with the file it conflicts with, keep the correct one, and delete this file."
        for file in sorted(data.glob("*conflict*"))
    ]


def _example_problems(file: Path) -> list[str]:
    remedy = "Copy the first rows of the training data into it."
    if not file.is_file():
        return [f"No {file}, expected at least {MIN_EXAMPLES} example rows. {remedy}"]
    lines = _lines(file)
    problems = [problem for number, line in lines if (problem := _row_problem(line, f"{file}, line {number}"))]
    if len(lines) < MIN_EXAMPLES:
        problems.append(f"Found {len(lines)} rows in {file}, expected at least {MIN_EXAMPLES}. {remedy}")
    return problems


def _row_problem(line: bytes, place: str) -> str | None:
    try:
        row = _json_object(line, place)
        validate(BaseRunRequest, row, what=place)
    except ConfigError as error:
        return str(error)
    return None


def _metrics_problems(file: Path, examples: Path) -> list[str]:
    if not file.is_file() or not examples.is_file():
        return []
    try:
        found = _json_object(file.read_bytes(), str(file)).get("Number of examples")
    except ConfigError as error:
        return [str(error)]
    expected = len(_lines(examples))
    if found == expected:
        return []
    return [
        f"Found {found!r} as 'Number of examples' in {file}, expected {expected}, the rows of {examples.name}. "
        "Delete the file and generate it again."
    ]


def _rollouts_problems(file: Path) -> list[str]:
    if not file.is_file():
        return []
    rollouts = len(_lines(file))
    if rollouts >= MIN_EXAMPLES:
        return []
    return [
        f"Found {rollouts} rollouts in {file}, expected at least {MIN_EXAMPLES}. "
        "Collect them again from example.jsonl with ng_collect_rollouts."
    ]


def _lines(file: Path) -> list[tuple[int, bytes]]:
    """The lines that are not blank, with their numbers."""
    return [(number, line) for number, line in enumerate(file.read_bytes().splitlines(), 1) if line.strip()]


def _json_object(text: bytes, place: str) -> dict[str, Any]:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"{place}: not valid JSON: {error}.") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{place}: found {json_type(value)}, expected a JSON object.")
    return value
