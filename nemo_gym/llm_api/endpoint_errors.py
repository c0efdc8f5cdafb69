"""What an error of an endpoint means: the end of the rollout (no room left, or content it will not touch), a wrong
configuration, or just an error.

Only what is certainly an end counts. A request that merely asks for more tokens than the model could ever
write is a mistake of the configuration, and stays an error.
"""

import re
from typing import Any, Literal, NamedTuple, TypeAlias

import orjson

from nemo_gym.errors import UNREACHABLE_CODE, RolloutError, UnreachableError, UpstreamError
from nemo_gym.llm_api.responses import NeMoGymResponse

CutOff: TypeAlias = Literal["max_output_tokens", "content_filter"]
"""Why a reply is incomplete, as `incomplete_details` has it."""
CUT_OFF: dict[str, CutOff] = {
    "length": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "content_filter": "content_filter",
    "safety": "content_filter",
}
"""What a finish reason says about an incomplete answer. The second of each is how some gateways put it."""

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


def ending_of(error: UpstreamError) -> CutOff | None:
    """How the endpoint's refusal ends the rollout; None if it is just an error."""
    if error.status not in _STATUSES:
        return None
    codes, message = _codes_and_message(error.body)
    if codes & _FILTER_CODES or _FILTERED.search(message):
        return "content_filter"
    if _asks_for_the_impossible(message):
        return None
    return "max_output_tokens" if codes & _OVERFLOW_CODES or _OVERFLOW.search(message) else None


def setup_code(error: UpstreamError) -> str | None:
    """What is wrong with how the endpoint is configured, as one of `SETUP_CODES`; None if another request may pass."""
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
    """Whether the reply alone was to be as long as the whole context."""
    limit, asked = _LIMIT.search(message), _ASKED_FOR.search(message)
    return limit is not None and asked is not None and int(next(filter(None, asked.groups()))) >= int(limit.group(1))


FailureCode: TypeAlias = Literal["failed", "cancelled", "queued", "in_progress"]

UNFINISHED: dict[str | None, FailureCode] = {
    "failed": "failed",
    "cancelled": "cancelled",
    "queued": "queued",
    "in_progress": "in_progress",
}
_LIMITS = frozenset((*CUT_OFF, *CUT_OFF.values()))
"""Why a response is incomplete if a limit of the model's own reply ended it. Any other reason is a failure."""
_MAX_REASON_CHARS = 500


class ResponseFailure(NamedTuple):
    """Why a response is not the model's answer."""

    code: FailureCode
    reason: str


def response_failure(response: NeMoGymResponse) -> ResponseFailure | None:
    """Why a response is not the model's answer; None if it is. A reply that a limit has cut off is an answer."""
    if response.status == "completed" and response.error is None and response.incomplete_details is None:
        return None
    code = UNFINISHED.get(response.status)
    if response.error is not None:
        return ResponseFailure(code or "failed", f"{response.error.code}: {response.error.message}")
    if code is not None:
        return ResponseFailure(code, "no reason given")
    return None if _was_ended_by_model_or_limit(response) else ResponseFailure("failed", _incomplete_reason(response))


def raise_response_failure(response: NeMoGymResponse, *, server: str) -> None:
    """Raise a `RolloutError` with the cause `model` if a response is not the model's answer."""
    failure = response_failure(response)
    if failure is None:
        return
    reason = " ".join(failure.reason.split())[:_MAX_REASON_CHARS]  # line breaks could forge log lines
    message = f"The reply of {server} has the status '{response.status}' ({reason}), expected an answer of the model."
    raise RolloutError("model", message, server=server, code=failure.code)


def _was_ended_by_model_or_limit(response: NeMoGymResponse) -> bool:
    """Gateways such as LiteLLM give no reason for a reply that was cut off, so without one the output decides."""
    details = response.incomplete_details
    if details is not None and details.reason is not None:
        return details.reason in _LIMITS
    return response.status != "incomplete" or bool(response.output)


def _incomplete_reason(response: NeMoGymResponse) -> str:
    details = response.incomplete_details
    if details is None or details.reason is None:
        return "incomplete, without output and without a reason"
    return f"incomplete because of {details.reason}"
