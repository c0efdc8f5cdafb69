"""Turn OpenTelemetry on for this process, if the configuration asks for it."""

import contextlib
import logging
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import Field

from nemo_gym.common import tracing
from nemo_gym.common.exceptions import exception_str
from nemo_gym.common.redaction import redact
from nemo_gym.config.types import GlobalKeys
from nemo_gym.errors import MissingExtraError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span

logger = logging.getLogger(__name__)

EXPORT_TIMEOUT_S = 3.0
FLUSH_TIMEOUT_S = 3.5
"""Shorter than a worker may take to stop, so that an unreachable collector of traces cannot delay it for long."""
QUEUE, BATCH, EVERY_MS = 32_768, 2_048, 1_000.0
"""Spans that wait, that are sent at once, and how often. What does not fit into the queue is dropped."""
MAX_MESSAGE = 500


class TracingSettings(GlobalKeys):
    """Global keys of a configuration."""

    tracing_enabled: bool = False
    """Send a span of every rollout, request and model call to an OpenTelemetry collector."""

    tracing_endpoint: str | None = Field(default=None, pattern="^https?://")
    """Base URL of the collector's OTLP/HTTP port. By default the standard OTEL_EXPORTER_OTLP_* variables decide, else
    it is http://localhost:4318."""

    tracing_sample_ratio: float = Field(default=1.0, ge=0, le=1)
    """Share of rollouts that are traced. A rollout is traced as a whole or not at all."""


@contextlib.contextmanager
def tracing_of(config: Mapping[str, Any], *, exporter: "SpanExporter | None" = None) -> Iterator[None]:
    """Trace what happens inside, if `config` asks for it. Spans are sent to `exporter` if one is given."""
    settings = TracingSettings.of(config)
    if not settings.tracing_enabled or tracing.active is not None:
        yield
        return
    provider = _provider(settings, exporter)
    tracing.set_active(_OpenTelemetry(provider))
    try:
        yield
    finally:
        tracing.set_active(None)
        # what is left is sent for a limited time: a batch is retried, and there may be several
        sending = threading.Thread(target=provider.shutdown, daemon=True)
        sending.start()
        sending.join(FLUSH_TIMEOUT_S)
        if sending.is_alive():
            logger.warning("some spans could not be sent to the tracing endpoint within %g s", FLUSH_TIMEOUT_S)


class _OpenTelemetry:
    def __init__(self, provider: "TracerProvider") -> None:
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._tracer = provider.get_tracer("nemo_gym")
        self._propagator = TraceContextTextMapPropagator()
        self._kinds = {kind.name.lower(): kind for kind in SpanKind}

    @contextlib.contextmanager
    def span(
        self,
        name: str,
        kind: tracing.SpanKind,
        attributes: tracing.Attributes,
        headers: Iterable[tuple[bytes, bytes]] | None,
    ) -> "Iterator[Span]":
        from opentelemetry.context import get_current

        context = None
        if headers is not None:
            carrier = {key.decode("latin-1"): value.decode("latin-1") for key, value in headers}
            context = self._propagator.extract(carrier, get_current())
        # not recorded by OpenTelemetry itself, which would write the message of an exception with the secrets in it
        with self._tracer.start_as_current_span(
            name, context, self._kinds[kind], dict(attributes), record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield span
            except BaseException as error:
                self.set_error(span, f"{type(error).__name__}: {exception_str(error)}")
                raise

    def set_error(self, span: Any, message: str) -> None:
        from opentelemetry.trace import Status, StatusCode

        span.set_status(Status(StatusCode.ERROR, redact(message)[:MAX_MESSAGE]))

    def headers(self) -> dict[str, str]:
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier)
        return carrier


def _provider(settings: TracingSettings, exporter: "SpanExporter | None") -> "TracerProvider":
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio
    except ImportError as error:
        raise MissingExtraError("tracing_enabled", "tracing") from error
    url = settings.tracing_endpoint and settings.tracing_endpoint.rstrip("/") + "/v1/traces"
    provider = TracerProvider(
        sampler=ParentBasedTraceIdRatio(settings.tracing_sample_ratio),
        resource=Resource.create({"service.name": "nemo-gym", "process.pid": os.getpid()}),
        shutdown_on_exit=False,
    )
    sent_to = exporter or OTLPSpanExporter(url, timeout=EXPORT_TIMEOUT_S)
    provider.add_span_processor(BatchSpanProcessor(sent_to, QUEUE, EVERY_MS, BATCH))
    return provider
