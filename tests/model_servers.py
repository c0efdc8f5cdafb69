"""Every kind of model server on a real port, in front of a scripted endpoint on another."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from nemo_gym.server.endpoint import Endpoint
from nemo_gym.testing import BrowserLikeClient, client_for
from responses_api_models.azure_openai_model.app import AzureOpenAIModelServer
from responses_api_models.openai_model.app import SimpleModelServer
from responses_api_models.scripted_model.app import ScriptedModel
from responses_api_models.vllm_model.app import VLLMModel

KINDS = ("scripted_model", "openai_model", "azure_openai_model", "vllm_model")


class AzureShaped(ScriptedModel):
    """The scripted model where Azure has it."""

    def endpoints(self) -> list[Endpoint]:
        path = "/openai/deployments/scripted/chat/completions"
        return [Endpoint(path, self.chat_completions, cause="model")]


@asynccontextmanager
async def model_server(
    kind: str, replies: Sequence[dict[str, Any]], **config: Any
) -> AsyncIterator[BrowserLikeClient]:
    """A model server of that kind that answers with these replies."""
    if kind == "scripted_model":
        async with client_for(ScriptedModel, replies=list(replies)) as scripted:
            yield scripted
        return
    endpoint_class = AzureShaped if kind == "azure_openai_model" else ScriptedModel
    async with (
        client_for(endpoint_class, replies=list(replies)) as endpoint,
        in_front_of(kind, endpoint.url, **config) as server,
    ):
        yield server


@asynccontextmanager
async def in_front_of(kind: str, url: str, **config: Any) -> AsyncIterator[BrowserLikeClient]:
    """A model server of that kind with its endpoint at `url`."""
    named = {"openai_api_key": "secret", "openai_model": "scripted"}
    settings: dict[str, tuple[Any, dict[str, Any]]] = {
        "openai_model": (SimpleModelServer, {"openai_base_url": f"{url}/v1", **named}),
        "azure_openai_model": (
            AzureOpenAIModelServer,
            {"openai_base_url": url, "default_query": {"api-version": "2024-10-21"}, **named},
        ),
        "vllm_model": (
            VLLMModel,
            {
                "base_url": f"{url}/v1",
                "api_key": "secret",
                "model": "scripted",
                "return_token_id_information": False,
                "uses_reasoning_parser": True,
            },
        ),
    }
    server_class, known = settings[kind]
    async with client_for(server_class, name="policy_model", **{**known, **config}) as server:
        yield server
