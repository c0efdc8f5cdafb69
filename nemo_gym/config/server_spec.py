"""The description of one server, from the configuration to the worker that serves it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nemo_gym.config.keys import DEFAULT_HOST, ServerType
from nemo_gym.config.types import Isolation


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSpec:
    """One server: what to load, its configuration, and where it listens."""

    name: str
    server_type: ServerType
    implementation: str
    entrypoint: str

    folder: Path
    """The folder of the implementation; `entrypoint` is in it."""

    config: dict[str, Any] = field(repr=False)
    """The input of the server's own config class: the block, resolved, with `name`, `host` and, if known, `port`."""

    host: str = DEFAULT_HOST

    port: int | None = None
    """None until the server's socket is bound."""

    isolation: Isolation = "shared"

    fd: int | None = None
    """The listening socket that a worker inherits."""

    @property
    def path(self) -> tuple[str, str, str]:
        """The keys of its block in the configuration."""
        return self.name, self.server_type, self.implementation

    @property
    def config_path(self) -> str:
        return ".".join(self.path)
