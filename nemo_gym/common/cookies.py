"""Cookies in HTTP headers, parsed. Only names and values matter here, not where or how long a cookie is valid."""

from collections.abc import Iterable


def parse_cookies(header: bytes) -> dict[str, str]:
    """The cookies of a `Cookie` header."""
    pairs = (part.partition("=") for part in header.decode("latin-1").split(";"))
    return {name.strip(): value.strip() for name, equals, value in pairs if equals and name.strip()}


def parse_set_cookies(headers: Iterable[str]) -> dict[str, str]:
    """The cookies that `Set-Cookie` headers set."""
    pairs = (header.partition(";")[0].partition("=") for header in headers)
    return {name.strip(): value.strip() for name, equals, value in pairs if equals and name.strip()}
