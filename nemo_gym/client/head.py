"""Ask the head server of a run, and find the token that a run requires."""

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from nemo_gym.client.pool import HttpClient
from nemo_gym.common.paths import cache_dir
from nemo_gym.errors import HeadServerError, UpstreamError

TOKEN_HEADER = "nemo-gym-token"  # noqa: S105 - the name of a header
RUN_TOKEN_ENV_VAR = "NEMO_GYM_RUN_TOKEN"  # noqa: S105 - the name of a variable
STATUS_TIMEOUT_S = 5.0


def run_token_file(head_port: int) -> Path:
    """Where the token of a run that listens beyond this machine is kept for its user's other commands."""
    return cache_dir() / "runs" / str(head_port)


def run_token(head_port: int) -> str | None:
    """The token of the run with that head server: from the environment, else from what `ng_run` left for its user."""
    told = os.environ.get(RUN_TOKEN_ENV_VAR)
    if told:
        return told
    try:
        return run_token_file(head_port).read_text() or None
    except OSError:
        return None


def get_from_head(url: str, path: str, *, token: str | None = None, timeout_s: float = STATUS_TIMEOUT_S) -> bytes:
    """One GET to a head server, for code outside an event loop. Never through a proxy: the token is for the run."""

    async def get() -> bytes:
        headers = {TOKEN_HEADER: token} if token else {}
        async with HttpClient() as http:
            reply = await http.fetch("GET", url + path, headers=headers, timeout_s=timeout_s, use_proxy=False)
        if reply.status != 200:
            raise UpstreamError(url, reply.status, reply.body.decode(errors="replace"))
        return reply.body

    try:
        with ThreadPoolExecutor(1) as thread:  # the caller's thread may have a running loop, as in a notebook
            return thread.submit(asyncio.run, get()).result()
    except UpstreamError as error:
        raise HeadServerError(
            f"Could not connect to the head server at {url}. Is `ng_run` up, and with the same head_server settings? "
            f"({error})"
        ) from error
