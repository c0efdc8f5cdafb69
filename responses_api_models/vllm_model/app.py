"""A model behind chat endpoints such as vLLM's: one or several replicas, with the exact tokens if it is to train."""

import logging
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from time import time
from typing import Any, Literal, Self
from uuid import uuid4

import orjson
from pydantic import BaseModel, model_validator

from nemo_gym import (
    CookieJar,
    JsonObject,
    NeMoGymAsyncOpenAI,
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, SimpleResponsesAPIModel
from nemo_gym.client.call_log import RoutingKey, current_routing
from nemo_gym.client.load_balancer import EndpointPool, EndpointSettings
from nemo_gym.errors import RolloutError, UpstreamError
from nemo_gym.llm_api.base import TOKEN_METADATA_FIELDS, without_nulls
from nemo_gym.llm_api.chat import NeMoGymChoice, NeMoGymCompletionCreateParams
from nemo_gym.llm_api.json_codec import GrowingList, encode, set_fields
from nemo_gym.llm_api.responses import FrozenRequest, NeMoGymResponseOutputItem
from nemo_gym.llm_api.responses_chat import (
    ChatMessages,
    chat_params,
    completion_refusal,
    normalize_completion,
    output_items,
    response_from_completion,
    separated,
    split_think_tags,
    think_tags,
)
from nemo_gym.llm_api.tokens import PROMPT, SAMPLED
from responses_api_models.vllm_model.token_protocol import (
    MAX_ABORTS,
    EndpointRenderer,
    EngineApi,
    PackageRenderer,
    TokenProtocol,
    Turn,
)
from responses_api_models.vllm_model.tokens import (
    ASK_FOR_TOKENS,
    pause_after_abort,
    put_tokens,
    rendered_ids,
    take_prompt_ids,
)

logger = logging.getLogger(__name__)

VLLMConverterResponsesToChatCompletionsState = ChatMessages


class VLLMModelConfig(EndpointSettings, BaseResponsesAPIModelConfig, extra="forbid"):
    """Where the replicas are, what they call the model, and what they are asked for."""

    base_url: str | list[str]
    """One endpoint, or several that serve the same model."""

    api_key: str
    model: str

    return_token_id_information: bool
    """For training: ask for the tokens and log-probs of every generation, and send them back with it."""

    send_tokens: Literal["last", "all", "none"] = "last"
    """Which of the model's messages go back to the endpoint with their token ids, if it returns them: the newest, all,
    or none. Log-probs are never sent."""

    protocol: Literal["chat", "tokens"] = "chat"
    """`tokens`: send prompts as token ids, in which the tokens of earlier turns stay as they were sampled. Needs
    return_token_id_information."""

    engine_api: EngineApi = "completions"
    """For `protocol: tokens`: vLLM's `/v1/completions` or `/inference/v1/generate`, or SGLang's `/generate`."""

    renderer: str | None = None
    """For `protocol: tokens`: the model family in the `renderers` package that turns new messages into tokens, such as
    qwen3. By default the endpoint's own tokenizer does, and reasoning is in <think> tags, tool calls in <tool_call>
    tags."""

    tokenizer: str | None = None
    """For `renderer`: the model's tokenizer.json, or its folder."""

    log_prob_mode: Literal["raw", "processed"] | None = None
    """What the endpoint's log-probs are of: the model, or what temperature, top-p and the like made of it (vLLM's
    `--logprobs-mode`). The endpoint does not say, so this is passed on to samples."""

    image_token_id: int | None = None
    """The token that stands for an image, so that samples say where images are."""

    uses_reasoning_parser: bool
    """Whether the endpoint gives and takes thoughts apart from the text."""

    replace_developer_role_with_system: bool = False
    """For chat templates that do not know the role."""

    cache_salt: RoutingKey | None = None
    """Send the id of the rollout or group as `cache_salt`: only its own requests share cached prefixes."""

    sampling_overrides: dict[str, Any] | None = None
    """Parameters that replace those of every request; null removes one."""

    chat_template_kwargs: dict[str, Any] | None = None
    """Arguments to the endpoint's chat template. What a request says itself wins."""

    @model_validator(mode="after")
    def _tokens_are_complete(self) -> Self:
        if self.protocol == "tokens" and not self.return_token_id_information:
            raise ValueError("protocol: tokens needs return_token_id_information: true")
        if (self.renderer is None) != (self.tokenizer is None):
            raise ValueError("renderer and tokenizer belong together; one of them is missing")
        return self


class VLLMConverter(BaseModel):
    """The conversions of `nemo_gym.llm_api.responses_chat`, as this server uses them."""

    return_token_id_information: bool
    uses_reasoning_parser: bool = False

    def responses_to_chat_completion_create_params(
        self, responses_create_params: NeMoGymResponseCreateParamsNonStreaming | FrozenRequest
    ) -> NeMoGymChatCompletionCreateParamsNonStreaming:
        return chat_params(
            responses_create_params,
            reasoning_field=self.uses_reasoning_parser,
            with_tokens=self.return_token_id_information,
        )

    def postprocess_chat_response(self, choice: NeMoGymChoice) -> list[NeMoGymResponseOutputItem]:
        return output_items(choice, new_id=lambda: uuid4().hex)

    @staticmethod
    def _wrap_reasoning_in_think_tags(texts: Sequence[str]) -> str:
        return think_tags(texts)

    @staticmethod
    def _parse_think_tags(content: str) -> tuple[list[str], str]:
        return split_think_tags(content)

    def _extract_reasoning_from_content(self, content: str) -> tuple[list[str], str]:
        return self._parse_think_tags(content)


class VLLMModel(SimpleResponsesAPIModel):
    config: VLLMModelConfig

    def model_post_init(self, context: Any, /) -> None:
        self._pool  # noqa: B018 - an invalid URL is an error at start

    # Cached properties, since pydantic finds private attributes in several steps.
    @cached_property
    def _pool(self) -> EndpointPool:
        config = self.config
        return EndpointPool.of(
            config.base_url, api_key=config.api_key, settings=config, http=lambda: self.server_client.http
        )

    @cached_property
    def _converter(self) -> VLLMConverter:
        return VLLMConverter(
            return_token_id_information=self.config.return_token_id_information,
            uses_reasoning_parser=self.config.uses_reasoning_parser,
        )

    @property
    def _clients(self) -> list[NeMoGymAsyncOpenAI]:
        return self._pool.clients

    @_clients.setter
    def _clients(self, clients: list[NeMoGymAsyncOpenAI]) -> None:
        self.__dict__["_pool"] = EndpointPool(clients, self.config)

    async def responses(self, body: FrozenRequest, jar: CookieJar) -> NeMoGymResponse:
        params = self._converter.responses_to_chat_completion_create_params(body)
        completion = await self._complete(params, jar)
        return response_from_completion(
            body,
            completion,
            model=self.config.model,
            response_id=f"resp_{uuid4().hex}",
            created_at=int(time()),
            output=self._converter.postprocess_chat_response(completion.choices[0]),
        )

    async def chat_completions(
        self, body: NeMoGymChatCompletionCreateParamsNonStreaming, jar: CookieJar
    ) -> NeMoGymChatCompletion:
        """Thoughts are in `<think>` tags here, whether or not the endpoint has them apart."""
        completion = await self._complete(body, jar)
        for choice in completion.choices:
            extra = choice.message.model_extra or {}
            thought = extra.pop("reasoning_content", None)
            if thought:
                choice.message.content = think_tags([thought]) + (choice.message.content or "")
        return completion

    async def completions(self, body: NeMoGymCompletionCreateParams, jar: CookieJar) -> JsonObject:
        """Plain text."""
        params = {**(self.config.extra_body or {}), **set_fields(body), "model": self.config.model}
        session = self._pool.session(jar, self.config.name)
        return await self._pool.call(lambda client: client.create_completion(**params), session=session)

    async def _complete(
        self, body: NeMoGymChatCompletionCreateParamsNonStreaming, jar: CookieJar
    ) -> NeMoGymChatCompletion:
        session = self._pool.session(jar, self.config.name)
        if self.config.protocol == "tokens":
            return await self._complete_tokens(body, session)
        params = self._params(body)

        async def send(client: NeMoGymAsyncOpenAI) -> tuple[NeMoGymAsyncOpenAI, JsonObject]:
            return client, await client.create_chat_completion(**params)

        try:
            endpoint, found = await self._pool.call(send, session=session)
            for attempt in range(1, MAX_ABORTS):
                if not _is_aborted(found):
                    break
                logger.info("%s aborted a generation, which is made again (%d)", endpoint.shown_url, attempt)
                await pause_after_abort(attempt)
                endpoint, found = await self._pool.call(send, session=session)
        except UpstreamError as error:
            return completion_refusal(error, model=self.config.model)
        if self.config.return_token_id_information:
            prompt_ids = take_prompt_ids(found) or await self._tokenize(params, session)
            before = next((each for each in reversed(body.messages) if each.get(SAMPLED) is not None), None)
            put_tokens(found, prompt_ids, url=endpoint.shown_url, before=before, constants=self._constants)
        completion = normalize_completion(found, url=endpoint.shown_url, text_of=endpoint.text_of)
        if not self.config.uses_reasoning_parser:
            _refuse_reasoning(completion, endpoint.shown_url)
        return completion

    @cached_property
    def _token_protocol(self) -> TokenProtocol:
        config = self.config
        if config.renderer is None:
            return TokenProtocol(EndpointRenderer(), config.engine_api)
        renderer = PackageRenderer(config.renderer, config.tokenizer or "", config.chat_template_kwargs or {})
        return TokenProtocol(renderer, config.engine_api)

    async def _complete_tokens(
        self, body: NeMoGymChatCompletionCreateParamsNonStreaming, session: str | None
    ) -> NeMoGymChatCompletion:
        call, url = partial(self._pool.call, session=session), self._clients[0].shown_url
        turns = [Turn(dict(message), self._message(dict(message))) for message in body.messages]
        try:
            found = await self._token_protocol.complete(self._options(body), turns, call=call, url=url)
        except UpstreamError as error:
            return completion_refusal(error, model=self.config.model)
        found["choices"][0]["message"] |= self._constants
        return normalize_completion(found, url=url)

    @cached_property
    def _constants(self) -> JsonObject:
        """What is the same for the tokens of all replies."""
        config = self.config
        return without_nulls({"log_prob_mode": config.log_prob_mode, "image_token_id": config.image_token_id})

    def _params(self, body: NeMoGymChatCompletionCreateParamsNonStreaming) -> JsonObject:
        params = self._options(body) | {"messages": self._encoded(body.messages)}
        return params | (ASK_FOR_TOKENS if self.config.return_token_id_information else {})

    def _options(self, body: NeMoGymChatCompletionCreateParamsNonStreaming) -> JsonObject:
        """The request but for its messages."""
        config = self.config
        given = without_nulls(set_fields(body))
        params = {**(config.extra_body or {}), **given, **_extra_body_of(given), "model": config.model}
        params.pop("messages", None)
        template = {**(config.chat_template_kwargs or {}), **params.get("chat_template_kwargs", {})}
        if template:
            params["chat_template_kwargs"] = template
        if config.cache_salt is not None and (salt := current_routing(config.cache_salt)) is not None:
            params.setdefault("cache_salt", salt)
        if config.sampling_overrides:
            params = without_nulls({**params, **config.sampling_overrides})
        return params

    def _encoded(self, messages: Sequence[Any]) -> orjson.Fragment:
        """The messages as JSON. Of a conversation that grows, only those that are new are encoded, and the newest one
        with tokens, whose ids no other request has."""
        growing = messages if isinstance(messages, GrowingList) else GrowingList(messages)
        encoded: tuple[bytes, ...] = growing.fold(_encode_each, self._encode_message)
        places = range(len(messages) - 1, -1, -1) if self._sends_newest else ()
        newest = next((place for place in places if messages[place].get(SAMPLED) is not None), None)
        if newest is not None:
            sent = encode({**self._message(dict(messages[newest])), **_ids_of(messages[newest])})
            encoded = (*encoded[:newest], sent, *encoded[newest + 1 :])
        return orjson.Fragment(b"".join((b"[", b",".join(encoded), b"]")))

    @cached_property
    def _encode_message(self) -> Callable[[Any], bytes]:
        sends_all = self.config.return_token_id_information and self.config.send_tokens == "all"

        def encode_message(message: Any) -> bytes:
            return encode({**self._message(dict(message)), **(_ids_of(message) if sends_all else {})})

        return encode_message

    @property
    def _sends_newest(self) -> bool:
        return self.config.return_token_id_information and self.config.send_tokens == "last"

    def _message(self, message: JsonObject) -> JsonObject:
        """The message as it is sent, without its tokens."""
        if self.config.replace_developer_role_with_system and message["role"] == "developer":
            return {**message, "role": "system"}
        message = {key: value for key, value in message.items() if key not in TOKEN_METADATA_FIELDS}
        return separated(message) if self.config.uses_reasoning_parser else message

    async def _tokenize(self, params: JsonObject, session: str | None) -> Sequence[int]:
        """The tokens of the prompt, from an endpoint that does not give them with the completion."""
        keys = ("model", "messages", "tools", "chat_template_kwargs")
        wanted: JsonObject = {key: params[key] for key in keys if key in params}
        return await self._pool.call(partial(rendered_ids, request=wanted), session=session)


def _is_aborted(completion: JsonObject) -> bool:
    """True if the engine gave up a generation, such as for an update of its weights. Without token ids to go on from,
    the call is made again."""
    return any(choice.get("finish_reason") == "abort" for choice in completion.get("choices") or ())


def _encode_each(
    before: tuple[bytes, ...] | None, messages: Sequence[Any], encode_message: Callable[[Any], bytes]
) -> tuple[bytes, ...]:
    """A step of `GrowingList.fold`."""
    return (*(before or ()), *map(encode_message, messages))


def _ids_of(message: JsonObject) -> JsonObject:
    return {name: message[name] for name in (PROMPT, SAMPLED) if message.get(name) is not None}


def _extra_body_of(given: JsonObject) -> JsonObject:
    """What a row has in `metadata.extra_body`, a JSON object as text, for parameters that the API does not know."""
    text = (given.get("metadata") or {}).get("extra_body")
    if text is None:
        return {}
    try:
        return dict(orjson.loads(text))
    except (ValueError, TypeError) as error:
        raise RolloutError(
            "input", f"metadata.extra_body is {text!r:.100}; expected a JSON object as text."
        ) from error


def _refuse_reasoning(completion: NeMoGymChatCompletion, url: str) -> None:
    if any((choice.message.model_extra or {}).get("reasoning_content") for choice in completion.choices):
        text = (
            "thoughts apart from the text, though uses_reasoning_parser is false; expected none, or the setting true"
        )
        raise UpstreamError(url, 200, text, cause="model")
