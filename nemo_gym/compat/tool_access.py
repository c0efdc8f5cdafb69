"""The tools that an agent session may use: over HTTP, as the environment serves them, or over MCP."""

from typing import Annotated, Literal

from pydantic import Field

from nemo_gym.compat.episodes import Identifier, Strict


class MCPStreamableHTTPConnection(Strict):
    transport: Literal["streamable_http"] = "streamable_http"
    url: str
    headers: dict[str, str] = Field(default_factory=dict)


class MCPToolAccess(Strict):
    kind: Literal["mcp"] = "mcp"
    name: Identifier
    required: bool
    connection: MCPStreamableHTTPConnection


class DirectHTTPToolAccess(Strict):
    kind: Literal["direct_http"] = "direct_http"
    name: Identifier
    required: bool
    base_url: str
    cookies: dict[str, str] = Field(default_factory=dict)
    headers: dict[str, str] = Field(default_factory=dict)


ToolAccess = Annotated[DirectHTTPToolAccess | MCPToolAccess, Field(discriminator="kind")]
