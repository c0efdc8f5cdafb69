"""A small HTTP server for tests that can be told to fail."""

import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit


class Request(NamedTuple):
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Reply(NamedTuple):
    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = MappingProxyType({})
    sent_bytes: int | None = None
    """Break off after so many bytes of the body."""
    has_length: bool = True
    """If false, only the end of the connection ends the body."""

    @classmethod
    def json(cls, value: Any, status: int = 200, **headers: str) -> "Reply":
        return cls(status, json.dumps(value).encode(), {"Content-Type": "application/json", **headers})


@dataclass
class Fault:
    """Answer matching requests with `reply` instead, so many times."""

    pattern: str
    reply: Reply
    times: int = 1


@dataclass
class FaultyService:
    """Subclass it with an `answer`."""

    url: str = ""
    requests: list[Request] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    def answer(self, request: Request) -> Reply:
        raise NotImplementedError

    def handle(self, request: Request) -> Reply:
        self.requests.append(request)
        for fault in self.faults:
            if fault.times and re.search(fault.pattern, f"{request.method} {request.path}"):
                fault.times -= 1
                return fault.reply
        return self.answer(request)

    def calls(self, pattern: str) -> list[Request]:
        return [each for each in self.requests if re.search(pattern, f"{each.method} {each.path}")]


@contextmanager
def served(service: FaultyService) -> Iterator[None]:
    """Serve on a port of its own until the end of the block."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_any(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = self._chunks() if self.headers.get("Transfer-Encoding") == "chunked" else self.rfile.read(length)
            parts = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            headers = {name.lower(): value for name, value in self.headers.items()}
            reply = service.handle(Request(self.command, unquote(parts.path), query, headers, body))
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            if not reply.has_length:
                self.send_header("Connection", "close")
            elif "Content-Length" not in reply.headers:
                self.send_header("Content-Length", str(len(reply.body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(reply.body[: reply.sent_bytes])
            if reply.sent_bytes is not None:
                self.close_connection = True

        do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_any  # noqa: N815 - as the base class calls them

        def _chunks(self) -> bytes:
            found = b""
            while size := int(self.rfile.readline(), 16):
                found += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return found

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as the base class calls it
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        service.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
