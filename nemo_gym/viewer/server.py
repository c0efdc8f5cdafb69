"""Serve the viewer until it is interrupted."""

import contextlib
import secrets
import socket
from collections.abc import Callable
from urllib.parse import quote

from nemo_gym.client.server_client import base_url
from nemo_gym.errors import PortError
from nemo_gym.server.limits import ServerLimits
from nemo_gym.server.request_checks import is_loopback
from nemo_gym.server.uvicorn_runner import bind, serve_until_interrupted
from nemo_gym.viewer.app import ViewerApp
from nemo_gym.viewer.config import DEFAULT_PORT, ViewerConfig
from nemo_gym.viewer.files import Files
from nemo_gym.viewer.token_texts import read_vocabulary


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
