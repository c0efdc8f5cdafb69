"""Which responses are the model's answer, and which are failures of its endpoint."""

from typing import Any

import pytest

from nemo_gym.errors import RolloutError
from nemo_gym.llm_api.responses import NeMoGymResponse, raise_response_failure, response_failure
from nemo_gym.testing import message, response_of

DIED = {"code": "server_error", "message": "GPU died"}
HALF = message("Half an ans")


def response(*items: dict[str, Any], **fields: Any) -> NeMoGymResponse:
    return NeMoGymResponse.model_validate(response_of(*items, **fields))


@pytest.mark.parametrize(
    "answer",
    [
        response(HALF, status="completed"),
        response(HALF, status=None),
        response(status="completed"),
        response(HALF, status="completed", incomplete_details={}),
        response(status="incomplete", incomplete_details={"reason": "max_output_tokens"}),
        response(status="incomplete", incomplete_details={"reason": "content_filter"}),
        response(HALF, status="incomplete", incomplete_details={"reason": "length"}),
        response(HALF, status="incomplete", incomplete_details=None),
    ],
)
def test_a_complete_reply_and_one_that_a_limit_cut_off_are_answers(answer: NeMoGymResponse) -> None:
    assert response_failure(answer) is None


@pytest.mark.parametrize(
    ("found", "code", "reason"),
    [
        (response(status="failed", error=DIED), "failed", "server_error: GPU died"),
        (response(status="cancelled"), "cancelled", "no reason given"),
        (response(HALF, status="queued"), "queued", "no reason given"),
        (response(HALF, status="in_progress", error=DIED), "in_progress", "server_error: GPU died"),
        (response(status=None, error=DIED), "failed", "server_error: GPU died"),
        (response(HALF, status="completed", error=DIED), "failed", "server_error: GPU died"),
        (response(HALF, status="incomplete", error=DIED), "failed", "server_error: GPU died"),
        (response(status="incomplete"), "failed", "incomplete, without output and without a reason"),
        (
            response(status="incomplete", incomplete_details={}),
            "failed",
            "incomplete, without output and without a reason",
        ),
        (
            response(HALF, status="incomplete", incomplete_details={"reason": "server_error"}),
            "failed",
            "incomplete because of server_error",
        ),
        (response(status=None, incomplete_details={"reason": "abort"}), "failed", "incomplete because of abort"),
    ],
)
def test_a_failure_of_the_endpoint_has_a_code_and_a_reason(found: NeMoGymResponse, code: str, reason: str) -> None:
    assert response_failure(found) == (code, reason)


def test_an_error_shows_a_long_reason_in_part_and_in_one_line() -> None:
    with pytest.raises(RolloutError, match="policy_model") as caught:
        raise_response_failure(response(error={"code": "x", "message": "a\nb" * 5000}), server="policy_model")
    assert (caught.value.cause, caught.value.code, caught.value.server) == ("model", "failed", "policy_model")
    assert len(str(caught.value)) < 1000
    assert "\n" not in str(caught.value)
