"""Server-sent events: an answer that is sent piece by piece, as it is made."""

from collections.abc import AsyncGenerator, Iterable, Iterator
from typing import Any

from nemo_gym.llm_api.base import JsonObject
from nemo_gym.llm_api.json_codec import encode

CONTENT_TYPE = "text/event-stream; charset=utf-8"
Events = AsyncGenerator[bytes, None]


class EventStream:
    """A handler's return value that is streamed: encoded events, made while they are sent.

    The generator is closed when the last event is sent and when the client goes away. Its session, if it has one, is
    no longer held by then.
    """

    def __init__(self, events: Events) -> None:
        self.events = events

    @classmethod
    def of(cls, events: Iterable[bytes]) -> "EventStream":
        """From events that need no waiting for."""

        async def each() -> Events:
            for event in events:
                yield event

        return cls(each())

    async def joined(self) -> bytes:
        """All events at once, as a caller gets them that reads whole bodies."""
        return b"".join([event async for event in self.events])


def event(data: Any, *, name: str | None = None) -> bytes:
    """One event as it is on the wire. JSON has no line breaks, so one line holds it."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + encode(data) + b"\n\n"


DONE = b"data: [DONE]\n\n"


def response_events(response: JsonObject, _request: JsonObject) -> Iterator[bytes]:
    """The events of `/v1/responses`."""
    at_first = {**response, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    events: list[JsonObject] = [
        {"type": "response.created", "response": at_first},
        {"type": "response.in_progress", "response": at_first},
    ]
    for index, item in enumerate(response["output"]):
        events += ({**data, "output_index": index} for data in _item_events(item))
    events.append({"type": f"response.{response.get('status') or 'completed'}", "response": response})
    for number, data in enumerate(events):
        yield event({**data, "sequence_number": number}, name=data["type"])


def _item_events(item: JsonObject) -> Iterator[JsonObject]:
    at_first, inside = _opened(item)
    yield {"type": "response.output_item.added", "item": at_first}
    for data in inside:
        yield {**data, "item_id": item.get("id") or item.get("call_id") or ""}
    yield {"type": "response.output_item.done", "item": item}


def _opened(item: JsonObject) -> tuple[JsonObject, Iterable[JsonObject]]:
    """The item as it is before its contents, and the events that fill it."""
    if item["type"] == "message":
        parts = enumerate(item["content"])
        inside = ({**data, "content_index": index} for index, part in parts for data in _part_events(part))
        return {**item, "status": "in_progress", "content": []}, inside
    if item["type"] == "function_call":
        arguments = item["arguments"]
        done = {"type": "response.function_call_arguments.done", "arguments": arguments, "name": item["name"]}
        delta = {"type": "response.function_call_arguments.delta", "delta": arguments}
        return {**item, "status": "in_progress", "arguments": ""}, (delta, done)
    if item["type"] == "reasoning":
        summaries = enumerate(item["summary"])
        inside = ({**data, "summary_index": index} for index, part in summaries for data in _summary_events(part))
        return {**item, "summary": []}, inside
    return item, ()


def _part_events(part: JsonObject) -> Iterator[JsonObject]:
    kind, key = ("refusal", "refusal") if part["type"] == "refusal" else ("output_text", "text")
    more: JsonObject = {} if kind == "refusal" else {"logprobs": part.get("logprobs") or []}
    yield {"type": "response.content_part.added", "part": {**part, key: ""}}
    yield {"type": f"response.{kind}.delta", "delta": part[key], **more}
    yield {"type": f"response.{kind}.done", key: part[key], **more}
    yield {"type": "response.content_part.done", "part": part}


def _summary_events(part: JsonObject) -> Iterator[JsonObject]:
    yield {"type": "response.reasoning_summary_part.added", "part": {**part, "text": ""}}
    yield {"type": "response.reasoning_summary_text.delta", "delta": part["text"]}
    yield {"type": "response.reasoning_summary_text.done", "text": part["text"]}
    yield {"type": "response.reasoning_summary_part.done", "part": part}


def completion_events(completion: JsonObject, _request: JsonObject) -> Iterator[bytes]:
    """The events of `/v1/completions`: its chunks have the shape of the whole."""
    yield event(completion)
    yield DONE


def chat_events(completion: JsonObject, request: JsonObject) -> Iterator[bytes]:
    """The chunks of `/v1/chat/completions`. Usage is included only on request."""
    base = {**completion, "object": "chat.completion.chunk", "usage": None}
    for choice in completion["choices"]:
        message, others = choice["message"], {key: value for key, value in choice.items() if key != "message"}
        calls = [{"index": index, **call} for index, call in enumerate(message.get("tool_calls") or ())]
        delta = {**message, **({"tool_calls": calls} if calls else {})}
        yield event({**base, "choices": [{**others, "delta": delta, "finish_reason": None}]})
        last = {"index": choice["index"], "delta": {}, "finish_reason": choice["finish_reason"]}
        yield event({**base, "choices": [last]})
    if (request.get("stream_options") or {}).get("include_usage") is True:
        yield event({**base, "choices": [], "usage": completion.get("usage")})
    yield DONE


def message_events(message: JsonObject) -> Iterator[bytes]:
    """The events of `/v1/messages`."""
    usage = message["usage"]
    at_first = {**message, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 0}}
    yield _named("message_start", message=at_first)
    for index, block in enumerate(message["content"]):
        empty, deltas = _block_deltas(block)
        yield _named("content_block_start", index=index, content_block=empty)
        for delta in deltas:
            yield _named("content_block_delta", index=index, delta=delta)
        yield _named("content_block_stop", index=index)
    stop = {"stop_reason": message["stop_reason"], "stop_sequence": message["stop_sequence"]}
    yield _named("message_delta", delta=stop, usage=usage)
    yield _named("message_stop")


def _block_deltas(block: JsonObject) -> tuple[JsonObject, list[JsonObject]]:
    if block["type"] == "text":
        return {**block, "text": ""}, [{"type": "text_delta", "text": block["text"]}]
    if block["type"] == "thinking":
        thinking = {"type": "thinking_delta", "thinking": block["thinking"]}
        return {**block, "thinking": "", "signature": ""}, [
            thinking,
            {"type": "signature_delta", "signature": block["signature"]},
        ]
    if block["type"] == "tool_use":
        return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": encode(block["input"]).decode()}]
    return block, []


def _named(name: str, **data: Any) -> bytes:
    return event({"type": name, **data}, name=name)
