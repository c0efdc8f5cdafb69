"""Read the tokens of recorded items, as `tests/servers/responses_api_models/token_model` gives them."""

import itertools
from collections.abc import Iterable
from typing import Any, NamedTuple


class Generation(NamedTuple):
    """One call of the model; a token is a character."""

    prompt: str
    text: str


def generations(items: Iterable[dict[str, Any]]) -> list[Generation]:
    """All calls of the model, in order."""
    found = [item for item in items if item.get("generation_token_ids") is not None]
    assert all(len(item["generation_log_probs"]) == len(item["generation_token_ids"]) for item in found)
    return [Generation(_text(item["prompt_token_ids"]), _text(item["generation_token_ids"])) for item in found]


def is_one_sequence(calls: list[Generation]) -> bool:
    """True if each prompt begins with the prompt and the generation before it."""
    return all(after.prompt.startswith(before.prompt + before.text) for before, after in itertools.pairwise(calls))


def _text(ids: list[int]) -> str:
    return "".join(map(chr, ids))
