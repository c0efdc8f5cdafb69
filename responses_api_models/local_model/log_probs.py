"""Token ids of a generation with exactly one log-prob for each.

The engine reports log-probs only for tokens that end a character. Where a character takes several tokens, those of the
others are missing, and all of them if the reply is cut off inside it. They are computed afterwards, by asking for the
distribution that follows the tokens before them."""

from collections.abc import Sequence
from typing import NamedTuple

from nemo_gym import JsonObject
from nemo_gym.errors import UpstreamError
from responses_api_models.local_model.engine import Engine

_MOST_LIKELY, _ALL = 500, 10_000_000
"""Numbers of log-probs to ask for. Those of a whole vocabulary are megabytes, and rarely needed."""


class Alignment(NamedTuple):
    """Positions of the reported tokens among the generated ones."""

    places: list[int | None]
    """One for each reported token; None if it could be one of several."""
    end: int
    """The number of generated tokens up to the last reported one."""


async def token_fields(engine: Engine, prompt: list[int], generated: JsonObject) -> JsonObject:
    """The fields of a message that carry its tokens. The tokens of a stop word are not part of the reply."""
    reported: list[JsonObject] = generated.get("completion_probabilities") or []
    ids: list[int] = generated["tokens"]
    try:
        places, end = align([entry["id"] for entry in reported], ids)
    except ValueError as error:
        raise UpstreamError(
            engine.url, 200, f"log-probs of tokens that it did not generate: {error}", cause="model"
        ) from error
    if generated["stop_type"] == "word":
        ids = ids[:end]
    known = {place: entry["logprob"] for place, entry in zip(places, reported, strict=True)}
    log_probs = [
        known[place] if place in known else await _log_prob(engine, [*prompt, *ids[:place]], token)
        for place, token in enumerate(ids)
    ]
    return {"prompt_token_ids": prompt, "generation_token_ids": ids, "generation_log_probs": log_probs}


def align(reported: Sequence[int], ids: Sequence[int]) -> Alignment:
    """Find the reported tokens among all generated ones, in the same order. ValueError if they are not there."""
    first = _leftmost(reported, ids)
    last = [len(ids) - 1 - place for place in reversed(_leftmost(reported[::-1], ids[::-1]))]
    places = [one if one == other else None for one, other in zip(first, last, strict=True)]
    return Alignment(places, first[-1] + 1 if first else 0)


def _leftmost(reported: Sequence[int], ids: Sequence[int]) -> list[int]:
    """The first place where each reported token can be."""
    places: list[int] = []
    for token in reported:
        places.append(ids.index(token, places[-1] + 1 if places else 0))
    return places


async def _log_prob(engine: Engine, before: list[int], token: int) -> float:
    for count in (_MOST_LIKELY, _ALL):
        # The empty grammar ends the reply at once. Log-probs are those of the model, before any rule of sampling.
        request = {"prompt": before, "n_predict": 1, "n_probs": count, "stream": False, "grammar": 'root ::= ""'}
        found = await engine.ask("/completion", request)
        for entry in found["completion_probabilities"][0]["top_logprobs"]:
            if entry["id"] == token:
                return float(entry["logprob"])
    raise UpstreamError(engine.url, 200, f"no log-prob of token {token}", cause="model")
