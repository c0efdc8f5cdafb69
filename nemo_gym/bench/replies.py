"""What the simulated endpoint answers: prepared replies to requests of both OpenAI APIs, and faults."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from nemo_gym.llm_api.builders import calls, message, response_of

TEXT = "The answer is \\boxed{B}."
USAGE = {
    "input_tokens": 120,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 60,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 180,
}
ALWAYS_SENT: dict[str, Any] = {
    "error": None,
    "incomplete_details": None,
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": {"effort": None, "summary": None},
    "service_tier": "default",
    "status": "completed",
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "truncation": "disabled",
    "usage": USAGE,
    "user": None,
}
"""What an endpoint repeats or fills in, asked or not. A reply without it would be cheaper to read than real ones."""
_STREAM = re.compile(rb'"stream":\s*true')
CHAT_USAGE = {"prompt_tokens": 120, "completion_tokens": 60, "total_tokens": 180}


class Fault(NamedTuple):
    """How a request fails."""

    reply: bytes = b""
    stalls: bool = False
    """No reply, ever."""
    cuts: bool = False
    """Half of the reply."""
    hangs_up: bool = False


def http_response(
    body: bytes, status: bytes = b"200 OK", headers: bytes = b"", *, kind: bytes = b"application/json"
) -> bytes:
    """The whole HTTP response."""
    head = b"HTTP/1.1 %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n%b\r\n"
    return head % (status, kind, len(body), headers) + body


_ERROR = b'{"error": {"message": "a simulated fault"}}'
FAULTS = {
    "429": Fault(http_response(_ERROR, b"429 Too Many Requests", b"retry-after: 0\r\n")),
    "500": Fault(http_response(_ERROR, b"500 Internal Server Error")),
    "503": Fault(http_response(_ERROR, b"503 Service Unavailable")),
    "garbage": Fault(http_response(b"<html>Sign in</html>")),
    "cut": Fault(cuts=True, hangs_up=True),
    "hang_up": Fault(hangs_up=True),
    "stall": Fault(stalls=True),
}
"""By the name that a user gives."""
DEFAULT_FAULTS = tuple(name for name in FAULTS if name != "stall")
"""All but the one that takes as long as the client's own time limit."""


class Replies:
    """The replies of a model that calls tools on all turns but the last."""

    def __init__(
        self, *, turns: int, payload_bytes: int, tool_arguments: Mapping[str, str], body: str | None = None
    ) -> None:
        self._outputs = turns - 1
        text = TEXT + "x" * max(0, payload_bytes - len(TEXT))
        self._text = http_response(body.encode() if body else _response(message(text)))
        self._chat_text = http_response(body.encode() if body else _completion(text, None))
        self._streamed_text = http_response(_chunks(text), kind=b"text/event-stream")
        said = [message(text)] if payload_bytes else []
        self._tool_calls = {
            name.encode(): http_response(_response(*said, calls(name, orjson.loads(given), call_id="call_1")))
            for name, given in tool_arguments.items()
        }
        self._chat_tool_calls = {
            name.encode(): http_response(_completion(text if payload_bytes else None, (name, given)))
            for name, given in tool_arguments.items()
        }
        names = b"|".join(re.escape(name) for name in self._tool_calls)
        self._offered = re.compile(rb'"name":\s*"(' + names + rb')"') if names else None

    def to(self, request: bytes) -> bytes:
        """The reply to a request, both as they are on the wire."""
        is_chat = b"/chat/completions" in request[:200]
        done = request.count(b'"role":"tool"' if is_chat else b'"function_call_output"')
        tools = request.find(b'"tools":') if done < self._outputs else -1
        found = self._offered.search(request, tools) if self._offered is not None and tools >= 0 else None
        if found is None:
            return self._text if not is_chat else self._streamed_text if _STREAM.search(request) else self._chat_text
        return (self._chat_tool_calls if is_chat else self._tool_calls)[found[1]]


def _response(*items: dict[str, Any]) -> bytes:
    return orjson.dumps(response_of(*items, **ALWAYS_SENT))


def _completion(text: str | None, call: tuple[str, str] | None) -> bytes:
    said: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
    if call is not None:
        name, given = call
        said["tool_calls"] = [
            {"id": "call_1", "type": "function", "function": {"name": name, "arguments": given}},
        ]
    choice = {"index": 0, "finish_reason": "stop" if call is None else "tool_calls", "logprobs": None, "message": said}
    fields = {"id": "chatcmpl-1", "object": "chat.completion", "created": 0, "model": "stub"}
    return orjson.dumps({**fields, "choices": [choice], "usage": CHAT_USAGE})


def _chunks(text: str) -> bytes:
    """A streamed chat completion that says a text."""
    fields = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 0, "model": "stub"}
    deltas: list[dict[str, Any]] = [{"delta": {"role": "assistant", "content": text}, "finish_reason": None}]
    deltas.append({"delta": {}, "finish_reason": "stop"})
    chunks = [{**fields, "choices": [{"index": 0, **delta}]} for delta in deltas]
    chunks.append({**fields, "choices": [], "usage": CHAT_USAGE})
    return b"".join(b"data: %b\n\n" % orjson.dumps(chunk) for chunk in chunks) + b"data: [DONE]\n\n"
