"""The scripted model with token ids and log-probs: a token is a character of a simple chat template."""

from typing import Any

from nemo_gym.llm_api.base import type_of
from nemo_gym.openai_utils import (
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponseCreateParamsNonStreaming,
    encode,
)
from responses_api_models.scripted_model.app import ScriptedModel, ScriptedModelConfig


class TokenModelConfig(ScriptedModelConfig):
    pass


class TokenModel(ScriptedModel):
    config: TokenModelConfig

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming) -> Any:
        reply = await super().responses(body)
        if isinstance(reply, dict):
            items = [{"role": "user", "content": body.input}] if isinstance(body.input, str) else body.input
            parts = [_of_item(item if isinstance(item, dict) else item.model_dump()) for item in items]
            reply["output"][-1] |= _tokens(parts, [_of_item(item) for item in reply["output"]])
        return reply

    async def chat_completions(self, body: NeMoGymChatCompletionCreateParamsNonStreaming) -> Any:
        reply = await super().chat_completions(body)
        if isinstance(reply, dict):
            parts = [part for message in body.messages for part in _of_message(dict(message))]
            message = reply["choices"][0]["message"]
            message |= _tokens(parts, _of_message(message))
        return reply


def _tokens(parts: list[tuple[str, str]], said: list[tuple[str, str]]) -> dict[str, Any]:
    prompt, text = _rendered(parts) + "<assistant>", "".join(text for _, text in said) + "<end>"
    return {
        "prompt_token_ids": list(map(ord, prompt)),
        "generation_token_ids": list(map(ord, text)),
        "generation_log_probs": [-0.5] * len(text),
    }


def _rendered(parts: list[tuple[str, str]]) -> str:
    text, before = "", None
    for role, part in parts:
        joins = role == before == "assistant"
        text = text.removesuffix("<end>") + part if joins else f"{text}<{role}>{part}"
        text, before = text + "<end>", role
    return text


def _of_item(item: dict[str, Any]) -> tuple[str, str]:
    if type_of(item) == "function_call":
        return "assistant", f"{item['name']}({item['arguments']})"
    if type_of(item) == "function_call_output":
        return "tool", _text(item["output"])
    return ("assistant", "") if type_of(item) == "reasoning" else (item["role"], _text(item["content"]))


def _of_message(message: dict[str, Any]) -> list[tuple[str, str]]:
    parts = [(message["role"], _text(message.get("content") or ""))]
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    return [*parts, *(("assistant", f"{function['name']}({function['arguments']})") for function in functions)]


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or "" if isinstance(part, dict) else encode(part).decode() for part in content)
