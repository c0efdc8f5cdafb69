"""A model that replies from a script: by rule or in order, with latency and faults on demand.

It replaces a remote LLM, in the same worker or, over HTTP, as an endpoint for the other model servers."""

import asyncio
import time
from typing import Any, Self
from uuid import uuid4

import orjson
from pydantic import PrivateAttr, model_validator

from nemo_gym import NeMoGymChatCompletionCreateParamsNonStreaming, ServerReply
from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, SimpleResponsesAPIModel
from nemo_gym.llm_api.responses import FrozenRequest
from responses_api_models.scripted_model.script import Reply, Script, ScriptInput

_REPEATED = (
    *("instructions", "max_output_tokens", "metadata", "reasoning", "temperature", "text", "tool_choice", "tools"),
    *("top_p", "truncation", "user"),
)
"""Fields of a request that its response repeats."""


class ScriptedModelConfig(BaseResponsesAPIModelConfig, extra="forbid"):
    """The script, or the path of its file."""

    script_fpath: str | None = None
    replies: list[Reply] | None = None
    model: str = "scripted"
    latency_s: float = 0.0

    @model_validator(mode="after")
    def _has_one_script(self) -> Self:
        if (self.script_fpath is None) == (self.replies is None):
            raise ValueError("give either script_fpath (a JSONL file of replies) or replies (a list of them)")
        return self


class ScriptedModel(SimpleResponsesAPIModel):
    config: ScriptedModelConfig

    _script: Script = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        replies, path = self.config.replies, self.config.script_fpath
        self._script = Script(replies) if replies is not None else Script.read(path or "")

    async def responses(self, body: FrozenRequest) -> dict[str, Any] | ServerReply:
        request = FrozenRequest.of(body)
        params, conversation = request.params, ScriptInput.of_responses(request.items)
        reply = self._script.reply(conversation)
        fault = await self._latency_and_fault(reply)
        if fault is not None:
            return fault
        prompt_tokens, completion_tokens = conversation.words + len((params.instructions or "").split()), _words(reply)
        return {
            **{name: getattr(params, name) for name in _REPEATED},
            "id": f"resp_{uuid4().hex}",
            "created_at": int(time.time()),
            "model": self.config.model,
            "object": "response",
            "status": "incomplete" if reply.incomplete else "completed",
            "incomplete_details": {"reason": reply.incomplete} if reply.incomplete else None,
            "output": _output(reply),
            "parallel_tool_calls": params.parallel_tool_calls is not False,
            "usage": {
                "input_tokens": prompt_tokens,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": completion_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": prompt_tokens + completion_tokens,
            },
        }

    async def chat_completions(
        self, body: NeMoGymChatCompletionCreateParamsNonStreaming
    ) -> dict[str, Any] | ServerReply:
        conversation = ScriptInput.of_chat([dict(message) for message in body.messages])
        reply = self._script.reply(conversation)
        fault = await self._latency_and_fault(reply)
        if fault is not None:
            return fault
        prompt_tokens, completion_tokens = conversation.words, _words(reply)
        finish = "tool_calls" if reply.call else "stop"
        if reply.incomplete:
            finish = "length" if reply.incomplete == "max_output_tokens" else reply.incomplete
        return {
            "id": f"chatcmpl-{uuid4().hex}",
            "created": int(time.time()),
            "model": self.config.model,
            "object": "chat.completion",
            "choices": [{"index": 0, "finish_reason": finish, "logprobs": None, "message": _message(reply)}],
            "usage": {
                "prompt_tokens": prompt_tokens,
                "completion_tokens": completion_tokens,
                "total_tokens": prompt_tokens + completion_tokens,
            },
        }

    async def _latency_and_fault(self, reply: Reply) -> ServerReply | None:
        """Wait for the latency of the reply, and return its fault, if it has one."""
        latency_s = self.config.latency_s if reply.latency_s is None else reply.latency_s
        if latency_s > 0:
            await asyncio.sleep(latency_s)
        if reply.status is None and reply.garbage is None:
            return None
        headers = {} if reply.retry_after_s is None else {"Retry-After": f"{reply.retry_after_s:g}"}
        error = {"error": {"message": f"The script answers {reply.status}.", "type": "scripted"}}
        body = error if reply.garbage is None else reply.garbage.encode()
        return ServerReply(self.config.name, reply.status or 200, body, headers=headers)


def _output(reply: Reply) -> list[dict[str, Any]]:
    """The reply as the items of a response."""
    items: list[dict[str, Any]] = []
    if reply.think is not None:
        summary = [{"type": "summary_text", "text": reply.think}]
        items.append({"type": "reasoning", "id": f"rs_{uuid4().hex}", "summary": summary, "encrypted_content": None})
    if reply.say is not None:
        text = {"type": "output_text", "text": reply.say, "annotations": []}
        message = {"id": f"msg_{uuid4().hex}", "role": "assistant", "status": "completed", "content": [text]}
        items.append({"type": "message", **message})
    for call in reply.call:
        made = {"call_id": f"call_{uuid4().hex}", "name": call.name, "arguments": _arguments(call.arguments)}
        items.append({"type": "function_call", "id": f"fc_{uuid4().hex}", "status": "completed", **made})
    return items


def _message(reply: Reply) -> dict[str, Any]:
    """The reply as a chat message."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.say, "refusal": None}
    if reply.think is not None:
        message["reasoning_content"] = reply.think
    if reply.call:
        functions = [{"name": call.name, "arguments": _arguments(call.arguments)} for call in reply.call]
        message["tool_calls"] = [
            {"id": f"call_{uuid4().hex}", "type": "function", "function": function} for function in functions
        ]
    return message


def _arguments(arguments: dict[str, Any] | str) -> str:
    return arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()


def _words(reply: Reply) -> int:
    return sum(len(text.split()) for text in (reply.say, reply.think) if text)
