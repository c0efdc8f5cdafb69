"""Answers that are compared as texts: by their beginning, by what is in them, roughly, or as JSON."""

import json
import re
import string
from collections.abc import Callable
from typing import Any, Literal

from nemo_gym import JsonObject
from nemo_gym.answers import joined_text, without_thinking
from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    ReverifyMode,
    SimpleResourcesServer,
)

Match = Literal["starts_with", "includes", "fuzzy", "json", "exact"]
MAX_JSON_CHARS = 1_000_000
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


class StringMatchConfig(BaseResourcesServerConfig, extra="forbid"):
    REVERIFY_MODE = ReverifyMode.STATELESS


class StringMatchVerifyRequest(BaseVerifyRequest):
    match: Match
    ideal: str | list[str]
    """The right answer, or all that are right."""
    ignore_case: bool = False
    """Only for `includes`."""
    category: str = ""


class StringMatchResourcesServer(SimpleResourcesServer):
    config: StringMatchConfig

    @classmethod
    def check_row(cls, row: JsonObject) -> None:
        """Refuse a row that any answer solves, or none."""
        match, ideals = row["match"], ideals_of(row["ideal"])
        if not ideals:
            raise ValueError("ideal is an empty list: no answer can be right")
        if match in ("starts_with", "includes") and "" in ideals:
            raise ValueError(f"ideal is an empty text: with match {match}, every answer is right")
        if match == "json" and not any(_is_comparable(each) for each in ideals):
            raise ValueError("ideal is no JSON without null: no answer can be right")

    async def verify(self, body: StringMatchVerifyRequest) -> float:
        answer = without_thinking(joined_text(body.response))
        return float(is_right(answer, body.match, body.ideal, ignore_case=body.ignore_case))

    @classmethod
    def gold_response(cls, row: JsonObject) -> str:
        return ideals_of(row["ideal"])[0]


def is_right(answer: str, match: Match, ideal: str | list[str], *, ignore_case: bool = False) -> bool:
    """True if an answer fits one of the ideals."""
    ideals = ideals_of(ideal)
    if ignore_case and match == "includes":
        answer, ideals = answer.lower(), [each.lower() for each in ideals]
    return any(RULES[match](answer, each) for each in ideals)


def ideals_of(ideal: str | list[str]) -> list[str]:
    return [ideal] if isinstance(ideal, str) else ideal


def fuzzy(answer: str, ideal: str) -> bool:
    """True if one is in the other, without case, punctuation and articles. An empty text is only equal to another."""
    one, other = simplified(answer), simplified(ideal)
    return one == other if not one or not other else one in other or other in one


def simplified(text: str) -> str:
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def is_same_json(answer: str, ideal: str) -> bool:
    """True if both are JSON with the same keys and lists. null is equal to nothing."""
    try:
        return len(answer) <= MAX_JSON_CHARS and is_equal(json.loads(answer), json.loads(ideal))
    except (ValueError, RecursionError):
        return False


def is_equal(value: Any, other: Any) -> bool:
    if value is None or other is None:
        return False
    if isinstance(value, dict) and isinstance(other, dict):
        return value.keys() == other.keys() and all(is_equal(each, other[key]) for key, each in value.items())
    if isinstance(value, list) and isinstance(other, list):
        return len(value) == len(other) and all(map(is_equal, value, other))
    return not isinstance(value, dict | list) and bool(value == other)


def _is_comparable(ideal: str) -> bool:
    return is_same_json(ideal, ideal)


RULES: dict[Match, Callable[[str, str], bool]] = {
    "starts_with": str.startswith,
    "includes": str.__contains__,
    "fuzzy": fuzzy,
    "json": is_same_json,
    "exact": str.__eq__,
}


if __name__ == "__main__":
    StringMatchResourcesServer.run_webserver()
