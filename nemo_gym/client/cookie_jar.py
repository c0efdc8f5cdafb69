"""The session cookies of a rollout. The name of a session cookie ends in the name of its server."""

from collections.abc import Mapping


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
