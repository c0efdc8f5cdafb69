"""Share the sandbox of an environment with its agent: the provider's block in the configuration, and a descriptor."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class DirectSandboxConnection(BaseModel):
    """Connect with the provider itself: `AsyncSandbox.connect(descriptor, provider=...)`."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["direct"] = "direct"
    provider_config_ref: str
    descriptor: Any


class SandboxAccess(BaseModel):
    """A sandbox that somebody else owns."""

    model_config = ConfigDict(extra="forbid")

    connection: DirectSandboxConnection
    workdir: str | None = None
