"""Short ways to build requests and responses, for tests and for checks of verifiers."""

from typing import Any
from uuid import uuid4

import orjson


def says(*texts: str) -> dict[str, Any]:
    """Return a response with a message for each text."""
    return response_of(*(message(text) for text in texts))


def response_of(*items: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return a response with these output items."""
    return {"id": "resp_test", "created_at": 0, "model": "test", "object": "response", "output": list(items), **fields}


def message(text: str) -> dict[str, Any]:
    """An output item: the model says something."""
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "id": "msg_test", "role": "assistant", "status": "completed", "content": [part]}


def calls(name: str, arguments: Any = None, *, call_id: str | None = None) -> dict[str, Any]:
    """An output item: the model calls a tool. Arguments given as a text are taken as they are."""
    text = arguments if isinstance(arguments, str) else orjson.dumps(arguments or {}).decode()
    return {"type": "function_call", "name": name, "arguments": text, "call_id": call_id or f"call_{uuid4().hex[:8]}"}


def tool_output(output: str, *, call_id: str = "call_test") -> dict[str, Any]:
    """An output item: a tool answered."""
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def example_row(prompt: str = "Hello.", **fields: Any) -> dict[str, Any]:
    """A row with one user message. With `response=` it is what `verify` is asked."""
    return {"responses_create_params": {"input": [{"role": "user", "content": prompt}]}, **fields}
