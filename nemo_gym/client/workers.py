"""The workers of a run, as its head server lists them."""

from typing import NamedTuple

import orjson

from nemo_gym.client.head import STATUS_TIMEOUT_S, base_url, token_headers
from nemo_gym.client.server_client import ServerClient
from nemo_gym.errors import HeadServerError, UpstreamError

SERVER_HEADER = "nemo-gym-server"
"""Names the server that a request to a worker's own address is for."""


class WorkerAddress(NamedTuple):
    """Where one worker is, and what it serves."""

    worker: int
    """Its index in the run, which the session tokens it issues begin with."""
    url: str
    """Where it alone answers HTTP requests for its servers; they name the server in the header SERVER_HEADER."""
    rows: str
    """`host:port` where it alone accepts rows of collectors."""
    servers: tuple[str, ...]
    pid: int | None = None

    @property
    def rows_address(self) -> tuple[str, int]:
        host, _, port = self.rows.rpartition(":")
        return host.strip("[]"), int(port)


async def list_workers(client: ServerClient) -> list[WorkerAddress] | None:
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
        found = orjson.loads(reply.body)
        return [WorkerAddress(**{**item, "servers": tuple(item["servers"])}) for item in found]
    except (ValueError, TypeError, KeyError) as error:
        raise HeadServerError(f"{url}/workers answered with no list of workers: {error!r}") from error
