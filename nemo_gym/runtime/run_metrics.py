"""The metrics of a whole run: those of every worker and of the process that supervises them, in one text."""

import asyncio
import contextlib
from collections.abc import Iterable, Mapping

from nemo_gym.client.server_client import TOKEN_HEADER
from nemo_gym.common.metrics import Family, exposition, parse_exposition
from nemo_gym.common.process_metrics import process_families

SCRAPE_TIMEOUT_S = 3.0
"""Shorter than the ten seconds that Prometheus waits by default, so that one stuck worker hides only itself."""

Address = tuple[str, int]


async def run_metrics(workers: Mapping[str, Address], *, token: str | None) -> bytes:
    """Ask every worker, by any one of its servers. One that does not answer is reported as down."""
    pages = await asyncio.gather(*(_page_of(address, token) for address in workers.values()))
    up = Family("nemo_gym_worker_up", "gauge", "1 if the worker answered.")
    for name, page in zip(workers, pages, strict=True):
        up.add(0 if page is None else 1, worker=name)
    found: Iterable[Family] = (family for page in pages if page for family in parse_exposition(page))
    return exposition((up, *found, *process_families(worker="head"))).encode()


async def _page_of(address: Address, token: str | None) -> str | None:
    try:
        async with asyncio.timeout(SCRAPE_TIMEOUT_S):
            status, body = await get_raw(*address, "/metrics", token=token)
    except (OSError, TimeoutError, ValueError):
        return None
    return body.decode(errors="replace") if status == 200 else None


async def get_raw(host: str, port: int, path: str, *, token: str | None) -> tuple[int, bytes]:
    """One GET, without an HTTP client: importing one would take longer than all else that the supervisor does."""
    shown = f"{TOKEN_HEADER}: {token}\r\n" if token else ""
    reader, writer = await asyncio.open_connection(host, port)
    with contextlib.closing(writer):
        writer.write(f"GET {path} HTTP/1.1\r\nhost: {host}\r\n{shown}connection: close\r\n\r\n".encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    return int(head.split(b" ", 2)[1]), body
