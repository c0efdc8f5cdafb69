"""The viewer's JSON API and page, the files that it shows and the live runs of this user, and the command that serves
them until it is interrupted."""

import asyncio
import contextlib
import functools
import logging
import os
import secrets
import shlex
import socket
import sqlite3
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar
from urllib.parse import parse_qs, quote

import orjson
from pydantic import BeforeValidator, Field

from nemo_gym.client.server_client import base_url
from nemo_gym.common.statistics import PASS_THRESHOLD
from nemo_gym.config.types import CommandConfig
from nemo_gym.errors import ConfigError, GymError, PortError
from nemo_gym.rollouts.live import live_folder
from nemo_gym.rollouts.registry import RunSummary, find_entry, run_id, set_tags
from nemo_gym.rollouts.resume import read_manifest
from nemo_gym.rollouts.store import journal_path
from nemo_gym.server.asgi import Receive, RefusedError, Scope, Send, limit_body, read_body
from nemo_gym.server.request_checks import ServerLimits, check_json, check_origin, check_token, is_loopback
from nemo_gym.server.uvicorn_runner import bind, serve_until_interrupted
from nemo_gym.viewer import display, queries
from nemo_gym.viewer.files import Files, QueryTimeoutError
from nemo_gym.viewer.index import Index
from nemo_gym.viewer.queries import FilterError, search
from nemo_gym.viewer.runs import matching
from nemo_gym.viewer.vocabulary import read_vocabulary, vocabulary_of_run

logger = logging.getLogger(__name__)


ASK_TIMEOUT_S = 5.0
LIST_TIMEOUT_S = 0.5
"""How long the list of runs waits for the collections in progress. Of a busy one it shows what the registry knows."""
LIVE_TIMEOUT_S = 1.0
"""How long the live view waits for them. It says how many did not answer, and asks again each second."""
MAX_TAG = 60


class LiveRun:
    """One collection in progress."""

    def __init__(self, place: Path) -> None:
        self.place = place
        found = orjson.loads(place.read_bytes())
        self.pid, self._port, self._token = found["pid"], found["port"], found["token"]

    @property
    def id(self) -> str:
        return self.place.stem

    async def status(self, timeout_s: float = ASK_TIMEOUT_S) -> dict[str, Any] | None:
        """Return what the collector reports. None if it has ended, or is too busy to answer in time."""
        try:
            found = await self._ask({}, timeout_s)
        except (OSError, TimeoutError, ValueError):
            return None
        known = find_entry(run_id(Path(found["output"])))
        return {"id": self.id, **found, **(known.model_dump(include={"environment", "model"}) if known else {})}

    async def cancel(self, number: int) -> bool:
        """Cancel a rollout. Return False if it, or the collection, has already ended."""
        try:
            return bool((await self._ask({"cancel": number})).get("cancelled"))
        except TimeoutError as error:
            raise GymError(f"The collection did not answer within {ASK_TIMEOUT_S:g} s. Try again.") from error
        except (OSError, ValueError):
            return False

    async def _ask(self, what: dict[str, Any], timeout_s: float = ASK_TIMEOUT_S) -> dict[str, Any]:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            with contextlib.closing(writer):
                writer.write(orjson.dumps({"token": self._token, **what}) + b"\n")
                found: dict[str, Any] = orjson.loads(await reader.read())
        if "error" in found:
            raise ValueError(found["error"])
        return found


def find_runs() -> list[LiveRun]:
    """Return the running collections of this user. Files of killed ones are removed."""
    found = []
    for place in sorted(live_folder().glob("*.json")):
        with contextlib.suppress(OSError, ValueError, KeyError):
            run = LiveRun(place)
            if _is_alive(run.pid):
                found.append(run)
            else:
                place.unlink(missing_ok=True)
    return found


async def statuses(runs: list[LiveRun], timeout_s: float = ASK_TIMEOUT_S) -> list[dict[str, Any]]:
    """Return the status of each run that answers in time."""
    found = await asyncio.gather(*(run.status(timeout_s) for run in runs))
    return [status for status in found if status is not None]


async def cancel_rollout(runs: list[LiveRun], body: bytes) -> dict[str, Any]:
    """Cancel the rollout that the page names: `{"run": id, "number": number}`."""
    try:
        asked = orjson.loads(body)
        run_id, number = asked["run"], asked["number"]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError("The request does not name a run and the number of a rollout.") from error
    run = next((run for run in runs if run.id == run_id), None)
    return {"cancelled": run is not None and isinstance(number, int) and await run.cancel(number)}


def change_tags(body: bytes) -> dict[str, Any]:
    """Replace the tags of the run that the page names: `{"run": id, "tags": [...]}`."""
    try:
        asked = orjson.loads(body)
        run, tags = str(asked["run"]), [str(tag)[:MAX_TAG] for tag in asked["tags"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError("The request does not name a run and its tags.") from error
    return {"tags": set_tags(run, tags).tags}


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


STATIC = Path(__file__).parent / "static"
_TYPES = {
    ".html": b"text/html; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
}


def load_assets() -> dict[str, tuple[bytes, bytes]]:
    """Return the content type and content of each path. Only these paths exist, so none can lead outside the
    folder."""
    found = {f"/{path.name}": (_TYPES[path.suffix], path.read_bytes()) for path in STATIC.iterdir() if path.is_file()}
    return {**found, "/": found["/index.html"]}


def content_security_policy() -> bytes:
    """Return the CSP: only our own scripts, styles and connections, nothing inline, images of records only as data.

    `require-trusted-types-for` makes the browser itself refuse to parse text as HTML."""
    rules = (
        *("default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self' data:", "connect-src 'self'"),
        *("base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'", "require-trusted-types-for 'script'"),
    )
    return "; ".join(rules).encode()


PAGE = 100
MAX_RUNS = 2000
MAX_COMPARED = 8
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
T = TypeVar("T")
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
        """Return a path: a JSON list of keys and indices."""
        try:
            found = orjson.loads(self.text(name) or b"[]")
        except ValueError as error:
            raise FilterError(f"The parameter '{name}' is not JSON.") from error
        if not isinstance(found, list) or not all(isinstance(key, str | int) for key in found):
            raise FilterError(f"The parameter '{name}' is not a list of keys.")
        return tuple(found)


class ViewerApp:
    """The ASGI app: answers the page's requests from the indexes of the files."""

    def __init__(
        self,
        files: Files,
        *,
        token: str | None = None,
        allowed_hosts: frozenset[str] = frozenset(),
        vocabulary: Mapping[int, str] | None = None,
    ) -> None:
        self._files, self._token, self._allowed_hosts = files, token, allowed_hosts
        self._vocabulary, self._vocabulary_of_run = vocabulary, functools.cache(vocabulary_of_run)
        self._assets = load_assets()
        self._threads = ThreadPoolExecutor(THREADS, "viewer")
        self._pages: dict[str, Callable[[Query], Any]] = {
            "/api/files": self._listing,
            "/api/rows": self._rows,
            "/api/fields": lambda query: files.query(query.text("file"), queries.fields),
            "/api/summary": self._summary,
            "/api/tasks": self._tasks,
            "/api/failures": lambda query: self._query_all(query.text("file"), queries.failures),
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
        if method == "GET" and path == "/api/runs":
            live = await statuses(find_runs(), LIST_TIMEOUT_S)
            return await _send_json(send, await self._in_thread(self._runs, Query(scope), live))
        if method == "POST" and path == "/api/runs/tags":
            check_json(headers)
            body = await read_body(limit_body(receive, MAX_BODY))
            return await _send_json(send, await self._in_thread(change_tags, body))
        if method == "GET" and path == "/api/live":
            runs = find_runs()
            answered = await statuses(runs, LIVE_TIMEOUT_S)
            return await _send_json(send, {"runs": answered, "silent": len(runs) - len(answered)})
        if method == "POST" and path == "/api/live/cancel":
            check_json(headers)
            body = await read_body(limit_body(receive, MAX_BODY))
            return await _send_json(send, await cancel_rollout(find_runs(), body))
        raise RefusedError(404, "Not Found")

    async def _in_thread(self, function: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, functools.partial(function, *args))

    def _query_all(self, key: str, ask: Callable[[sqlite3.Connection], T]) -> T:
        """Run a query on all rows of a file. Waits a moment for the index, which is enough for files of usual size."""
        self._files.index(key).wait_for(sys.maxsize, timeout_s=FIRST_PAGE_WAIT_S)
        return self._files.query(key, ask)

    def _listing(self, query: Query) -> Any:
        """List the opened files, after opening those that the page asks for."""
        for key in query.words("open"):
            with contextlib.suppress(display.NoSuchRowError):  # the view says so
                self._files.index(key)
        files = self._files
        return {"files": files.listing(), "live": bool(find_runs()), "lists_runs": files.lists_runs}

    def _runs(self, query: Query, live: list[dict[str, Any]]) -> Any:
        """List the runs, with what collections in progress say of theirs."""
        progress = {status["output"]: status for status in live}
        found = list(matching(self._files.runs(), query.text("search").split()))
        listed = [self._run(run, progress.get(run.output)) for run in found[:MAX_RUNS]]
        return {"runs": listed, "total": len(found), "is_registry": self._files.is_registry}

    def _run(self, run: RunSummary, status: dict[str, Any] | None) -> dict[str, Any]:
        shown = run.model_dump(exclude={"pid", "process_start"})
        now = {} if status is None else {"scored": status["scored"], "mean": status["mean_reward"]}
        failed = {} if status is None else {"failed": sum(status["failed"].values()), "state": "running"}
        is_there = Path(run.output).is_file()
        return {**shown, **now, **failed, "folder": self._files.folder_of(run), "is_there": is_there}

    def _rows(self, query: Query) -> Any:
        key, offset, limit = query.text("file"), query.number("offset", 0), query.number("limit", PAGE)
        index = self._files.index(key)
        index.wait_for(offset + min(limit, PAGE), timeout_s=FIRST_PAGE_WAIT_S)
        page = functools.partial(
            queries.rows_page,
            where=query.text("where"),
            sort=query.text("sort"),
            offset=offset,
            limit=limit,
            columns=query.words("column"),
        )
        return {**self._files.query(key, page), "progress": index.progress()}

    def _summary(self, query: Query) -> Any:
        key = query.text("file")
        query_statistics = functools.partial(
            queries.summary, where=query.text("where"), pass_threshold=query.real("pass_threshold", 1.0)
        )
        return {**self._query_all(key, query_statistics), "progress": self._files.index(key).progress()}

    def _tasks(self, query: Query) -> Any:
        page = functools.partial(
            queries.tasks_page,
            where=query.text("where"),
            sort=query.text("sort"),
            offset=query.number("offset", 0),
            limit=query.number("limit", PAGE),
            pass_threshold=query.real("pass_threshold", 1.0),
        )
        return self._query_all(query.text("file"), page)

    def _row(self, query: Query) -> Any:
        key, row = query.text("file"), query.number("row")
        index = self._index_of_row(query)
        found = {**display.row_view(index, row), "fork": _fork_command(index.path, row)}
        return {**found, **self._files.query(key, functools.partial(queries.neighbours, row=row))}

    def _index_of_row(self, query: Query) -> Index:
        """Return the index after waiting for the row: its link may be opened before it is indexed."""
        index = self._files.index(query.text("file"))
        index.wait_for(query.number("row") + 1, timeout_s=ROW_WAIT_S)
        return index

    def _tokens(self, query: Query) -> Any:
        call = query.number("call") if query.text("call") else None
        index, offset = self._index_of_row(query), query.number("offset", 0)
        vocabulary = self._vocabulary or self._vocabulary_of_run(index.path)
        return display.token_view(index, query.number("row"), call=call, offset=offset, vocabulary=vocabulary)

    def _compare(self, query: Query) -> Any:
        keys = [query.text("file"), *query.words("other")]
        paths = [self._files.index(key).path for key in keys]
        if len(set(paths)) < len(paths):
            raise ConfigError("A file cannot be compared with itself.")
        if not 2 <= len(keys) <= MAX_COMPARED:
            raise ConfigError(f"Expected 2 to {MAX_COMPARED} files to compare, found {len(keys)}.")
        gaps = [self._query_all(key, queries.has_rows_without_task) for key in keys]
        has_gaps = any(gaps)
        page = functools.partial(
            queries.compare_page,
            others=[str(self._files.index(key).database) for key in keys[1:]],
            sort=query.text("sort"),
            offset=query.number("offset", 0),
            limit=query.number("limit", PAGE),
            by_prompt=has_gaps,
        )
        return {**self._files.query(keys[0], page), "by_prompt": has_gaps}

    async def _search(self, query: Query, receive: Receive, send: Send) -> None:
        """Stream hits and progress as JSON lines, until the end or until the client disconnects."""
        text = query.text("text")
        if not 0 < len(text) <= MAX_SEARCH:
            raise FilterError(f"The text to search for has {len(text)} characters; expected 1 to {MAX_SEARCH}.")
        index, gone = self._files.index(query.text("file")), asyncio.Event()
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
        """Send a complete row, or one of its values, as plain text."""
        index, row, path = self._files.index(query.text("file")), query.number("row"), query.path("path")
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


def _fork_command(output: Path, row: int) -> str | None:
    """The command that runs a rollout again, without its step. None if its calls were not stored."""
    if not journal_path(output).is_file():
        return None
    arguments: list[str] = []
    with contextlib.suppress(ConfigError):  # it cannot be read
        manifest = read_manifest(output)
        arguments = manifest.command[1:] if manifest is not None else []
    given = [each for each in arguments if each.lstrip("+").startswith("config_paths=")]
    return shlex.join(["ng_fork", *given, f"+rollouts_jsonl_fpath={output}", f"+row={row}"])


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
    ng view results/mcqa
    ng view rollouts.jsonl
    ng view before.jsonl after.jsonl
    ng view --text rollouts.jsonl
    ng view --text rollouts.jsonl +row=3
    ng_viewer +jsonl_fpath=rollouts.jsonl +server_port=7861
    ```
    """

    POSITIONAL: ClassVar[tuple[str, ...]] = ("jsonl_fpath",)

    jsonl_fpath: Annotated[list[str], BeforeValidator(_as_list)] = Field(default_factory=list)
    """The file to show, or a list of files, folders, or ids of runs. A folder is shown as a list of all rollouts in
    it. By default the page lists all runs of yours, as `ng runs` does. `ng view FILE ...` is the same."""

    server_host: str = "127.0.0.1"
    """Address to listen on. Beyond this machine the page requires the token in the address that the command prints."""

    server_port: int | None = Field(default=None, ge=0, lt=65536)
    """Port of the page. By default 7860, or a free one if that is taken."""

    tokenizer: str | None = None
    """A `tokenizer.json`, a folder with one, or a GGUF file. The token view shows the text of each token with it. By
    default the tokenizer of the model that made the rollouts, if it is on this machine, or what the record has."""

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
