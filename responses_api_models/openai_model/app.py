"""Pass requests on to any endpoint that speaks the OpenAI API."""

from typing import TypeVar

from pydantic import BaseModel, Field, ValidationError

from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, SimpleResponsesAPIModel
from nemo_gym.chat_types import NeMoGymChatCompletion, NeMoGymChatCompletionCreateParamsNonStreaming
from nemo_gym.codec import encode
from nemo_gym.errors import UpstreamError
from nemo_gym.openai_client import MAX_TRIES, REQUEST_TIMEOUT_S, NeMoGymAsyncOpenAI
from nemo_gym.openai_types import (
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    for_resubmission,
    is_resubmittable,
)

Model = TypeVar("Model", bound=BaseModel)


class SimpleModelServerConfig(BaseResponsesAPIModelConfig):
    """Where the endpoint is and what it calls the model."""

    openai_base_url: str
    openai_api_key: str
    openai_model: str
    max_tries: int = Field(default=MAX_TRIES, ge=1)
    request_timeout_s: float = Field(default=REQUEST_TIMEOUT_S, gt=0)


class SimpleModelServer(SimpleResponsesAPIModel):
    config: SimpleModelServerConfig

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming) -> NeMoGymResponse:
        update: dict[str, object] = {"model": self.config.openai_model}
        if not isinstance(body.input, str) and not all(map(is_resubmittable, body.input)):
            update["input"] = [for_resubmission(item) for item in body.input]
        return await self._ask("/responses", body.model_copy(update=update), NeMoGymResponse)

    async def chat_completions(self, body: NeMoGymChatCompletionCreateParamsNonStreaming) -> NeMoGymChatCompletion:
        named = body.model_copy(update={"model": self.config.openai_model})
        return await self._ask("/chat/completions", named, NeMoGymChatCompletion)

    async def _ask(self, path: str, body: BaseModel, answer: type[Model]) -> Model:
        config = self.config
        endpoint = NeMoGymAsyncOpenAI.model_construct(
            base_url=config.openai_base_url,
            api_key=config.openai_api_key,
            max_tries=config.max_tries,
            timeout_s=config.request_timeout_s,
            http=self.server_client.http,
        )
        raw = await endpoint.post(path, encode(body, exclude_unset=True))
        try:
            return answer.model_validate_json(raw)
        except ValidationError as error:
            found = error.errors(include_url=False, include_input=False)[0]
            text = endpoint.without_key(raw.decode(errors="replace"))
            told = f"no {answer.__name__} ({found['loc']}: {found['msg']}): {text}"
            raise UpstreamError(config.openai_base_url, 200, told, cause="model") from error


if __name__ == "__main__":
    SimpleModelServer.run_webserver()
