from typing import Any

import pytest

from nemo_gym.errors import RolloutError, UpstreamError
from nemo_gym.rollouts.metrics import MAX_KINDS, OTHER, FailureMessages, setup_message, short_message
from nemo_gym.rollouts.types import Outcome, Row

KEY = '{"error": {"message": "Incorrect API key", "code": "invalid_api_key"}}'


def failure(message: str, **fields: Any) -> Outcome:
    error = RolloutError(message=message, **{"cause": "model", "server": "policy_model", **fields})
    return Outcome.failed(Row(4, 0, "0" * 16, "agent", b"{}"), error)


def test_an_endpoints_refusal_is_its_status_and_its_own_words() -> None:
    message = str(UpstreamError("http://host/v1/responses", 401, KEY))
    assert message.startswith("http://host/v1/responses answered 401: ")
    assert short_message(failure(message)) == "policy_model: 401 Incorrect API key"
    assert short_message(failure(f"The judge failed: {message}", server="judge")) == "judge: 401 Incorrect API key"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('{"error": "no such model"}', "no such model"),
        ('{"detail": "Not Found"}', "Not Found"),
        ('{"detail": [{"loc": ["body", "a", 0], "msg": "Field required"}]}', "a.0: Field required"),
        ('{"detail": [{"loc": ["body"], "msg": "Invalid JSON"}]}', "Invalid JSON"),
        ('{"object": "error"}', '{"object": "error"}'),
        ("[1]", "[1]"),
        ("<html>", "<html>"),
    ],
)
def test_the_message_in_a_body_is_found_whichever_way_it_is_wrapped(body: str, message: str) -> None:
    assert str(UpstreamError("x", 500, body)) == f"x answered 500: {message}"


def test_messages_that_differ_in_numbers_only_are_one_kind() -> None:
    messages = FailureMessages()
    for index in range(5):
        messages.add(failure(f"no reply within {index} s"))
    messages.add(failure("connection reset"))
    assert messages.most_common(9) == [
        ("policy_model: no reply within 0 s", 5),
        ("policy_model: connection reset", 1),
    ]


def test_the_kinds_are_bounded() -> None:
    messages = FailureMessages()
    for index in range(MAX_KINDS + 10):
        messages.add(failure("x" * (1 + index // 26) + chr(97 + index % 26), server=None))
    kinds = messages.most_common(2 * MAX_KINDS)
    assert len(kinds) == MAX_KINDS + 1
    assert (OTHER, 10) in kinds


def test_an_input_error_names_its_row() -> None:
    assert short_message(failure("agent/run answered 422: x", cause="input", server="a")) == "row 5: a: 422 x"


@pytest.mark.parametrize(
    ("code", "server", "remedy"),
    [
        ("unauthorized", "policy_model", "Check policy_api_key."),
        ("unauthorized", "judge", "Check its API key."),
        ("unknown_model", "policy_model", "Check policy_model_name."),
        ("not_found", "policy_model", "Check policy_base_url and policy_model_name."),
        ("unreachable", "policy_model", "Is the endpoint running? Check policy_base_url."),
    ],
)
def test_a_setup_error_says_what_to_check(code: str, server: str, remedy: str) -> None:
    message = setup_message(RolloutError("model", "x answered 401: no.", code=code, server=server))
    assert message == f"{server} cannot be used: x answered 401: no. {remedy}"


def test_a_certificate_that_is_not_trusted_is_no_wrong_address() -> None:
    text = (
        "no connection to x:443: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate"
    )
    message = setup_message(RolloutError("model", text, code="unreachable", server="policy_model"))
    assert "SSL_CERT_FILE" in message
    assert "policy_base_url" not in message
