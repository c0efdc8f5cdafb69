"""The server blocks among resolved settings."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from nemo_gym.config.keys import SERVER_TYPES, ServerType


class ServerBlock(NamedTuple):
    """A server as resolved settings have it: `<name>: {<server_type>: {<implementation>: <config>}}`."""

    name: str
    server_type: ServerType
    implementation: str
    config: Any


def blocks_in(settings: Mapping[Any, Any]) -> Iterator[ServerBlock]:
    """The server blocks among resolved settings, valid or not."""
    for name, block in settings.items():
        for server_type in SERVER_TYPES:
            inner = block.get(server_type) if isinstance(block, Mapping) else None
            for implementation, config in inner.items() if isinstance(inner, Mapping) else ():
                yield ServerBlock(str(name), server_type, str(implementation), config)
