"""The pages of the package miniwob, served from its wheel."""

import asyncio
import hashlib
import mimetypes
import re
from base64 import b64encode
from functools import cache
from typing import Any

from nemo_gym.config.types import PypiPackage
from nemo_gym.data.hubs.pypi import PackageFiles, package_files

PACKAGE = PypiPackage(
    package="miniwob",
    version="1.1.0",
    sha256="297006e84219d56ad037e843527ed773a4a82509dc43b6031ec4a3ad3e3e61d9",
    size_bytes=1_878_300,
)
HOST = "miniwob.test"
FOLDER = "miniwob/html"
INLINE_SCRIPT = re.compile(rb"<script>(.*?)</script>", re.DOTALL)
POLICY = (
    "default-src 'self' data:; style-src 'self' 'unsafe-inline'; script-src 'self' {scripts}; connect-src 'none'; "
    "frame-src 'none'; worker-src 'none'; object-src 'none'; base-uri 'none'; form-action 'none'"
)
"""A page runs its own scripts, known by their hashes, and no code that is typed into it."""


@cache
def _files() -> PackageFiles:
    return package_files(PACKAGE)


@cache
def _content(name: str) -> tuple[bytes, list[tuple[bytes, bytes]]] | None:
    """A file and its headers, or None if there is none of that name."""
    if name not in set(_files().names()):
        return None
    content = _files().read(name)
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    headers = {"content-type": kind, "content-length": str(len(content)), "cache-control": "max-age=86400"}
    if kind == "text/html":
        hashes = (hashlib.sha256(each).digest() for each in INLINE_SCRIPT.findall(content))
        scripts = " ".join(f"'sha256-{b64encode(each).decode()}'" for each in hashes)
        headers |= {
            "content-type": "text/html; charset=utf-8",
            "content-security-policy": POLICY.format(scripts=scripts),
        }
    return content, [(key.encode(), value.encode()) for key, value in headers.items()]


async def page_files(scope: Any, _receive: Any, send: Any) -> None:
    """An ASGI app of the package's pages."""
    await asyncio.to_thread(_files)  # the first call may download the package
    found = _content(f"{FOLDER}{scope['path']}")
    content, headers = found or (b"", [(b"content-length", b"0")])
    await send({"type": "http.response.start", "status": 200 if found else 404, "headers": headers})
    await send({"type": "http.response.body", "body": content})
