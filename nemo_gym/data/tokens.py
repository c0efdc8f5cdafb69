"""How long a row's input is in OpenAI tokens (o200k_base), without any download."""

import importlib.util
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import orjson

from nemo_gym.errors import MissingExtraError
from nemo_gym.llm_api.base import JsonObject

EXTRA = "data"
MAX_KNOWN_TOOLS = 1000
"""A bound on memory."""


def can_count_tokens() -> bool:
    """True if the tokenizer is installed."""
    return importlib.util.find_spec("rs_bpe") is not None


@cache
def token_counter() -> Callable[[JsonObject], int]:
    """A function that counts the tokens of a row's parameters: instructions, input, and tools as JSON."""
    try:
        from rs_bpe.bpe import openai  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise MissingExtraError("Counting OpenAI tokens", EXTRA) from error
    count: Callable[[str], int] = openai.o200k_base().count
    seen_tools: dict[bytes, int] = {}

    def count_tools(tools: Any) -> int:
        """Rows of a dataset mostly offer the same tools."""
        text = orjson.dumps(tools)
        if text not in seen_tools:
            if len(seen_tools) >= MAX_KNOWN_TOOLS:
                seen_tools.clear()
            seen_tools[text] = count(text.decode())
        return seen_tools[text]

    def count_tokens(params: JsonObject) -> int:
        total = sum(map(count, _texts(params)))
        return total + count_tools(params["tools"]) if params.get("tools") else total

    return count_tokens


def _texts(params: JsonObject) -> Iterator[str]:
    if params.get("instructions"):
        yield params["instructions"]
    asked = params["input"]
    if isinstance(asked, str):
        yield asked
        return
    for item in asked:
        content = item.get("content")
        yield content if isinstance(content, str) else orjson.dumps(item).decode()
