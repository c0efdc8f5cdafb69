"""Spans of OpenTelemetry, if tracing is on. A rollout is one trace, across servers and processes.

This module imports nothing of OpenTelemetry. `nemo_gym.runtime.tracing` sets `active` while tracing is on; where it is
None, tracing costs one comparison.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol, TypeVar

T = TypeVar("T")
Attributes = Mapping[str, str | int | float | bool]
SpanKind = Literal["internal", "server", "client"]


class Span(Protocol):
    """The part of OpenTelemetry's span that is used here."""

    def set_attribute(self, key: str, value: str | int | float | bool) -> None: ...


class Tracing(Protocol):
    """Makes spans and carries them across processes."""

    def span(
        self, name: str, kind: SpanKind, attributes: Attributes, headers: Iterable[tuple[bytes, bytes]] | None
    ) -> AbstractContextManager[Span]:
        """A span inside the current one, or inside the one that the headers of a request name."""

    def set_error(self, span: Span, message: str) -> None: ...

    def headers(self) -> Mapping[str, str]:
        """The headers that name the current span."""


active: Tracing | None = None


async def traced(
    running: Awaitable[T],
    name: str,
    *,
    kind: SpanKind = "internal",
    attributes: Attributes | None = None,
    headers: Iterable[tuple[bytes, bytes]] | None = None,
    describe: Callable[[T], Mapping[str, Any]] | None = None,
) -> T:
    """Await in a span of its own. What `describe` makes of the result is added to the span; an `error` marks it as
    failed."""
    if active is None:
        return await running
    with active.span(name, kind, attributes or {}, headers) as span:
        result = await running
        for key, value in (describe(result) if describe else {}).items():
            if key == "error":
                active.set_error(span, value)
            else:
                span.set_attribute(key, value)
        return result


def set_active(tracing: Tracing | None) -> None:
    """Turn tracing on or off for this process."""
    global active  # noqa: PLW0603 - one per process, like its configuration
    active = tracing


def header_lines() -> str:
    """Return the current span as header lines of a request."""
    return "" if active is None else "".join(f"{name}: {value}\r\n" for name, value in active.headers().items())
