"""Rows of OpenAI's evals that are compared as texts, from the package evals."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import yaml

from nemo_gym.common.paths import nearest
from nemo_gym.data.hubs.pypi import Members
from nemo_gym.errors import ConfigError

SPECS, DATA = "evals/registry/evals/", "evals/registry/data/"
BASIC = "evals.elsuite.basic."
MATCH = {
    f"{BASIC}match:Match": "starts_with",
    f"{BASIC}includes:Includes": "includes",
    f"{BASIC}fuzzy_match:FuzzyMatch": "fuzzy",
    f"{BASIC}json_match:JsonMatch": "json",
}
ROLES = frozenset(("user", "assistant", "system", "developer"))
MAX_NAMES = 20


class Spec(NamedTuple):
    """One eval of the package."""

    match: str
    arguments: Mapping[str, Any]


def rows(members: Members, category: str | None = None) -> Iterator[dict[str, Any]]:
    """One row for each sample of an eval, or of all whose names begin with `category` and a dot."""
    known = specs(members)
    for name in chosen(list(known), category):
        yield from eval_rows(members, name, known[name])


def specs(members: Members) -> dict[str, Spec]:
    """The evals that can be played: their data are in the package."""
    there, found = set(members.names), dict[str, Spec]()
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    for file in sorted(name for name in there if name.startswith(SPECS)):
        for name, spec in (yaml.load(members.read(file), loader) or {}).items():
            match = MATCH.get(spec.get("class", "")) if isinstance(spec, dict) else None
            if match is not None and DATA + spec["args"]["samples_jsonl"] in there:
                found[name] = Spec(match, spec["args"])
    return found


def chosen(known: list[str], wanted: str | None) -> list[str]:
    if wanted is None:
        raise ConfigError(
            f"There are {len(known)} evals with 919,000 samples. Choose one with --category, such as "
            f"{known[0]}. --category logic, or another word, shows the names that contain it."
        )
    found = [name for name in known if name == wanted or name.startswith(f"{wanted}.")]
    if not found:
        similar = [name for name in known if wanted.lower() in name.lower()]
        more = f" and {len(similar) - MAX_NAMES} more" if len(similar) > MAX_NAMES else ""
        listed = f" Names that contain it: {', '.join(similar[:MAX_NAMES])}{more}." if similar else ""
        raise ConfigError(f"There is no eval '{wanted}'.{listed or nearest(wanted, known)}")
    return found


def eval_rows(members: Members, name: str, spec: Spec) -> Iterator[dict[str, Any]]:
    """The samples of an eval. One that every answer would solve, or that is not made of texts, is left out."""
    shots = few_shots(members, spec.arguments)
    for number, sample in enumerate(members.json_lines(DATA + spec.arguments["samples_jsonl"])):
        messages = messages_of(sample.get("input"))
        ideals = sample.get("ideal")
        ideals = ideals if isinstance(ideals, list) else [ideals]
        is_text = all(isinstance(each, str) for each in ideals)
        if (
            messages is None
            or not ideals
            or not is_text
            or ("" in ideals and spec.match in ("starts_with", "includes"))
        ):
            continue
        ideal = ideals[0] if len(ideals) == 1 else ideals
        yield {
            "responses_create_params": {"input": [*messages[:-1], *shots, *messages[-1:]]},
            "id": f"{name}/{number}",
            "category": name,
            "match": spec.match,
            "ideal": ideal,
            "ignore_case": bool(spec.arguments.get("ignore_case")),
        }


def few_shots(members: Members, arguments: Mapping[str, Any]) -> list[dict[str, str]]:
    """The examples that go before the last message."""
    count = arguments.get("num_few_shot") or 0
    lines = members.json_lines(DATA + arguments["few_shot_jsonl"]) if count else iter(())
    return [
        message for _, line in zip(range(count), lines, strict=False) for message in messages_of(line["sample"]) or ()
    ]


def messages_of(given: Any) -> list[dict[str, str]] | None:
    """The messages of a prompt; None if they are not all texts of known roles."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        return None
    found = [{"role": each.get("role"), "content": each.get("content")} for each in given]
    is_right = all(each["role"] in ROLES and isinstance(each["content"], str) for each in found)
    return found if is_right else None
