"""Settings for every request, endings, and the ways of endpoints other than OpenAI's own."""

from typing import Any

import pytest

from nemo_gym.testing import message, response_of
from tests.model_servers import in_front_of
from tests.stub_endpoint import completion, stub_endpoint

HI = {"role": "user", "content": "Hi."}
DIED = {"code": "server_error", "message": "GPU died"}
OVERFLOW = {
    "error": {"message": "Your input exceeds the context window of this model.", "code": "context_length_exceeded"}
}


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions"])
async def test_what_the_config_adds_gives_way_to_the_request(path: str) -> None:
    body = {"temperature": 0.5, **({"input": "Hi."} if path == "/v1/responses" else {"messages": [HI]})}
    extra = {"temperature": 0.1, "cache": {"no-cache": True}}
    async with (
        stub_endpoint(lambda request: completion() if "chat" in request.path else response_of()) as stub,
        in_front_of(
            "openai_model", "", openai_base_url=stub.url, extra_body=extra, default_headers={"X-Team": "gym"}
        ) as server,
    ):
        assert (await server.post(path, json=body)).status == 200
    assert stub.requests[0].headers["X-Team"] == "gym"
    assert stub.requests[0].body == {**body, "cache": {"no-cache": True}, "model": "scripted"}


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions", "/v1/messages"])
async def test_no_room_left_ends_the_rollout_after_one_try(path: str) -> None:
    body: dict[str, Any] = {"input": "Hi."} if path == "/v1/responses" else {"messages": [HI], "max_tokens": 9}
    async with (
        stub_endpoint(lambda _: (400, OVERFLOW)) as stub,
        in_front_of("openai_model", "", openai_base_url=stub.url) as server,
    ):
        fields = (await server.post(path, json=body)).json()
        assert len(stub.requests) == 1
    if path == "/v1/responses":
        assert (fields["incomplete_details"], fields["output"]) == ({"reason": "max_output_tokens"}, [])
    elif path == "/v1/messages":
        assert (fields["stop_reason"], fields["content"]) == ("max_tokens", [])
    else:
        assert fields["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    "found",
    [
        {"output": 7},
        response_of(status="failed", error={"code": "server_error", "message": "Oops."}),
        response_of(status="cancelled"),
        response_of(status="queued"),
        response_of(status="in_progress"),
        response_of(status=None, error=DIED),
        {name: value for name, value in response_of(error=DIED).items() if name != "status"},
        response_of(message("Half an ans"), status="completed", error=DIED),
        response_of(status="incomplete", incomplete_details=None),
        response_of(message("Half an ans"), status="incomplete", incomplete_details={"reason": "server_error"}),
    ],
)
async def test_what_is_no_response_is_an_error_of_the_model(found: Any) -> None:
    async with (
        stub_endpoint(lambda _: found) as stub,
        in_front_of("openai_model", "", openai_base_url=stub.url) as server,
    ):
        answer = await server.post("/v1/responses", json={"input": "Hi."})
        assert (answer.status, answer.json()["error"]["cause"], len(stub.requests)) == (502, "model", 1)


async def test_a_response_of_vllm_is_read_too() -> None:
    """Its thoughts are whole beside an empty summary, and its items say null where others say nothing."""
    thought = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [],
        "status": None,
        "encrypted_content": None,
        "content": [{"type": "reasoning_text", "text": "hm"}],
    }
    call = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "look", "arguments": "{}", "status": None}
    found = response_of(thought, message("Hi."), call, status="completed", error=None, parallel_tool_calls=True)
    async with (
        stub_endpoint(lambda _: found) as stub,
        in_front_of("openai_model", "", openai_base_url=[stub.url, stub.url]) as server,
    ):
        first = (await server.post("/v1/responses", json={"input": [HI]})).json()
        assert [item["type"] for item in first["output"]] == ["reasoning", "message", "function_call"]
        await server.post("/v1/responses", json={"input": [HI, *first["output"]]})
    assert stub.requests[1].body["input"][1] == {"type": "reasoning", "id": "rs_1", "summary": []}
