"""Interpret errors of an endpoint: the end of the rollout (context full, or content refused), a wrong
configuration, or just an error.

Only what is certainly an end counts. A request that merely asks for more tokens than the model could ever
write is a mistake of the configuration, and stays an error.
"""

import re
from typing import TYPE_CHECKING, Any

import orjson

from nemo_gym.errors import UNREACHABLE_CODE, UnreachableError, UpstreamError

if TYPE_CHECKING:  # starting servers loads no types of responses
    from nemo_gym.llm_api.responses import CutOff

_STATUSES = frozenset((400, 413, 422))
_OVERFLOW_CODES = frozenset(("context_length_exceeded", "exceed_context_size_error"))
_FILTER_CODES = frozenset(("content_filter", "content_policy_violation", "responsibleaipolicyviolation"))
_OVERFLOW = re.compile(
    "|".join(
        (
            r"maximum context length (?:is|of) \d+",  # OpenAI, vLLM, SGLang, llama-cpp-python
            r"model's context length is only \d+",  # vLLM
            r"longer than the maximum model length of \d+",  # vLLM
            r"longer than the model's context length",  # SGLang
            r"exceeds (?:the )?(?:model's )?maximum (?:context|allowed) length",  # vLLM, SGLang
            r"exceeds the (?:available )?context (?:window|size)",  # OpenAI (Responses), llama.cpp
            r"exceeds? context window of \d+",  # llama-cpp-python
            r"prompt is too long: \d+ tokens",  # Anthropic
            r"input token count .{0,40}exceeds the maximum number of tokens",  # Gemini
            r"`inputs` tokens \+ `max_new_tokens` must be <= \d+",  # text-generation-inference
            r"ContextWindowExceededError",  # LiteLLM
        )
    ),
    re.I,
)
_LIMIT = re.compile(r"context length (?:is|of)(?: only)? (\d+)", re.I)
_ASKED_FOR = re.compile(
    r"is too large: (\d+)|(\d+) (?:tokens )?(?:in|for) the completion|requested (\d+) output tokens", re.I
)
_FILTERED = re.compile(r"content management policy|flagged as potentially violating|ContentPolicyViolationError", re.I)

_UNKNOWN_MODEL_CODES = frozenset(("model_not_found", "deploymentnotfound"))
_UNKNOWN_MODEL = re.compile(r"\bmodel\b.{0,200}(does not exist|not found|not exist)|invalid model", re.I | re.S)


def ending_of(error: UpstreamError) -> "CutOff | None":
    """Return how the endpoint's refusal ends the rollout; None if it is just an error."""
    if error.status not in _STATUSES:
        return None
    codes, message = _codes_and_message(error.body)
    if codes & _FILTER_CODES or _FILTERED.search(message):
        return "content_filter"
    if _asks_for_the_impossible(message):
        return None
    return "max_output_tokens" if codes & _OVERFLOW_CODES or _OVERFLOW.search(message) else None


def setup_code(error: UpstreamError) -> str | None:
    """Return the mistake in the endpoint's configuration, one of `SETUP_CODES`; None if another request may pass."""
    if isinstance(error, UnreachableError):
        return UNREACHABLE_CODE
    if error.status in (401, 403):
        return "unauthorized"
    if error.status == 402:
        return "no_quota"
    if error.status not in (400, 404, 429):
        return None
    codes, message = _codes_and_message(error.body)
    if error.status == 429:
        return "no_quota" if "insufficient_quota" in codes else None
    if codes & _UNKNOWN_MODEL_CODES or _UNKNOWN_MODEL.search(message):
        return "unknown_model"
    return "not_found" if error.status == 404 else None


def _codes_and_message(body: str) -> tuple[set[str], str]:
    """The codes and the message of an error, whichever way the endpoint wraps them."""
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        return set(), body
    error: Any = found.get("error", found) if isinstance(found, dict) else found
    if not isinstance(error, dict):
        return set(), str(error)
    inner = error.get("innererror")
    codes = (error.get("code"), error.get("type"), inner.get("code") if isinstance(inner, dict) else None)
    message = error.get("message") or error.get("detail")
    return {str(code).lower() for code in codes}, message if isinstance(message, str) else ""


def _asks_for_the_impossible(message: str) -> bool:
    """True if the reply alone was allowed the whole context."""
    limit, asked = _LIMIT.search(message), _ASKED_FOR.search(message)
    return limit is not None and asked is not None and int(next(filter(None, asked.groups()))) >= int(limit.group(1))
