"""A collector of traces: receives OTLP over HTTP, as a real one does, and keeps the spans."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class OtlpReceiver:
    """The spans received so far, each with the process that sent it as `pid`."""

    def __init__(self, server: ThreadingHTTPServer) -> None:
        self.url = f"http://127.0.0.1:{server.server_port}"
        self.spans: list[dict[str, Any]] = []

    def receive(self, body: bytes) -> None:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            pid = next(each.value.int_value for each in resource.resource.attributes if each.key == "process.pid")
            for scope in resource.scope_spans:
                self.spans += [
                    {
                        "name": span.name,
                        "trace": span.trace_id,
                        "id": span.span_id,
                        "parent": span.parent_span_id,
                        "pid": pid,
                        "error": span.status.message,
                    }
                    for span in scope.spans
                ]

    def by_trace(self) -> list[list[dict[str, Any]]]:
        traces: dict[bytes, list[dict[str, Any]]] = {}
        for span in self.spans:
            traces.setdefault(span["trace"], []).append(span)
        return list(traces.values())


@contextmanager
def otlp_receiver() -> Iterator[OtlpReceiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            receiver.receive(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - named so by the base class
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver = OtlpReceiver(server)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
