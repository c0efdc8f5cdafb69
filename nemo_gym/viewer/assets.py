"""The files of the page. There is no build step: what is in `static/` is what the browser gets."""

from pathlib import Path

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
