"""Server-sent events: an answer that is sent piece by piece, as it is made."""

from collections.abc import AsyncGenerator, Iterable
from typing import Any

from nemo_gym.llm_api.json_codec import encode

CONTENT_TYPE = "text/event-stream; charset=utf-8"
Events = AsyncGenerator[bytes, None]


class EventStream:
    """What a handler returns instead of a value: encoded events, made while they are sent.

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
