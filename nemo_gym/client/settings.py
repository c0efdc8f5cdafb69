"""The settings of the HTTP client: global keys of the configuration, the same for every server of a worker."""

from pydantic import Field

from nemo_gym.config.types import GlobalKeys


class HttpSettings(GlobalKeys):
    """Limits on connections, and on replies, so that no server can exhaust the memory of a worker."""

    global_aiohttp_connector_limit: int = Field(default=102_400, ge=1)
    """Upper bound for open connections."""

    global_aiohttp_connector_limit_per_host: int = Field(default=16_384, ge=1)
    """Upper bound for open connections to one server: as many as rollouts in flight, or they would queue."""

    connect_timeout_s: float = Field(default=10.0, gt=0)
    """How long opening a connection may take."""

    max_response_bytes: int = Field(default=2**28, ge=1)
    """Upper bound for a reply as it is received, headers and framing included."""

    max_decompressed_response_bytes: int = Field(default=2**28, ge=1)
    """Upper bound for the body of a compressed reply once it is decompressed."""

    max_response_header_bytes: int = Field(default=2**20, ge=1)
    """Upper bound for the headers of a reply."""

    max_response_headers: int = Field(default=1000, ge=1)
    """Upper bound for the number of header lines of a reply."""
