"""The head server of a run: where it is, the token it requires, its servers and workers."""

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from nemo_gym.client.pool import HttpClient
from nemo_gym.common.metrics import Family, decode_families
from nemo_gym.common.paths import cache_dir
from nemo_gym.errors import HeadServerError, UpstreamError

if TYPE_CHECKING:
    from nemo_gym.client.server_client import ServerClient

CALLER_HEADER = "nemo-gym-caller"
"""Shows that a request comes from a server of the same run, with a key that only those have."""
TOKEN_HEADER = "nemo-gym-token"  # noqa: S105 - the name of a header
RUN_TOKEN_ENV_VAR = "NEMO_GYM_RUN_TOKEN"  # noqa: S105 - the name of a variable
STATUS_TIMEOUT_S = 5.0


def base_url(host: str, port: int) -> str:
    """Return the URL by which clients reach a server that listens on `host`."""
    reachable = "127.0.0.1" if host in ("", "0.0.0.0") else f"[{host}]" if ":" in host else host
    return f"http://{reachable}:{port}"


def address_in(block: Any) -> str | None:
    """Return the address in a server's block of the configuration, or None if the block has none."""
    try:
        inner = next(iter(next(iter(block.values())).values()))
        return base_url(inner["host"], inner["port"])
    except (AttributeError, StopIteration, KeyError, TypeError):
        return None


def run_token_file(head_port: int) -> Path:
    """Return the file with the token of a run that listens beyond this machine, for its user's other commands."""
    return cache_dir() / "runs" / str(head_port)


def run_token(head_port: int) -> str | None:
    """The token of the run with that head server: from the environment, else from what `ng_run` left for its user."""
    given = os.environ.get(RUN_TOKEN_ENV_VAR)
    if given:
        return given
    try:
        return run_token_file(head_port).read_text() or None
    except OSError:
        return None


def token_headers(token: str | None) -> dict[str, str]:
    """The header that a run with a token requires."""
    return {TOKEN_HEADER: token} if token else {}


async def fetch_addresses(http: HttpClient, url: str, *, token: str | None) -> dict[str, str]:
    """The base URLs of the servers of a run, by name, as its head server knows them now."""
    path = f"{url}/server_instances"
    reply = await http.fetch("GET", path, headers=token_headers(token), timeout_s=STATUS_TIMEOUT_S, use_proxy=False)
    if reply.status != 200:
        raise UpstreamError(path, reply.status, reply.text)
    try:
        return {str(server["process_name"]): str(server["url"]) for server in reply.json()}
    except (ValueError, TypeError, KeyError) as error:
        raise UpstreamError(path, reply.status, f"no list of servers: {error!r}") from error


def get_from_head(url: str, path: str, *, token: str | None = None, timeout_s: float = STATUS_TIMEOUT_S) -> bytes:
    """One GET to a head server, for code outside an event loop. Never through a proxy: the token is for the run."""

    async def get() -> bytes:
        headers = token_headers(token)
        async with HttpClient() as http:
            reply = await http.fetch("GET", url + path, headers=headers, timeout_s=timeout_s, use_proxy=False)
        if reply.status != 200:
            raise UpstreamError(url, reply.status, reply.text)
        return reply.content()

    try:
        with ThreadPoolExecutor(1) as thread:  # the caller's thread may have a running loop, as in a notebook
            return thread.submit(asyncio.run, get()).result()
    except UpstreamError as error:
        raise HeadServerError(
            f"Could not connect to the head server at {url}. Is `ng_run` up, and with the same head_server settings? "
            f"({error})"
        ) from error


SERVER_HEADER = "nemo-gym-server"
"""Names the server that a request to a worker's own address is for."""


class BlockedRollout(NamedTuple):
    """The rollout whose code blocked a worker until it was killed."""

    pid: int
    """The process id of the worker that was killed."""
    name: str
    """The name of the rollout, as `rollout_name` returns it."""
    place: str
    """The line that blocked it."""


def rollout_name(number: int, row_hash: str) -> str:
    """The name of a rollout on the stack of a worker. A process that is blocked can say no more than its stack."""
    return f"rollout {number} {row_hash}"


class WorkerAddress(NamedTuple):
    """The addresses and the servers of one worker."""

    worker: int
    """Its index in the run, which the session tokens it issues begin with."""
    url: str
    """The URL at which it alone answers HTTP requests for its servers; they name it in the header
    SERVER_HEADER."""
    rows: str
    """`host:port` where it alone accepts rows of collectors."""
    servers: tuple[str, ...]
    pid: int | None = None
    blocked: BlockedRollout | None = None
    """The rollout that blocked it when it was killed the last time, if that was the reason."""

    def to_json(self) -> dict[str, Any]:
        """The address as `list_workers` reads it."""
        return {**self._asdict(), "blocked": None if self.blocked is None else list(self.blocked)}

    @property
    def rows_address(self) -> tuple[str, int]:
        host, _, port = self.rows.rpartition(":")
        return host.strip("[]"), int(port)


async def list_workers(client: "ServerClient") -> list[WorkerAddress] | None:
    """The workers of the client's run. None if it has no head server that knows them."""
    head = client.head_server_config
    if head is None:
        return None
    url = base_url(head.host, head.port)
    headers = token_headers(client.token)
    try:
        reply = await client.http.fetch(
            "GET", f"{url}/workers", headers=headers, timeout_s=STATUS_TIMEOUT_S, use_proxy=False
        )
    except UpstreamError as error:
        raise HeadServerError(f"Could not get the list of workers from the head server at {url}: {error}") from error
    if reply.status != 200:
        return None
    try:
        return [_read_address(item) for item in reply.json()]
    except (ValueError, TypeError, KeyError) as error:
        raise HeadServerError(f"{url}/workers answered with no list of workers: {error!r}") from error


def _read_address(item: dict[str, Any]) -> WorkerAddress:
    blocked = item.get("blocked")
    address = WorkerAddress(**{**item, "servers": tuple(item["servers"])})
    return address._replace(blocked=None if blocked is None else BlockedRollout(*blocked))


SCRAPE_TIMEOUT_S = 3.0


async def fetch_metrics(http: HttpClient, url: str, *, token: str | None) -> list[Family]:
    """Return the metrics that a worker or head server reports, none if it does not answer."""
    options: dict[str, Any] = {"headers": token_headers(token), "timeout_s": SCRAPE_TIMEOUT_S, "use_proxy": False}
    try:
        reply = await http.fetch("GET", f"{url}/metrics.json", **options)
        return decode_families(reply.content()) if reply.status == 200 else []
    except (UpstreamError, msgspec.DecodeError):
        return []
