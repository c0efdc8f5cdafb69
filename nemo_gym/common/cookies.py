"""Cookies in HTTP headers, parsed. Only names and values matter here, not where or how long a cookie is valid."""

from collections.abc import Iterable


def parse_cookies(header: bytes) -> dict[str, str]:
    """The cookies of a `Cookie` header."""
    return _pairs(header.decode("latin-1").split(";"))


def parse_set_cookies(headers: Iterable[str]) -> dict[str, str]:
    """The cookies that `Set-Cookie` headers set."""
    return _pairs(header.partition(";")[0] for header in headers)


def _pairs(parts: Iterable[str]) -> dict[str, str]:
    split = (part.partition("=") for part in parts)
    return {name.strip(): value.strip() for name, equals, value in split if equals and name.strip()}
