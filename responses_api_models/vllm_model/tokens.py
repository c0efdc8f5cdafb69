"""The exact tokens of a generation, out of a vLLM completion. They are taken out, so that nothing is sent twice."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from nemo_gym import JsonObject, NeMoGymAsyncOpenAI
from nemo_gym.client.call_log import current_rollout
from nemo_gym.common.retry import backoff_s
from nemo_gym.errors import UpstreamError
from nemo_gym.llm_api.base import (
    POLICY_VERSION_FIELD,
    TOKEN_NAMES,
    VERSION_RUNS_FIELD,
    is_policy_version,
    without_nulls,
)
from nemo_gym.llm_api.tokens import (
    MAX_LOG_PROB,
    PROMPT,
    SAMPLED,
    TokenArray,
    TokenTraceError,
    call_tokens,
    new_token_ids,
    token_ids,
)

ASK_FOR_TOKENS = {"logprobs": True, "return_tokens_as_token_ids": True, "return_token_ids": True}
"""The second names tokens by number in the log-probs; the third, which older versions do not know, gives them apart,
those of the prompt included."""

_MARK = "token_id:"
_VERSION_LISTS = ("policy_versions", "weight_versions")
_VERSION_NAMES = (*_VERSION_LISTS, POLICY_VERSION_FIELD, "weight_version")
_SAID = ("content", "refusal", "reasoning_content", "reasoning", "tool_calls", "function_call")


@contextmanager
def reading_reply(url: str, reply: Any = None) -> Iterator[None]:
    """Make an error of the model of everything in a reply of an endpoint that cannot be what an engine read or
    sampled."""
    try:
        yield
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        shown = "" if reply is None else f" in {reply!r:.200}"
        text = str(error) if isinstance(error, TokenTraceError) else f"no tokens and log-probs{shown} ({error!r})"
        raise UpstreamError(url, 200, text, cause="model") from error


def take_prompt_ids(completion: JsonObject) -> list[int] | None:
    """The prompt as the endpoint saw it, if it tells."""
    found = [completion.pop("prompt_token_ids", None)]
    found += [choice.pop("prompt_token_ids", None) for choice in completion.get("choices") or ()]
    return next((ids for ids in found if ids), None)


def put_tokens(
    completion: JsonObject,
    prompt_ids: Sequence[int],
    *,
    url: str,
    before: Mapping[str, Any] | None = None,
    constants: JsonObject,
) -> None:
    """Give the message of every choice its tokens, and the version of the weights if the endpoint names it. Those that
    the message `before` has already are shared with it."""
    for choice in completion.get("choices") or ():
        with reading_reply(url, choice):
            choice["message"] = _message_with_tokens(completion, choice, prompt_ids, before) | constants


def _message_with_tokens(
    completion: JsonObject, choice: JsonObject, prompt_ids: Sequence[int], before: Mapping[str, Any] | None
) -> JsonObject:
    given: JsonObject = choice.get("message") or {}
    entries: list[Any] = (choice.pop("logprobs", None) or {}).get("content") or []
    ids = sampled_ids(choice.pop("token_ids", None), entries)
    if not ids and any(given.get(name) for name in _SAID):
        raise TokenTraceError("a message without tokens")
    tokens = call_tokens(prompt_ids, ids, [entry["logprob"] for entry in entries], before=before)
    message = {name: value for name, value in given.items() if name not in TOKEN_NAMES}
    runs = version_in(completion, choice, len(ids)) or version_runs([(trainer_version(), len(ids))])
    given_read = choice.pop("prompt_logprobs", None) or completion.get("prompt_logprobs")
    extras = {
        "routed_experts": choice.pop("routed_experts", None) or given.get("routed_experts"),
        "generation_top_log_probs": top_log_probs(entries),
        "prompt_log_probs": prompt_log_probs(given_read, tokens[PROMPT], before),
    }
    return message | tokens | version_fields(runs) | without_nulls(extras)


def top_log_probs(entries: list[Any]) -> list[list[tuple[int, float]]] | None:
    """For each token the likeliest ones; None if the endpoint gave none."""
    if not any(entry.get("top_logprobs") for entry in entries):
        return None
    return [[(_number(top), _checked(top["logprob"])) for top in entry.get("top_logprobs") or ()] for entry in entries]


def prompt_log_probs(given: Any, prompt: Sequence[int], before: Mapping[str, Any] | None) -> list[float | None] | None:
    """The log-probs of those tokens of a prompt that the call `before` does not have; None if the endpoint gave none.

    vLLM gives an object for each token, in which its id is one name among others, and null for the first."""
    if given is None:
        return None
    if len(given) != len(prompt):
        raise TokenTraceError(f"the prompt has {len(prompt)} tokens, but {len(given)} log-probs")
    known = 0 if before is None else len(before[PROMPT]) + len(before[SAMPLED])
    start = known if before is not None and token_ids(prompt[:known]) == [*before[PROMPT], *before[SAMPLED]] else 0
    pairs = zip(given[start:], prompt[start:], strict=True)
    return [None if each is None else _checked(_own_log_prob(each, token)) for each, token in pairs]


def _own_log_prob(given: Any, token: int) -> float:
    found: float = given if isinstance(given, int | float) else given[str(token)]["logprob"]
    return found


def _checked(value: Any) -> float:
    """A log-prob that need not be of a sampled token, so it may be as low as it likes."""
    if type(value) not in (float, int) or not value <= MAX_LOG_PROB:
        raise TokenTraceError(f"a log-prob is {value!r:.100}, expected a number of at most 0")
    return float(value)


def sampled_ids(ids: Any, entries: list[Any]) -> list[int]:
    """The ids of a generation. If the endpoint gives them twice, apart and as names of log-probs, they must agree."""
    if not ids:
        return [_number(entry) for entry in entries]
    if len(ids) != len(entries):
        raise TokenTraceError(f"{len(ids)} token ids, but {len(entries)} log-probs for them")
    named = [entry.get("token") for entry in entries]
    if str(named[0]).startswith(_MARK) and named != [f"{_MARK}{number}" for number in ids]:
        raise TokenTraceError("the log-probs are of other tokens than the token ids")
    return list(ids)


def trainer_version() -> int | None:
    """The policy version that a trainer's session says, for endpoints that name none."""
    running = current_rollout()
    return None if running is None or running.log is None else running.log.policy_version


async def pause_after_abort(attempt: int, *, has_tokens: bool = False) -> None:
    """Wait before a generation that the engine aborted goes on: as long as the trainer holds model calls, and a moment
    if there are no tokens of it."""
    await asyncio.sleep(0 if has_tokens else backoff_s(min(attempt, 4)))
    running = current_rollout()
    if running is not None and running.log is not None:
        await running.log.wait_while_paused()


def version_fields(runs: Sequence[tuple[int | str | None, int]]) -> JsonObject:
    """The fields of an item or message that say which versions sampled it."""
    if all(version is None for version, _ in runs):
        return {}
    listed: JsonObject = {VERSION_RUNS_FIELD: [*map(list, runs)]} if len(runs) > 1 else {}
    return {POLICY_VERSION_FIELD: runs[-1][0], **listed}


def version_in(completion: JsonObject, choice: JsonObject, count: int) -> list[tuple[int | str | None, int]]:
    """The policy versions of `count` tokens, each with the number of tokens that it sampled; none if unknown.

    They are in the choice, its message, the completion, or its `metadata` or `sglext`: a list with one for each token
    (`policy_versions`, `weight_versions`), or one for all (`policy_version`, SGLang's `weight_version`)."""
    parts = (completion.get(name) for name in ("metadata", "sglext", "meta_info"))
    places = [place for place in (choice, choice.get("message"), completion, *parts) if isinstance(place, dict)]
    found = [(name, place[name]) for name in _VERSION_NAMES for place in places if place.get(name) is not None]
    if not found or not count:
        return []
    name, value = found[0]
    listed = value if name in _VERSION_LISTS else [value]
    is_whole = name not in _VERSION_LISTS or (isinstance(value, list) and len(value) == count)
    if not is_whole or not all(map(is_policy_version, listed)):
        raise TokenTraceError(f"`{name}` is {value!r:.100}; expected whole numbers or names, for {count} tokens")
    return version_runs((version, 1 if name in _VERSION_LISTS else count) for version in listed)


def version_runs(runs: Iterable[tuple[int | str | None, int]]) -> list[tuple[int | str | None, int]]:
    """Versions with their numbers of tokens, neighbours of one version together."""
    joined: list[tuple[int | str | None, int]] = []
    for version, count in runs:
        if joined and joined[-1][0] == version:
            joined[-1] = version, joined[-1][1] + count
        elif count:
            joined.append((version, count))
    return joined


async def rendered_ids(client: NeMoGymAsyncOpenAI, request: JsonObject) -> TokenArray[int]:
    """The tokens of a chat prompt, by the endpoint's own template and tokenizer."""
    with reading_reply(client.shown_url):
        tokens = (await client.create_tokenize(**request)).get("tokens")
        if tokens == []:
            tokens = await _tokens_of_text(client, request)
        if not tokens:
            raise TokenTraceError("no 'tokens' from /tokenize")
        return new_token_ids(tokens)


async def _tokens_of_text(client: NeMoGymAsyncOpenAI, wanted: JsonObject) -> Any:
    """The prompt from llama.cpp, whose /tokenize knows texts only. What it makes of messages is a text of its own."""
    text = (await client.post_at_root("/apply-template", wanted))["prompt"]
    return (await client.create_tokenize(content=text, add_special=True, parse_special=True)).get("tokens")


def _number(entry: JsonObject) -> int:
    token, number = entry["token"], entry.get("id")  # the latter is llama.cpp's
    if type(number) is int:
        return number
    if not token.startswith(_MARK):
        text = (
            f"no token ids, but the token {token!r}; expected 'token_ids' or tokens like '{_MARK}42'. Training needs "
            "an endpoint that knows return_token_ids or return_tokens_as_token_ids, such as vLLM"
        )
        raise TokenTraceError(text)
    return int(token.removeprefix(_MARK))
