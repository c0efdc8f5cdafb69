"""Token in, token out: a prompt is sent as ids and a generation comes as ids, so every turn extends the one before.

The tokens of earlier turns stay as they were read and sampled. Only messages that are new since then are rendered: by
the `renderers` package, or by the endpoint's own tokenizer, as they follow an assistant message. A generation that the
engine aborts, such as for an update of its weights, goes on from its ids."""

import asyncio
import json
import logging
import re
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any, Literal, NamedTuple, Protocol
from uuid import uuid4

from nemo_gym import JsonObject, NeMoGymAsyncOpenAI
from nemo_gym.common.paths import find
from nemo_gym.errors import MissingExtraError, RolloutError, UpstreamError
from nemo_gym.llm_api.base import content_text, without_nulls
from nemo_gym.llm_api.json_codec import encode
from nemo_gym.llm_api.tokens import (
    LOG_PROBS,
    PROMPT,
    SAMPLED,
    TokenArray,
    TokenTraceError,
    joined,
    log_probs,
    new_token_ids,
    token_ids,
)
from responses_api_models.vllm_model.tokens import (
    pause_after_abort,
    prompt_log_probs,
    reading_reply,
    rendered_ids,
    sampled_ids,
    top_log_probs,
    trainer_version,
    version_fields,
    version_in,
    version_runs,
)

logger = logging.getLogger(__name__)

EngineApi = Literal["completions", "generate", "sglang"]
Call = Callable[[Callable[[NeMoGymAsyncOpenAI], Awaitable[Any]]], Awaitable[Any]]
"""Makes a request to the replica of a rollout."""

_RENDERED: tuple[str, ...] = ("model", "tools", "chat_template_kwargs")
"""Parameters that a prompt depends on, beside its messages."""
MAX_ABORTS = 1000
"""How often one generation may be aborted. A trainer that updates weights every few seconds aborts long ones often."""
MAX_REMEMBERED = 8192
"""Conversations whose earlier messages are known, to notice that an agent has changed them."""
MAX_CLOSE = 8
"""Tokens with which a template closes a turn, at most."""
_STANDINS = ("Zero 4", "Yes x")
"""Two replies that end in different tokens: what prompts with them have in common at their end follows any reply."""
_THOUGHT_END, _THOUGHT_START = "</think>", "<think>"
_TOOL_CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)
_SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "stop", "stop_token_ids", "seed", "frequency_penalty"),
    *("presence_penalty", "repetition_penalty", "ignore_eos", "min_tokens", "logit_bias"),
)
_NOT_SUPPORTED = {"n": (None, 1), "tool_choice": (None, "auto", "none")}
"""Parameters of chat that have no meaning here, and their values that may be given."""


class Generation(NamedTuple):
    """What an engine sampled in one request."""

    ids: Sequence[int]
    log_probs: Sequence[float]
    finish_reason: str
    text: str | None = None
    """If the engine gives it."""
    versions: Sequence[tuple[int | str | None, int]] = ()
    """Policy versions, and how many tokens each sampled."""
    top_log_probs: Sequence[Sequence[tuple[int, float]]] | None = None
    prompt_log_probs: Sequence[Any] | None = None
    """As the engine gives them."""
    routed_experts: Any = None


class Renderer(Protocol):
    """Turns messages into ids, and ids into messages."""

    async def first(self, request: JsonObject, call: Call) -> Sequence[int]:
        """The prompt of a conversation."""

    async def following(
        self, before: Sequence[int], sampled: Sequence[int], request: JsonObject, call: Call
    ) -> Sequence[int] | None:
        """The ids after the tokens of a turn, for the messages that came since. None if they cannot be told."""

    async def message(
        self, prompt: Sequence[int], generation: Generation, request: JsonObject, call: Call
    ) -> JsonObject:
        """The assistant message in a generation."""

    def stop_ids(self) -> list[int]: ...


class EndpointRenderer:
    """Renders with the chat template and tokenizer of the endpoint, and reads reasoning in `<think>` tags and tool
    calls in `<tool_call>` tags."""

    async def first(self, request: JsonObject, call: Call) -> Sequence[int]:
        ids: TokenArray[int] = await call(partial(rendered_ids, request=request))
        return ids

    async def following(
        self, before: Sequence[int], sampled: Sequence[int], request: JsonObject, call: Call
    ) -> Sequence[int] | None:
        asked = {"role": "user", "content": "Go on."}
        conversations = ([asked, _said(text), *request["messages"]] for text in _STANDINS)
        prompts = await asyncio.gather(*(self.first({**request, "messages": each}, call) for each in conversations))
        rest = _common_end(*prompts)
        for size in range(min(MAX_CLOSE, len(sampled), len(rest)), 0, -1):
            if list(sampled[-size:]) == list(rest[:size]):  # what the model wrote of the close itself
                return rest[size:]
        return rest

    async def message(
        self, prompt: Sequence[int], generation: Generation, request: JsonObject, call: Call
    ) -> JsonObject:
        text = generation.text
        if text is None:
            text = await call(lambda client: _detokenized(client, request["model"], generation.ids))
        return read_text(text, with_tools=bool(request.get("tools")))

    def stop_ids(self) -> list[int]:
        return []


def _said(text: str) -> JsonObject:
    return {"role": "assistant", "content": text}


def _common_end(one: Sequence[int], other: Sequence[int]) -> Sequence[int]:
    size = next(
        (size for size, pair in enumerate(zip(reversed(one), reversed(other), strict=False)) if pair[0] != pair[1]), 0
    )
    return one[len(one) - size :]


async def _detokenized(client: NeMoGymAsyncOpenAI, model: str, ids: Sequence[int]) -> str:
    found = await client.post_at_root("/detokenize", {"model": model, "tokens": ids})
    text = found.get("prompt", found.get("content"))
    if not isinstance(text, str):
        raise UpstreamError(client.shown_url, 200, "no text from /detokenize", cause="model")
    return text


def read_text(text: str, *, with_tools: bool) -> JsonObject:
    """The message that a text says. A tool call that is no JSON stays in the text."""
    if _THOUGHT_END in text and _THOUGHT_START not in text.partition(_THOUGHT_END)[0]:
        text = _THOUGHT_START + text  # the prompt has opened the thoughts
    calls: list[JsonObject] = []

    def take(found: re.Match[str]) -> str:
        try:
            call = json.loads(found[1])
            name, arguments = call["name"], call.get("arguments", {})
        except (ValueError, KeyError, TypeError):
            return found[0]
        if not isinstance(name, str):
            return found[0]
        calls.append(_tool_call(name, _json_text(arguments)))
        return ""

    thought, end, said = text.rpartition(_THOUGHT_END)
    content = thought + end + (_TOOL_CALL.sub(take, said) if with_tools else said)
    if calls:
        content = content.rstrip()
    return {"role": "assistant", "content": content or None, **({"tool_calls": calls} if calls else {})}


def _tool_call(name: str, arguments: str, call_id: str | None = None) -> JsonObject:
    function = {"name": name, "arguments": arguments}
    return {"id": call_id or f"call_{uuid4().hex}", "type": "function", "function": function}


class PackageRenderer:
    """Renders with the `renderers` package, which knows the template of a model family and needs its tokenizer."""

    def __init__(self, family: str, tokenizer: str, template: Mapping[str, Any]) -> None:
        try:
            import renderers  # type: ignore[import-untyped]
            import tokenizers
        except ImportError as error:
            raise MissingExtraError("`renderer` of vllm_model", "renderers") from error
        config = renderers.config_from_name(family)
        config = type(config)(**{**config.model_dump(exclude_unset=True), "thinking_retention": "all"})
        folder = find(tokenizer, what="tokenizer")
        loaded = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json" if folder.is_dir() else folder))
        self._renderer = renderers.create_renderer(
            _Tokens(loaded, tokenizer), config, chat_template_kwargs=dict(template)
        )

    async def first(self, request: JsonObject, call: Call) -> Sequence[int]:
        ids: list[int] = self._renderer.render_ids(
            _plain(request["messages"]), tools=_tools(request), add_generation_prompt=True
        )
        return ids

    async def following(
        self, before: Sequence[int], sampled: Sequence[int], request: JsonObject, call: Call
    ) -> Sequence[int] | None:
        prompt = [*before]
        bridged = self._renderer.bridge_to_next_turn(
            prompt, [*sampled], _plain(request["messages"]), tools=_tools(request)
        )
        return None if bridged is None else bridged.token_ids[len(prompt) + len(sampled) :]

    async def message(
        self, prompt: Sequence[int], generation: Generation, request: JsonObject, call: Call
    ) -> JsonObject:
        parsed = self._renderer.parse_response([*generation.ids], tools=_tools(request), prompt_ids=[*prompt])
        calls = [
            _tool_call(
                call.name,
                _json_text(call.arguments),
                call.id,
            )
            for call in parsed.tool_calls
            if call.status == "ok" and call.name
        ]
        failed = "".join(call.raw for call in parsed.tool_calls if call.status != "ok" or not call.name)
        content = (parsed.content or "") + failed
        message: JsonObject = {"role": "assistant", "content": content or None}
        if parsed.reasoning_content:
            message["reasoning_content"] = parsed.reasoning_content
        return {**message, "tool_calls": calls} if calls else message

    def stop_ids(self) -> list[int]:
        ids: list[int] = self._renderer.get_stop_token_ids()
        return ids


def _json_text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)


class _Tokens:
    """A tokenizer as the package takes it."""

    def __init__(self, tokenizer: Any, name: str) -> None:
        self._tokenizer, self.name_or_path = tokenizer, name
        self.unk_token_id = self.eos_token_id = None

    def encode(self, text: str, *_args: Any, **_options: Any) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Any, *_args: Any, skip_special_tokens: bool = False, **_options: Any) -> str:
        text: str = self._tokenizer.decode([*ids], skip_special_tokens=skip_special_tokens)
        return text

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        if isinstance(tokens, str):
            return self._tokenizer.token_to_id(tokens)
        return [self._tokenizer.token_to_id(token) for token in tokens]


def _plain(messages: Sequence[Mapping[str, Any]]) -> list[JsonObject]:
    """Messages as the package takes them: texts for contents, objects for arguments."""
    found = []
    for message in messages:
        plain = {**message, "content": content_text(message.get("content"))}
        if plain.get("tool_calls"):
            plain["tool_calls"] = [{**call, "function": _parsed(call["function"])} for call in plain["tool_calls"]]
        found.append(plain)
    return found


def _parsed(function: Mapping[str, Any]) -> JsonObject:
    try:
        return {**function, "arguments": json.loads(function.get("arguments") or "{}")}
    except ValueError:
        return {**function}


def _tools(request: JsonObject) -> list[JsonObject] | None:
    return [tool.get("function", tool) for tool in request["tools"]] if request.get("tools") else None


class Turn(NamedTuple):
    """A message with the tokens that it has, and as it is rendered."""

    message: JsonObject
    sent: JsonObject


class TokenProtocol:
    """Completes chats with prompts of ids."""

    def __init__(self, renderer: Renderer, api: EngineApi) -> None:
        self._renderer, self._engine = renderer, _ENGINES[api]
        if isinstance(renderer, PackageRenderer):
            self._engine = self._engine._replace(images=None)  # it renders texts
        self._histories: OrderedDict[bytes, bytes] = OrderedDict()
        """By the tokens of a turn: a digest of the messages before it."""
        self._context: int | None = None

    async def complete(self, params: JsonObject, turns: Sequence[Turn], *, call: Call, url: str) -> JsonObject:
        """The chat completion for a request."""
        _check(params)
        images = _images_of(turns, self._engine)
        request: JsonObject = {name: params[name] for name in _RENDERED if name in params}
        if params.get("tool_choice") == "none":
            request.pop("tools", None)
        before = next((turn.message for turn in reversed(turns) if turn.message.get(SAMPLED) is not None), None)
        with reading_reply(url):
            prompt = await self._prompt(request, turns, call)
            generation = await self._generate(prompt, params, call, images)
            sampled, values = token_ids(generation.ids), log_probs(generation.log_probs)
            extras = {
                "generation_top_log_probs": generation.top_log_probs,
                "prompt_log_probs": prompt_log_probs(generation.prompt_log_probs, prompt, before),
                "routed_experts": generation.routed_experts,
            }
            message = await self._renderer.message(prompt, generation, request, call)
        tokens = {PROMPT: prompt, SAMPLED: sampled, LOG_PROBS: values, **without_nulls(extras)}
        self._remember(joined(prompt, sampled), turns)
        return _completion(
            params["model"], message | tokens | version_fields(generation.versions), generation, len(prompt)
        )

    async def _prompt(self, request: JsonObject, turns: Sequence[Turn], call: Call) -> TokenArray[int]:
        """The prompt. It shares the array of the reply that it continues."""
        places = range(len(turns) - 1, -1, -1)
        place = next((at for at in places if turns[at].message.get(SAMPLED) is not None), None)
        if place is not None:
            before = turns[place].message
            known, sampled = token_ids(before[PROMPT]), token_ids(before[SAMPLED])
            whole = joined(known, sampled)
            if self._is_same_history(whole, turns[:place]):
                new = [turn.sent for turn in turns[place + 1 :]]
                rest = await self._renderer.following(known, sampled, {**request, "messages": new}, call)
                if rest is not None:
                    return whole.continued(new_token_ids(rest))
            logger.debug("the messages before a reply have changed, or cannot be continued; all are rendered again")
        return new_token_ids(await self._renderer.first({**request, "messages": [turn.sent for turn in turns]}, call))

    def _is_same_history(self, whole: TokenArray[int], turns: Sequence[Turn]) -> bool:
        """False if the messages before a reply are known to be others than when it was sampled."""
        known = self._histories.get(_digest(bytes(whole)))
        return known is None or known == _messages_digest(turns)

    def _remember(self, whole: TokenArray[int], turns: Sequence[Turn]) -> None:
        self._histories[_digest(bytes(whole))] = _messages_digest(turns)
        if len(self._histories) > MAX_REMEMBERED:
            self._histories.popitem(last=False)

    async def _generate(
        self, prompt: TokenArray[int], params: JsonObject, call: Call, images: Sequence[str]
    ) -> Generation:
        """What is sampled after a prompt, whatever number of requests that takes."""
        most = params.get("max_completion_tokens", params.get("max_tokens"))
        if most is None:
            most = await self._room(len(prompt), call)
        ids, values = prompt, list[float]()
        start, text, runs = len(ids), "", list[tuple[int | str | None, int]]()
        top, read = list[Sequence[tuple[int, float]]](), None
        for attempt in range(1, MAX_ABORTS + 1):
            request = self._engine.request(ids, most - (len(ids) - start), params, self._renderer.stop_ids())
            if images and self._engine.images is not None:
                request |= self._engine.images(images)
            version = trainer_version()
            found: Generation = await call(partial(self._engine.send, body=request))
            ids, text = ids.continued(new_token_ids(found.ids)), text if found.text is None else text + found.text
            values += found.log_probs
            top += found.top_log_probs or ()
            read = found.prompt_log_probs if attempt == 1 else read
            runs += found.versions or [(version, len(found.ids))]
            is_full = len(ids) - start >= most
            if found.finish_reason != "abort" or is_full:
                reason = "length" if found.finish_reason == "abort" else found.finish_reason
                whole_text = None if found.text is None else text
                extras = (top or None, read, found.routed_experts)
                return Generation(ids[start:], values, reason, whole_text, version_runs(runs), *extras)
            await pause_after_abort(attempt, has_tokens=bool(found.ids))
        raise UpstreamError("the engine", 200, f"a generation was aborted {MAX_ABORTS} times", cause="model")

    async def _room(self, used: int, call: Call) -> int:
        """How many tokens the context has left. Engines cut a completion short if they are not told."""
        if self._context is None:
            models = (await call(lambda client: client.create_models())).get("data") or [{}]
            meta = models[0].get("meta") or {}
            found = models[0].get("max_model_len") or meta.get("n_ctx") or meta.get("n_ctx_train")
            if type(found) is not int or found <= 0:
                text = "/v1/models does not say max_model_len, so set max_output_tokens in responses_create_params"
                raise RolloutError("input", text, retryable=False)
            self._context = found
        return max(1, self._context - used)


def _digest(content: bytes) -> bytes:
    return blake2b(content, digest_size=16).digest()


def _messages_digest(turns: Sequence[Turn]) -> bytes:
    return _digest(encode([turn.sent for turn in turns]))


def _check(params: JsonObject) -> None:
    for name, allowed in _NOT_SUPPORTED.items():
        if params.get(name) not in allowed:
            raise RolloutError("input", f"protocol: tokens takes no {name} {params[name]!r}.", retryable=False)


def _images_of(turns: Sequence[Turn], engine: "Engine") -> list[str]:
    """The URLs of all images of a conversation, in order. RolloutError for what the engine cannot take."""
    contents = (turn.sent.get("content") for turn in turns)
    parts = [part for content in contents if isinstance(content, list) for part in content if part["type"] != "text"]
    allowed = ("image_url",) if engine.images is not None else ()
    if (other := next((part["type"] for part in parts if part["type"] not in allowed), None)) is not None:
        takes = "text and images" if allowed else "text only with this engine_api or renderer"
        text = f"protocol: tokens takes {takes}, but a message has a part of type {other!r}. Use protocol: chat."
        raise RolloutError("input", text, retryable=False)
    return [part["image_url"]["url"] for part in parts]


def _completion(model: str, message: JsonObject, generation: Generation, read: int) -> JsonObject:
    reason, wrote = generation.finish_reason, len(generation.ids)
    choice = {
        "index": 0,
        "finish_reason": "tool_calls" if message.get("tool_calls") and reason == "stop" else reason,
        "message": message,
    }
    return {
        "id": f"chatcmpl-{uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [choice],
        "usage": {"prompt_tokens": read, "completion_tokens": wrote, "total_tokens": read + wrote},
    }


class Engine(NamedTuple):
    """How an engine is asked for tokens."""

    path: str
    """Below the root of the endpoint, beside `/v1`."""
    prompt: str
    """The parameter with the ids of the prompt."""
    request: Callable[[Sequence[int], int, JsonObject, list[int]], JsonObject]
    read: Callable[[JsonObject], Generation]
    images: Callable[[Sequence[str]], JsonObject] | None = None
    """The parameters with the images of a prompt, in which a token stands for each. None if it takes none."""

    async def send(self, client: NeMoGymAsyncOpenAI, body: JsonObject) -> Generation:
        reply = await client.post_at_root(self.path, body)
        with reading_reply(client.shown_url, reply):
            found = self.read(reply)
            _check_reply(reply, found, body[self.prompt], has_images=len(body.keys() & _IMAGES) > 0)
        return found


def _check_reply(reply: JsonObject, found: Generation, prompt: Sequence[int], *, has_images: bool) -> None:
    """TokenTraceError if an engine has read another prompt than it was sent, or gives no log-prob for a token. The
    engine puts many tokens in the place of the one for an image, so with images it reads another number."""
    if len(found.ids) != len(found.log_probs):
        raise TokenTraceError(f"{len(found.ids)} token ids, but {len(found.log_probs)} log-probs for them")
    if found.text and not found.ids:
        raise TokenTraceError("a text without tokens")
    if has_images:
        return
    choice = (reply.get("choices") or [{}])[0]
    echoed = choice.get("prompt_token_ids") or reply.get("prompt_token_ids")
    if echoed is not None and token_ids(echoed) != prompt:
        raise TokenTraceError("the engine has read another prompt than the ids that it was sent")
    counts = ((reply.get("usage") or {}).get("prompt_tokens"), (reply.get("meta_info") or {}).get("prompt_tokens"))
    if (other := next((count for count in counts if count not in (None, len(prompt))), None)) is not None:
        raise TokenTraceError(f"the engine has read {other} tokens, but was sent {len(prompt)}")


def _sampling(params: JsonObject, stop_ids: list[int]) -> JsonObject:
    given = {name: params[name] for name in _SAMPLING if params.get(name) is not None}
    return given | ({"stop_token_ids": [*given.get("stop_token_ids", ()), *stop_ids]} if stop_ids else {})


_IMAGES = frozenset(("content_parts", "image_data"))
_CHAT_ONLY = frozenset(
    (
        *("messages", "tools", "tool_choice", "parallel_tool_calls", "chat_template_kwargs", "max_completion_tokens"),
        *("logprobs", "top_logprobs", "metadata", "store", "n", "reasoning_effort", "verbosity", "service_tier"),
    )
)


def _completions_request(ids: Sequence[int], most: int, params: JsonObject, stop_ids: list[int]) -> JsonObject:
    given = {name: value for name, value in params.items() if name not in _CHAT_ONLY}
    asked = {
        "logprobs": max(1, params.get("top_logprobs") or 0),
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }
    return {**given, **_sampling(params, stop_ids), **asked, "prompt": ids, "max_tokens": most, "return_tokens": True}


def _read_completions(reply: JsonObject) -> Generation:
    choice = reply["choices"][0]
    logprobs = choice.get("logprobs") or {}
    entries = logprobs.get("content") or []  # of llama.cpp
    values = logprobs["token_logprobs"] if "token_logprobs" in logprobs else [entry["logprob"] for entry in entries]
    entries = entries or [{"token": token} for token in logprobs.get("tokens") or ()]
    ids = sampled_ids(choice.get("token_ids"), entries) if entries else choice.get("token_ids") or []
    if listed := logprobs.get("top_logprobs"):
        entries = [{"top_logprobs": [*map(_top_entry, (each or {}).items())]} for each in listed]
    return _generation(reply, choice, ids, values, entries)


def _top_entry(named: tuple[str, float]) -> JsonObject:
    return {"token": named[0], "logprob": named[1]}


def _generation(
    reply: JsonObject, choice: JsonObject, ids: Sequence[int], values: Sequence[float], entries: list[Any]
) -> Generation:
    """What a choice of vLLM has beside ids and log-probs."""
    return Generation(
        ids,
        values,
        choice.get("finish_reason") or "stop",
        choice.get("text"),
        version_in(reply, choice, len(ids)),
        top_log_probs(entries),
        choice.get("prompt_logprobs") or reply.get("prompt_logprobs"),
        choice.get("routed_experts"),
    )


def _generate_request(ids: Sequence[int], most: int, params: JsonObject, stop_ids: list[int]) -> JsonObject:
    sampling = {**_sampling(params, stop_ids), "max_tokens": most, "logprobs": params.get("top_logprobs") or 0}
    if params.get("prompt_logprobs") is not None:
        sampling["prompt_logprobs"] = params["prompt_logprobs"]
    return {"model": params["model"], "token_ids": ids, "sampling_params": sampling}


def _read_generate(reply: JsonObject) -> Generation:
    choice = reply["choices"][0]
    entries = (choice.get("logprobs") or {}).get("content") or []
    ids = sampled_ids(choice["token_ids"], entries)
    return _generation(reply, choice, ids, [entry["logprob"] for entry in entries], entries)


def _generate_images(urls: Sequence[str]) -> JsonObject:
    return {"content_parts": [{"type": "image_url", "url": url} for url in urls], "return_token_ids": True}


_SGLANG_NAMES = {"seed": "sampling_seed", "min_tokens": "min_new_tokens"}


def _sglang_request(ids: Sequence[int], most: int, params: JsonObject, stop_ids: list[int]) -> JsonObject:
    given = {_SGLANG_NAMES.get(name, name): value for name, value in _sampling(params, stop_ids).items()}
    asked: JsonObject = {
        "return_logprob": True,
        **({"top_logprobs_num": top} if (top := params.get("top_logprobs")) else {}),
    }
    if params.get("prompt_logprobs") is not None:
        asked["logprob_start_len"] = 0
    return {"input_ids": ids, "sampling_params": {**given, "max_new_tokens": most}, **asked}


def _read_sglang(reply: JsonObject) -> Generation:
    meta = reply["meta_info"]
    pairs = meta["output_token_logprobs"]
    reason = meta["finish_reason"]
    ids = reply.get("output_ids")
    ids = [token for _, token, *_ in pairs] if ids is None else ids
    if ids != [token for _, token, *_ in pairs]:
        raise TokenTraceError("the log-probs are of other tokens than the token ids")
    kind = reason["type"] if isinstance(reason, dict) else reason or "stop"
    if isinstance(reason, dict) and reason.get("status_code"):  # SGLang also says so of requests that it refuses
        raise TokenTraceError(f"the engine gave up: {reason.get('message')}")
    tops = [
        [{"id": token, "token": "", "logprob": value} for value, token, *_ in each or ()]
        for each in meta.get("output_top_logprobs") or ()
    ]
    return Generation(
        ids,
        [value for value, *_ in pairs],
        kind,
        reply.get("text"),
        version_in(reply, meta, len(ids)),
        top_log_probs([{"top_logprobs": each} for each in tops]),
        [value for value, *_ in meta.get("input_token_logprobs") or ()] or None,
        meta.get("routed_experts"),
    )


def _sglang_images(urls: Sequence[str]) -> JsonObject:
    return {"image_data": [*urls]}


_ENGINES: dict[EngineApi, Engine] = {
    "completions": Engine("/v1/completions", "prompt", _completions_request, _read_completions),
    "generate": Engine("/inference/v1/generate", "token_ids", _generate_request, _read_generate, _generate_images),
    "sglang": Engine("/generate", "input_ids", _sglang_request, _read_sglang, _sglang_images),
}
