"""A completion from tokens to tokens: exactly what the model reads and writes.

A conversation whose last turn has its token ids is continued from those, not from re-tokenised text, so each turn's
prompt extends the previous turn."""

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

from nemo_gym import JsonObject
from nemo_gym.llm_api.base import TOKEN_FIELDS
from nemo_gym.llm_api.responses_chat import UnsupportedError
from responses_api_models.local_model.engine import Engine
from responses_api_models.local_model.log_probs import token_fields
from responses_api_models.local_model.tool_text import (
    PREFILL,
    Offer,
    as_plain_chat,
    grammar_of,
    offer_of,
    parse_reply,
)

logger = logging.getLogger(__name__)

_CHAT_ONLY = frozenset(
    (
        *("messages", "tools", "tool_choice", "parallel_tool_calls", "response_format", "max_tokens", "model"),
        *("logprobs", "top_logprobs", "stream", "n", "metadata", "user", "store"),
    )
)
"""Request fields that `/completion` does not know or names differently."""


async def complete_tokens(engine: Engine, params: JsonObject, *, with_tokens: bool) -> JsonObject:
    """The chat completion for a request. `with_tokens` adds token ids and log-probs to its message."""
    if (params.get("n") or 1) > 1:
        raise UnsupportedError(f"'n': {params['n']}", "1, where tools or tokens are asked for")
    messages = params["messages"]
    continues_reply = bool(messages) and messages[-1]["role"] == "assistant"
    offer = Offer() if continues_reply else offer_of(params)
    start = PREFILL if offer.tools else ""
    prompt = await _prompt(engine, messages, as_plain_chat(messages, offer), start)
    grammar = grammar_of(offer, end=engine.turn_end)
    found = await engine.generate("/completion", _request(params, prompt, grammar, with_tokens=with_tokens))
    text = start + "".join(part["content"] for part in found)
    probabilities = [entry for part in found for entry in part.get("completion_probabilities") or ()]
    message = _message(text, offer)
    if with_tokens:
        message |= await token_fields(engine, prompt, found[-1])
    return _completion(message, found[-1], _logprobs(probabilities, params))


def _request(params: JsonObject, prompt: list[int], grammar: str | None, *, with_tokens: bool) -> JsonObject:
    top = max(1, params.get("top_logprobs") or 0) if with_tokens or params.get("logprobs") else 0
    return {
        **{name: value for name, value in params.items() if name not in _CHAT_ONLY},
        "prompt": prompt,
        "n_predict": params["max_tokens"],
        "n_probs": top,
        "stream": not top,  # a streamed reply has no log-probs of tokens that are only part of a character
        "return_tokens": with_tokens,
        **({} if grammar is None else {"grammar": grammar}),
    }


async def _prompt(
    engine: Engine, messages: Sequence[Mapping[str, Any]], plain: list[JsonObject], start: str
) -> list[int]:
    template = await engine.ask("/apply-template", {"messages": plain})
    text: str = template["prompt"] + start
    known = next((message for message in reversed(messages) if message.get(TOKEN_FIELDS[0]) is not None), None)
    if known is not None:
        before = [*known["prompt_token_ids"], *known["generation_token_ids"]]
        rest = await _rest(engine, text, before)
        if rest is not None:
            return before + await _tokenize(engine, rest, special=False)
        logger.warning("the text of a conversation differs from its token ids; tokenizing all of it again")
    return await _tokenize(engine, text, special=True)


async def _rest(engine: Engine, text: str, before: list[int]) -> str | None:
    """The part of `text` after the tokens of the previous turn; None if it does not begin with them.

    A model may end a reply with another token than the template's; that token then replaces the template's.
    """
    seen = await _text_of(engine, before)
    if text.startswith(seen):
        return text[len(seen) :]
    seen = await _text_of(engine, before[:-1]) + engine.turn_end
    return text[len(seen) :] if engine.turn_end and text.startswith(seen) else None


async def _tokenize(engine: Engine, text: str, *, special: bool) -> list[int]:
    asked = {"content": text, "add_special": special, "parse_special": True}
    ids: list[int] = (await engine.ask("/tokenize", asked))["tokens"]
    return ids


async def _text_of(engine: Engine, ids: list[int]) -> str:
    """The text of a prompt, without the begin-of-text token that some models add."""
    lead = await _tokenize(engine, "", special=True)
    rest = ids[len(lead) :] if ids[: len(lead)] == lead else ids
    text: str = (await engine.ask("/detokenize", {"tokens": rest}))["content"]
    return text


def _message(text: str, offer: Offer) -> JsonObject:
    content, calls = parse_reply(text, offer)
    message: JsonObject = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = [
            {"id": f"call_{uuid4().hex}", "type": "function", "function": function} for function in calls
        ]
    return message


def _logprobs(probabilities: list[JsonObject], params: JsonObject) -> JsonObject | None:
    if not params.get("logprobs"):
        return None
    top = params.get("top_logprobs") or 0
    return {"content": [{**entry, "top_logprobs": entry["top_logprobs"][:top]} for entry in probabilities]}


def _completion(message: JsonObject, last: JsonObject, logprobs: JsonObject | None) -> JsonObject:
    prompt_tokens, completion_tokens = last["tokens_evaluated"], last["tokens_predicted"]
    finish = "length" if last["stop_type"] == "limit" else "tool_calls" if message.get("tool_calls") else "stop"
    return {
        "id": f"chatcmpl-{uuid4().hex}",
        "created": int(time.time()),
        "choices": [{"index": 0, "finish_reason": finish, "message": message, "logprobs": logprobs}],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "prompt_tokens_details": {"cached_tokens": last["timings"]["cache_n"]},
        },
    }
