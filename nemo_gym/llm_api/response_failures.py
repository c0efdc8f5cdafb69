"""Which responses are the model's answer. An endpoint may report a failure with status 200: that is never scored."""

from typing import Literal, NamedTuple, TypeAlias

from nemo_gym.errors import RolloutError
from nemo_gym.llm_api.endpoint_errors import CUT_OFF
from nemo_gym.llm_api.responses import NeMoGymResponse

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
