"""A model deployed on Azure OpenAI, called over its REST interface."""

from typing import Any, Self

from pydantic import Field, PrivateAttr, model_validator

from nemo_gym import (
    NeMoGymAsyncOpenAI,
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponse,
)
from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, SimpleResponsesAPIModel
from nemo_gym.client.load_balancer import EndpointPool, EndpointSettings
from nemo_gym.errors import UpstreamError
from nemo_gym.llm_api.base import without_nulls
from nemo_gym.llm_api.json_codec import encode, set_fields
from nemo_gym.llm_api.responses import FrozenRequest
from nemo_gym.llm_api.responses_chat import (
    chat_params,
    completion_refusal,
    normalize_completion,
    response_from_completion,
)

V1 = "/openai/v1"


class AzureOpenAIModelServerConfig(EndpointSettings, BaseResponsesAPIModelConfig, extra="forbid"):
    """The URL of the resource, and the name of the deployment."""

    openai_base_url: str
    """The resource, `https://<name>.openai.azure.com`, or its `/openai/v1`."""

    openai_api_key: str
    openai_model: str
    """The name of the deployment."""

    default_query: dict[str, str] = Field(default_factory=dict)
    """Sent with every request: `api-version`, which only `/openai/v1` does without."""

    num_concurrent_requests: int | None = Field(default=8, ge=1)

    @model_validator(mode="after")
    def _has_a_version(self) -> Self:
        if V1 not in self.openai_base_url and not self.default_query.get("api-version"):
            raise ValueError(f"default_query needs an api-version, unless openai_base_url ends with {V1}")
        return self

    @property
    def base_url(self) -> str:
        """The URL of `/chat/completions`."""
        url = self.openai_base_url.rstrip("/")
        return url if url.endswith(V1) else f"{url.removesuffix('/openai')}/openai/deployments/{self.openai_model}"


class AzureClient(NeMoGymAsyncOpenAI):
    """Shows the key the way Azure wants it."""

    def authorization(self) -> dict[str, str]:
        return {"api-key": self.api_key}


class AzureOpenAIModelServer(SimpleResponsesAPIModel):
    config: AzureOpenAIModelServerConfig

    _pool: EndpointPool = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        config = self.config
        self._pool = EndpointPool.of(
            config.base_url,
            api_key=config.openai_api_key,
            settings=config,
            http=lambda: self.server_client.http,
            kind=AzureClient,
            default_query=config.default_query,
        )

    async def responses(self, body: FrozenRequest) -> NeMoGymResponse:
        params = chat_params(body, max_tokens_key="max_completion_tokens")
        return response_from_completion(body, await self.chat_completions(params), model=self.config.openai_model)

    async def chat_completions(self, body: NeMoGymChatCompletionCreateParamsNonStreaming) -> NeMoGymChatCompletion:
        config = self.config
        given = without_nulls(set_fields(body))
        raw = encode({**(config.extra_body or {}), **given, "model": config.openai_model})
        try:
            found = await self._pool.call(lambda client: client.post("/chat/completions", raw))
        except UpstreamError as error:
            return completion_refusal(error, model=config.openai_model)
        return normalize_completion(found, url=self._pool.clients[0].shown_url, text_of=self._pool.clients[0].text_of)
