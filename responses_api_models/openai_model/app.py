"""Pass requests on to any endpoint that speaks the OpenAI API."""

from codecs import BOM_UTF8
from collections.abc import Awaitable
from functools import cached_property
from typing import Any

from pydantic import BaseModel, ValidationError

from nemo_gym import (
    CookieJar,
    JsonObject,
    NeMoGymAsyncOpenAI,
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponse,
)
from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, SimpleResponsesAPIModel
from nemo_gym.client.load_balancer import EndpointPool, EndpointSettings
from nemo_gym.errors import RolloutError, UpstreamError
from nemo_gym.llm_api.chat import NeMoGymCompletionCreateParams
from nemo_gym.llm_api.json_codec import Body, changed, encode, set_fields
from nemo_gym.llm_api.responses import FrozenRequest, encode_for_resubmission, response_failure
from nemo_gym.llm_api.responses_chat import completion_refusal, normalize_completion, response_refusal


class SimpleModelServerConfig(EndpointSettings, BaseResponsesAPIModelConfig, extra="forbid"):
    """The endpoint's URL, and the name of the model there."""

    openai_base_url: str | list[str]
    """One endpoint, or several that serve the same model."""

    openai_api_key: str
    openai_model: str


class SimpleModelServer(SimpleResponsesAPIModel):
    config: SimpleModelServerConfig

    def model_post_init(self, context: Any, /) -> None:
        self._pool  # noqa: B018 - an invalid URL is an error at start

    @cached_property
    def _pool(self) -> EndpointPool:
        config = self.config
        return EndpointPool.of(
            config.openai_base_url,
            api_key=config.openai_api_key,
            settings=config,
            http=lambda: self.server_client.http,
        )

    async def responses(self, body: FrozenRequest, jar: CookieJar) -> NeMoGymResponse:
        request = FrozenRequest.of(body)
        raw = request.pieces(encode_for_resubmission, model=self.config.openai_model)
        post = _Post("/responses", self._with_extra_body(request.params, raw))
        try:
            reply = await self._pool.call(post, session=self._pool.session(jar, self.config.name))
        except UpstreamError as error:
            return response_refusal(error, request, model=self.config.openai_model)
        return _read_response(reply, post.endpoint)

    async def chat_completions(
        self, body: NeMoGymChatCompletionCreateParamsNonStreaming, jar: CookieJar
    ) -> NeMoGymChatCompletion:
        request = changed(body, model=self.config.openai_model)
        raw = encode(request, exclude_unset=True)
        post = _Post("/chat/completions", self._with_extra_body(request, raw))
        try:
            reply = await self._pool.call(post, session=self._pool.session(jar, self.config.name))
        except UpstreamError as error:
            return completion_refusal(error, model=self.config.openai_model)
        return normalize_completion(reply, url=post.endpoint.shown_url, text_of=post.endpoint.text_of)

    async def completions(self, body: NeMoGymCompletionCreateParams, jar: CookieJar) -> JsonObject:
        """Plain text, for endpoints that complete it."""
        params = {**(self.config.extra_body or {}), **set_fields(body), "model": self.config.openai_model}
        session = self._pool.session(jar, self.config.name)
        return await self._pool.call(lambda client: client.create_completion(**params), session=session)

    def _with_extra_body(self, request: BaseModel, raw: Body) -> Body:
        if not self.config.extra_body:
            return raw
        given = request.model_fields_set | {"model"}
        extra = {name: value for name, value in self.config.extra_body.items() if name not in given}
        *start, end = (raw,) if isinstance(raw, bytes) else raw
        return (*start, end[:-1] + b"," + encode(extra)[1:]) if extra else raw


class _Post:
    """Sends a request to an endpoint, and remembers to which, so that errors name the right one."""

    __slots__ = ("_body", "_path", "endpoint")

    def __init__(self, path: str, body: Body) -> None:
        self._path, self._body = path, body

    def __call__(self, client: NeMoGymAsyncOpenAI) -> Awaitable[bytes]:
        self.endpoint = client
        return client.post(self._path, self._body)


def _read_response(raw: bytes, endpoint: NeMoGymAsyncOpenAI) -> NeMoGymResponse:
    try:
        response: NeMoGymResponse = NeMoGymResponse.__pydantic_validator__.validate_json(raw)
    except ValidationError as error:
        text = f"{_why_no_response(raw, error)} {endpoint.text_of(raw)}"
        raise UpstreamError(endpoint.shown_url, 200, text, cause="model") from error
    failure = response_failure(response)
    if failure is not None:
        text = f"{endpoint.shown_url} answered 200: a response that is {failure.code}"
        raise RolloutError("model", f"{text} ({endpoint.text_of(failure.reason.encode())})", code=failure.code)
    return response


def _why_no_response(raw: bytes, error: ValidationError) -> str:
    found = error.errors(include_url=False, include_input=False)[0]
    is_object = raw.removeprefix(BOM_UTF8).lstrip().startswith(b"{")
    if found["type"] == "json_invalid" and not is_object:
        return "not JSON. Is this the address of an API?"
    place = ".".join(map(str, found["loc"]))
    reason = f"{place}: {found['msg']}" if place else found["msg"]
    return f"not a Response ({reason}){'' if is_object else '. Is this the address of an API?'}"
