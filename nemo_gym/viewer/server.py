"""The viewer's JSON API and page, and the command that serves them until it is interrupted."""

import asyncio
import contextlib
import functools
import logging
import secrets
import socket
import sqlite3
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar
from urllib.parse import parse_qs, quote

import orjson
from pydantic import BeforeValidator, Field

from nemo_gym.client.server_client import base_url
from nemo_gym.common.paths import find
from nemo_gym.common.statistics import PASS_THRESHOLD
from nemo_gym.config.types import CommandConfig
from nemo_gym.errors import ConfigError, GymError, PortError
from nemo_gym.server.asgi import Receive, RefusedError, Scope, Send, limit_body, read_body
from nemo_gym.server.request_checks import ServerLimits, check_json, check_origin, check_token, is_loopback
from nemo_gym.server.uvicorn_runner import bind, serve_until_interrupted
from nemo_gym.viewer import display, live, queries
from nemo_gym.viewer.files import Files, QueryTimeoutError
from nemo_gym.viewer.index import Index
from nemo_gym.viewer.queries import FilterError, search

STATIC = Path(__file__).parent / "static"
_TYPES = {
    ".html": b"text/html; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
}


def load_assets() -> dict[str, tuple[bytes, bytes]]:
    """Content type and content of each path. Only these paths exist, so none leads out of the folder."""
    found = {f"/{path.name}": (_TYPES[path.suffix], path.read_bytes()) for path in STATIC.iterdir() if path.is_file()}
    return {**found, "/": found["/index.html"]}


def content_security_policy() -> bytes:
    """No script, style or connection but our own; no inline script or style; images from records only as data.

    `require-trusted-types-for` makes the browser itself refuse to parse text as HTML."""
    rules = (
        *("default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self' data:", "connect-src 'self'"),
        *("base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'", "require-trusted-types-for 'script'"),
    )
    return "; ".join(rules).encode()


T = TypeVar("T")

logger = logging.getLogger(__name__)

PAGE = 100
ROW_WAIT_S = 10.0
FIRST_PAGE_WAIT_S = 2.0
MAX_BODY = 10_000
MAX_SEARCH = 500
THREADS = 4
RAW_CHUNK = 1 << 20
SECURITY_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
    (b"cache-control", b"no-store"),
]
RAW_POLICY = b"default-src 'none'; sandbox"


class Query:
    """The parameters of a request."""

    def __init__(self, scope: Scope) -> None:
        given = scope["query_string"].decode("latin-1")
        try:
            self._values: dict[str, list[str]] = parse_qs(given, keep_blank_values=True, max_num_fields=50)
        except ValueError as error:
            raise FilterError(f"The query of the request cannot be read: {error}.") from error

    def text(self, name: str, default: str = "") -> str:
        return self._values.get(name, [default])[-1]

    def number(self, name: str, default: int | None = None) -> int:
        text = self.text(name, "" if default is None else str(default))
        if not text.isdigit() or len(text) > 15:
            raise FilterError(f"The parameter '{name}' is '{text[:40]}'; expected a number from 0.")
        return int(text)

    def real(self, name: str, default: float) -> float:
        try:
            return float(self.text(name, str(default)))
        except ValueError as error:
            raise FilterError(f"The parameter '{name}' is not a number.") from error

    def words(self, name: str) -> list[str]:
        return [word for word in self._values.get(name, []) if word][:20]

    def path(self, name: str) -> display.Path:
        """A JSON list of keys and indices."""
        try:
            found = orjson.loads(self.text(name) or b"[]")
        except ValueError as error:
            raise FilterError(f"The parameter '{name}' is not JSON.") from error
        if not isinstance(found, list) or not all(isinstance(key, str | int) for key in found):
            raise FilterError(f"The parameter '{name}' is not a list of keys.")
        return tuple(found)


class ViewerApp:
    """Answers the page's requests from the indexes of some files."""

    def __init__(
        self,
        files: Files,
        *,
        token: str | None = None,
        allowed_hosts: frozenset[str] = frozenset(),
        vocabulary: Mapping[int, str] | None = None,
    ) -> None:
        self._files, self._token, self._allowed_hosts = files, token, allowed_hosts
        self._vocabulary = vocabulary
        self._assets = load_assets()
        self._threads = ThreadPoolExecutor(THREADS, "viewer")
        self._pages: dict[str, Callable[[Query], Any]] = {
            "/api/files": lambda _query: {"files": files.listing(), "live": bool(live.find_runs())},
            "/api/rows": self._rows,
            "/api/fields": lambda query: files.query(query.number("file"), queries.fields),
            "/api/summary": self._summary,
            "/api/tasks": self._tasks,
            "/api/failures": lambda query: self._query_all(query.number("file"), queries.failures),
            "/api/row": self._row,
            "/api/tokens": self._tokens,
            "/api/compare": self._compare,
        }
        self._streams: dict[str, Callable[[Query, Receive, Send], Awaitable[None]]] = {
            "/api/search": self._search,
            "/api/raw": self._raw,
        }

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            await self._respond(scope, receive, send)
        except RefusedError as error:
            await _send_json(send, {"detail": error.detail}, error.status)
        except display.NoSuchRowError as error:
            await _send_json(send, {"detail": str(error)}, 404)
        except QueryTimeoutError as error:
            await _send_json(send, {"detail": str(error)}, 504)
        except GymError as error:
            await _send_json(send, {"detail": str(error)}, 400)
        except Exception as error:
            logger.exception("%s failed", scope["path"])
            await _send_json(send, {"detail": f"Internal error: {type(error).__name__}"}, 500)

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        method, path, headers = scope["method"], scope["path"], dict(scope["headers"])
        if self._token is None:
            check_origin(scope, headers, self._allowed_hosts)
        if method == "GET" and path in self._assets:
            content_type, body = self._assets[path]
            return await _send(send, body, content_type, policy=content_security_policy())
        if self._token is not None:
            check_token(headers, self._token, "viewer")
        if method == "GET" and path in self._pages:
            found = await self._in_thread(self._pages[path], Query(scope))
            return await _send_json(send, found)
        if method == "GET" and path in self._streams:
            return await self._streams[path](Query(scope), receive, send)
        if method == "GET" and path == "/api/live":
            return await _send_json(send, {"runs": await live.statuses(live.find_runs())})
        if method == "POST" and path == "/api/live/cancel":
            check_json(headers)
            body = await read_body(limit_body(receive, MAX_BODY))
            return await _send_json(send, await live.cancel(live.find_runs(), body))
        raise RefusedError(404, "Not Found")

    async def _in_thread(self, function: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, functools.partial(function, *args))

    def _query_all(self, number: int, ask: Callable[[sqlite3.Connection], T]) -> T:
        """The result of a query on all rows of a file. A file of usual size is waited for until it is indexed."""
        self._files.index(number).wait_for(sys.maxsize, timeout_s=FIRST_PAGE_WAIT_S)
        return self._files.query(number, ask)

    def _rows(self, query: Query) -> Any:
        number, offset, limit = query.number("file"), query.number("offset", 0), query.number("limit", PAGE)
        index = self._files.index(number)
        index.wait_for(offset + min(limit, PAGE), timeout_s=FIRST_PAGE_WAIT_S)
        page = functools.partial(
            queries.rows_page,
            where=query.text("where"),
            sort=query.text("sort"),
            offset=offset,
            limit=limit,
            columns=query.words("column"),
        )
        return {**self._files.query(number, page), "progress": index.progress()}

    def _summary(self, query: Query) -> Any:
        number = query.number("file")
        figures = functools.partial(
            queries.summary, where=query.text("where"), pass_threshold=query.real("pass_threshold", 1.0)
        )
        return {**self._query_all(number, figures), "progress": self._files.index(number).progress()}

    def _tasks(self, query: Query) -> Any:
        page = functools.partial(
            queries.tasks_page,
            where=query.text("where"),
            sort=query.text("sort"),
            offset=query.number("offset", 0),
            limit=query.number("limit", PAGE),
            pass_threshold=query.real("pass_threshold", 1.0),
        )
        return self._query_all(query.number("file"), page)

    def _row(self, query: Query) -> Any:
        number, row = query.number("file"), query.number("row")
        found = display.row_view(self._index_of_row(query), row)
        return {**found, **self._files.query(number, functools.partial(queries.neighbours, row=row))}

    def _index_of_row(self, query: Query) -> Index:
        """Somebody may open the link to a row before it is indexed."""
        index = self._files.index(query.number("file"))
        index.wait_for(query.number("row") + 1, timeout_s=ROW_WAIT_S)
        return index

    def _tokens(self, query: Query) -> Any:
        call = query.number("call") if query.text("call") else None
        index, offset = self._index_of_row(query), query.number("offset", 0)
        return display.token_view(index, query.number("row"), call=call, offset=offset, vocabulary=self._vocabulary)

    def _compare(self, query: Query) -> Any:
        first, second = query.number("file"), query.number("other")
        if first == second:
            raise ConfigError("A file cannot be compared with itself.")
        gaps = [self._query_all(number, queries.has_rows_without_task) for number in (first, second)]
        has_gaps = any(gaps)
        page = functools.partial(
            queries.compare_page,
            other=str(self._files.index(second).database),
            sort=query.text("sort"),
            offset=query.number("offset", 0),
            limit=query.number("limit", PAGE),
            by_prompt=has_gaps,
        )
        return {**self._files.query(first, page), "by_prompt": has_gaps}

    async def _search(self, query: Query, receive: Receive, send: Send) -> None:
        """Hits and progress, a JSON object on each line, until the client has seen enough and disconnects."""
        text = query.text("text")
        if not 0 < len(text) <= MAX_SEARCH:
            raise FilterError(f"The text to search for has {len(text)} characters; expected 1 to {MAX_SEARCH}.")
        index, gone = self._files.index(query.number("file")), asyncio.Event()
        watching = asyncio.create_task(_set_on_disconnect(receive, gone))
        try:
            await _start(send, b"application/x-ndjson", policy=RAW_POLICY)
            found = search(index, text, is_cancelled=gone.is_set)
            while (batch := await self._in_thread(_next, found)) is not None and not gone.is_set():
                line = orjson.dumps({type(batch).__name__.lower(): batch._asdict()}, default=str) + b"\n"
                await send({"type": "http.response.body", "body": line, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            watching.cancel()

    async def _raw(self, query: Query, _receive: Receive, send: Send) -> None:
        """A row or one value of it in full, as plain text."""
        index, row, path = self._files.index(query.number("file")), query.number("row"), query.path("path")
        if path:
            body = await self._in_thread(display.raw_value, index, row, path)
            await _send(send, body, b"text/plain; charset=utf-8", policy=RAW_POLICY)
            return
        place = await self._in_thread(index.line_at, row)
        if place is None:
            raise display.NoSuchRowError(f"{index.path.name} has no row {row}.")
        await _start(send, b"text/plain; charset=utf-8", policy=RAW_POLICY)
        for start in range(place[0], sum(place), RAW_CHUNK):
            chunk = await self._in_thread(index.source.read, start, min(RAW_CHUNK, sum(place) - start))
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def _next(iterator: Iterator[Any]) -> Any:
    return next(iterator, None)


async def _set_on_disconnect(receive: Receive, gone: asyncio.Event) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    gone.set()


async def _start(send: Send, content_type: bytes, *, policy: bytes, status: int = 200) -> None:
    headers = [(b"content-type", content_type), (b"content-security-policy", policy), *SECURITY_HEADERS]
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def _send(send: Send, body: bytes, content_type: bytes, *, policy: bytes, status: int = 200) -> None:
    await _start(send, content_type, policy=policy, status=status)
    await send({"type": "http.response.body", "body": body})


async def _send_json(send: Send, value: Any, status: int = 200) -> None:
    await _send(send, orjson.dumps(value, default=str), b"application/json", policy=RAW_POLICY, status=status)


DEFAULT_PORT = 7860


def _as_list(given: Any) -> Any:
    return [given] if isinstance(given, str) else given


class ViewerConfig(CommandConfig):
    """Show rollouts, failures or datasets as a web page, or with --text in the terminal.

    Files may be compressed (.gz, .zst) and may still be written. Open two files to compare them task by task. The
    index of a large file is kept beside it as `<name>_index.sqlite`.

    Examples:

    ```bash
    ng view
    ng view rollouts.jsonl
    ng view before.jsonl after.jsonl
    ng view --text rollouts.jsonl
    ng view --text rollouts.jsonl +row=3
    ng_viewer +jsonl_fpath=rollouts.jsonl +server_port=7861
    ```
    """

    POSITIONAL: ClassVar[tuple[str, ...]] = ("jsonl_fpath",)

    jsonl_fpath: Annotated[list[str], BeforeValidator(_as_list)] = Field(default=["results"], min_length=1)
    """The file to show, or a list of files. A folder stands for the newest rollouts in it. `ng view FILE ...` is the
    same."""

    server_host: str = "127.0.0.1"
    """Address to listen on. Beyond this machine the page requires the token in the address that the command prints."""

    server_port: int | None = Field(default=None, ge=0, lt=65536)
    """Port of the page. By default 7860, or a free one if that is taken."""

    tokenizer: str | None = None
    """A `tokenizer.json`, or a folder with one. The token view shows the text of each token with it; without it, only
    where the record has it."""

    text: bool = False
    """Print to the terminal instead of serving a page."""

    row: int | None = Field(default=None, ge=0)
    """With text: print the conversation of this row."""

    where: str = ""
    """With text: a filter, such as `reward < 1 and response.usage.total_tokens > 500`."""

    sort: str = ""
    """With text: the field to sort rows by; `-reward` is descending."""

    search: str | None = None
    """With text: print the rows that contain this text."""

    limit: int = Field(default=20, ge=1)
    """With text: number of rows to print."""

    pass_threshold: float = PASS_THRESHOLD
    """With text: minimum reward that counts as a pass."""


FILE_NAME = "tokenizer.json"


def read_vocabulary(path: str) -> Mapping[int, str]:
    """The text of each token id of a `tokenizer.json`, or of the one in a folder."""
    place = find(path, what="tokenizer")
    file = place / FILE_NAME if place.is_dir() else place
    try:
        found = orjson.loads(file.read_bytes())
        vocabulary = _vocabulary_of(found["model"]["vocab"])
        special = {int(token["id"]): str(token["content"]) for token in found.get("added_tokens") or ()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{file} is not a {FILE_NAME} with a vocabulary: {error!r}.") from error
    is_byte_level = any(token.startswith("Ġ") for token in vocabulary.values())
    decode = _from_bytes if is_byte_level else _from_pieces
    return {**{number: decode(token) for number, token in vocabulary.items()}, **special}


def _vocabulary_of(found: Any) -> dict[int, str]:
    """BPE and WordPiece have an object of ids, Unigram a list of tokens with scores."""
    if isinstance(found, list):
        return {number: str(token) for number, (token, _score) in enumerate(found)}
    return {int(number): str(token) for token, number in found.items()}


def _from_bytes(token: str) -> str:
    """A token of a byte-level vocabulary, in which every byte is written as a visible character."""
    table = _bytes_of_characters()
    if not all(character in table for character in token):
        return token
    return bytes(table[character] for character in token).decode(errors="replace")


def _from_pieces(token: str) -> str:
    if len(token) == 6 and token.startswith("<0x"):  # a single byte
        return bytes([int(token[3:5], 16)]).decode(errors="replace")
    return token.replace("▁", " ")


@cache
def _bytes_of_characters() -> dict[str, int]:
    """The table of GPT-2: printable Latin-1 stands for itself, other bytes for characters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {**{chr(byte): byte for byte in printable}, **{chr(0x100 + n): byte for n, byte in enumerate(others)}}


async def serve_viewer(
    config: ViewerConfig, *, limits: ServerLimits, run_token: str | None, announce: Callable[[list[str]], None]
) -> None:
    """Serve the page; `announce` gets its addresses as soon as it can be opened: one for this machine and, if it
    listens on all of them, one for others."""
    token = run_token or (None if is_loopback(config.server_host) else secrets.token_urlsafe(24))
    vocabulary = None if config.tokenizer is None else read_vocabulary(config.tokenizer)
    with contextlib.closing(_bind(config)) as listening, Files(config.jsonl_fpath) as files:
        app = ViewerApp(files, token=token, allowed_hosts=limits.allowed_hosts, vocabulary=vocabulary)
        port = listening.getsockname()[1]
        fragment = f"/#token={quote(token)}" if token else "/"
        hosts = [config.server_host]
        if config.server_host in ("", "0.0.0.0", "::"):
            hosts.append(socket.gethostname())
        announce([base_url(host, port) + fragment for host in hosts])
        with contextlib.closing(app):
            await serve_until_interrupted({port: app}, [listening], limits)


def _bind(config: ViewerConfig) -> socket.socket:
    if config.server_port is not None:
        return bind(config.server_host, config.server_port)
    with contextlib.suppress(PortError):
        return bind(config.server_host, DEFAULT_PORT)
    return bind(config.server_host, 0)
