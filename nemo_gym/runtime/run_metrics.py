"""The metrics of a whole run: those of every worker and of the process that supervises them, in one text."""

import asyncio
from collections.abc import Iterable, Mapping

from nemo_gym.client.head import token_headers
from nemo_gym.client.pool import HttpClient
from nemo_gym.common.metrics import Family, exposition, parse_exposition
from nemo_gym.common.process_metrics import process_families
from nemo_gym.errors import UpstreamError

SCRAPE_TIMEOUT_S = 3.0
"""Shorter than the ten seconds that Prometheus waits by default, so that one stuck worker hides only itself."""


async def run_metrics(urls: Mapping[str, str], *, token: str | None) -> bytes:
    """Ask every worker, by the address that is its own. One that does not answer is reported as down."""
    async with HttpClient() as http:
        pages = await asyncio.gather(*(metrics_page(http, url, token=token) for url in urls.values()))
    up = Family("nemo_gym_worker_up", "gauge", "1 if the worker answered.")
    for name, page in zip(urls, pages, strict=True):
        up.add(0 if page is None else 1, worker=name)
    found: Iterable[Family] = (family for page in pages if page for family in parse_exposition(page))
    return exposition((up, *found, *process_families(worker="head"))).encode()


async def metrics_page(http: HttpClient, url: str, *, token: str | None) -> str | None:
    """The text of `/metrics` at a server, or None if it does not answer."""
    headers = token_headers(token)
    try:
        reply = await http.fetch("GET", f"{url}/metrics", headers=headers, timeout_s=SCRAPE_TIMEOUT_S, use_proxy=False)
    except UpstreamError:
        return None
    return reply.text if reply.status == 200 else None
