"""Limits on what clients may make a server hold in memory or keep open, and the config keys that change them."""

from pydantic import Field

from nemo_gym.common.descriptors import connection_budget
from nemo_gym.config.types import GlobalKeys

MAX_CONNECTIONS = 65_536
GRACE_S = 3
"""Time limit for requests in flight when the server stops."""


class ServerLimits(GlobalKeys):
    """Global config keys. A request over a limit gets an error response that names the key."""

    max_body_bytes: int = Field(default=256 * 2**20, ge=1)
    """The largest request body. A rollout of many turns with token ids and log-probs is tens of megabytes."""

    max_body_keys: int = Field(default=250_000, ge=1)
    """The most keys of all JSON objects in a request body. Each one may become a validation error."""

    max_unread_bytes: int = Field(default=2**30, ge=1)
    """The most bytes of all request bodies that a server is receiving. More are refused as overload."""

    max_header_bytes: int = Field(default=64 * 2**10, ge=1024)
    """The largest request line plus headers; also bounds trailers and the framing of a chunked body."""

    header_timeout_s: float = Field(default=60.0, gt=0)
    """How long a connection may take until the headers of a request are complete."""

    max_connections: int | None = Field(default=None, ge=1)
    """The most connections that all servers of a process accept. By default half of its open-file limit."""

    max_sessions: int = Field(default=100_000, ge=1)
    """The most sessions of one server."""

    allowed_hosts: frozenset[str] = frozenset()
    """Names, besides those of loopback, under which a server that listens on loopback may be addressed."""

    def connections(self) -> int:
        """How many connections this process accepts, even if it makes none itself."""
        if self.max_connections is not None:
            return self.max_connections
        return max(1, min(MAX_CONNECTIONS, connection_budget() // 2))
