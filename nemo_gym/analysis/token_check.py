"""Prove that the tokens of a rollout are one growing sequence: each turn's prompt begins with all that came before.

A trainer concatenates the turns; where a prompt was tokenized anew, it would train on tokens nobody generated.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, NamedTuple

import orjson

from nemo_gym.config.keys import TASK_INDEX_FIELD
from nemo_gym.llm_api.base import JsonObject
from nemo_gym.rollouts.types import REPEAT_INDEX_KEY_NAME

_FIELDS = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")


class Turn(NamedTuple):
    """One generation."""

    prompt: list[int]
    generation: list[int]
    log_probs: list[float]


@dataclass(slots=True)
class TokenReport:
    """What was found in a file."""

    rollouts: int = 0
    turns: int = 0
    faults: list[str] = field(default_factory=list)
    """One line for each turn that does not hold, naming the row, the turn and the first token."""


def check_tokens(lines: Iterable[bytes]) -> TokenReport:
    """Check every rollout of a file, given line by line."""
    report = TokenReport()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        report.rollouts += 1
        try:
            record = orjson.loads(line)
            turns = list(turns_of(record["response"]["output"]))
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            report.faults.append(f"line {number}: no rollout with tokens in it ({error!r})")
            continue
        report.turns += len(turns)
        place = f"line {number}{_named(record)}"
        report.faults += [f"{place}, {fault}" for fault in faults_of(turns)]
    return report


def turns_of(output: Iterable[JsonObject]) -> Iterator[Turn]:
    """The generations of a rollout. An item with some of the fields must have all of them."""
    for item in output:
        if any(item.get(name) is not None for name in _FIELDS):
            yield Turn(*(list(item[name]) for name in _FIELDS))


def faults_of(turns: Iterable[Turn]) -> Iterator[str]:
    """What does not hold, turn by turn."""
    so_far: list[int] = []
    for number, turn in enumerate(turns, 1):
        if turn.prompt[: len(so_far)] != so_far:
            pairs = zip_longest(so_far, turn.prompt)
            index, (expected, found) = next((at, pair) for at, pair in enumerate(pairs) if pair[0] != pair[1])
            there = "missing" if found is None else str(found)
            yield f"turn {number}: token {index} of the prompt is {there}, expected {expected} as in turn {number - 1}"
        spoken, scored = len(turn.generation), len(turn.log_probs)
        if spoken != scored:
            yield f"turn {number}: {spoken} tokens were generated, but {scored} have log-probs"
        so_far = turn.prompt + turn.generation


def _named(record: Any) -> str:
    marks = [f"{key} {record[key]}" for key in (TASK_INDEX_FIELD, REPEAT_INDEX_KEY_NAME) if key in record]
    return f" ({', '.join(marks)})" if marks else ""
