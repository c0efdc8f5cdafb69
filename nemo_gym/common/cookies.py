"""Cookies in HTTP headers, and the session cookies of a rollout. The name of a session cookie ends in the name of its
server. Only names and values matter here, not where or how long a cookie is valid."""

from collections.abc import Iterable, Mapping


def parse_cookies(header: bytes) -> dict[str, str]:
    """The cookies of a `Cookie` header."""
    return _pairs(header.decode("latin-1").split(";"))


def parse_set_cookies(headers: Iterable[str]) -> dict[str, str]:
    """The cookies that `Set-Cookie` headers set."""
    return _pairs(header.partition(";")[0] for header in headers)


def _pairs(parts: Iterable[str]) -> dict[str, str]:
    split = (part.partition("=") for part in parts)
    return {name.strip(): value.strip() for name, equals, value in split if equals and name.strip()}


class CookieJar(dict[str, str]):
    """The session cookies of one rollout: those that came with the request, and those that servers set since."""

    def merge(self, cookies: Mapping[str, str]) -> None:
        """Add the cookies that a server set. A reply without cookies removes none."""
        self.update(cookies)

    def forget(self, server: str) -> None:
        """Drop the session on that server, which has ended."""
        for name in [name for name in self if server_of(name) == server]:
            del self[name]


def server_of(session_cookie: str) -> str:
    """The server that a session cookie belongs to."""
    return session_cookie.rpartition("___")[2]
