"""How Azure is asked, and how its answers are told."""

from typing import Any

import pytest

from responses_api_models.azure_openai_model.app import AzureOpenAIModelServerConfig
from tests.model_servers import in_front_of
from tests.stub_endpoint import completion, stub_endpoint

PLACE = {"name": "m", "host": "", "port": 0, "entrypoint": ""}
CONFIG = {
    **PLACE,
    "openai_api_key": "secret",
    "openai_model": "gpt",
    "default_query": {"api-version": "2024-10-21"},
}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("https://x.openai.azure.com", "https://x.openai.azure.com/openai/deployments/gpt"),
        ("https://x.openai.azure.com/", "https://x.openai.azure.com/openai/deployments/gpt"),
        ("https://x.openai.azure.com/openai", "https://x.openai.azure.com/openai/deployments/gpt"),
        ("https://x.openai.azure.com/openai/v1", "https://x.openai.azure.com/openai/v1"),
        ("https://x.openai.azure.com/openai/v1/", "https://x.openai.azure.com/openai/v1"),
    ],
)
def test_the_resource_may_be_named_in_several_ways(given: str, expected: str) -> None:
    assert AzureOpenAIModelServerConfig.model_validate({**CONFIG, "openai_base_url": given}).base_url == expected


def test_a_version_is_needed_where_the_path_has_none() -> None:
    bare = {**CONFIG, "default_query": {}}
    assert AzureOpenAIModelServerConfig.model_validate({**bare, "openai_base_url": "https://x/openai/v1"})
    with pytest.raises(ValueError, match="api-version"):
        AzureOpenAIModelServerConfig.model_validate({**bare, "openai_base_url": "https://x"})


@pytest.mark.parametrize("v1", [True, False])
async def test_a_request_goes_where_azure_wants_it(v1: bool) -> None:
    async with stub_endpoint(lambda _: completion()) as stub:
        root = stub.url.removesuffix("/v1")
        url = f"{root}/openai/v1" if v1 else root
        async with in_front_of("azure_openai_model", url, extra_body={"seed": 1, "temperature": 0.1}) as server:
            body = {"input": "Hi.", "max_output_tokens": 5, "temperature": 0.5, "tool_choice": "auto", "user": None}
            answer = await server.post("/v1/responses", json=body)
    assert answer.json()["output"][0]["content"][0]["text"] == "Hi."
    (sent,) = stub.requests
    assert sent.path == ("/openai/v1/chat/completions" if v1 else "/openai/deployments/scripted/chat/completions")
    assert sent.query == {"api-version": "2024-10-21"}
    assert sent.headers["api-key"] == "secret"
    assert "Authorization" not in sent.headers
    del sent.body["messages"]
    assert sent.body == {"model": "scripted", "max_completion_tokens": 5, "temperature": 0.5, "seed": 1}


FILTERED: dict[str, Any] = {
    "error": {
        "message": "The response was filtered due to the prompt triggering the content management policy.",
        "code": "content_filter",
        "innererror": {"code": "ResponsibleAIPolicyViolation"},
    }
}


async def test_filtered_content_ends_the_rollout_after_one_try() -> None:
    async with (
        stub_endpoint(lambda _: (400, FILTERED)) as stub,
        in_front_of("azure_openai_model", stub.url.removesuffix("/v1")) as server,
    ):
        fields = (await server.post("/v1/responses", json={"input": "Hi."})).json()
        assert len(stub.requests) == 1
    assert (fields["status"], fields["incomplete_details"], fields["output"]) == (
        "incomplete",
        {"reason": "content_filter"},
        [],
    )
