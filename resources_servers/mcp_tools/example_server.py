"""An example of an MCP server: an account for each session. Serves standard input and output, or HTTP on a port."""

import sys

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError


def make_server() -> MCPServer:
    server = MCPServer("accounts", log_level="WARNING")
    balances: dict[str, int] = {}  # by session; a process that is started for one client has one

    @server.tool()
    def deposit(amount: int, ctx: Context) -> str:
        """Put money into the account."""
        if amount <= 0:
            raise ToolError("The amount must be positive.")
        balances[session_of(ctx)] = balances.get(session_of(ctx), 0) + amount
        return f"Deposited {amount}."

    @server.tool()
    def balance(ctx: Context) -> str:
        """How much money is in the account."""
        return str(balances.get(session_of(ctx), 0))

    return server


def session_of(ctx: Context) -> str:
    return (ctx.headers or {}).get("mcp-session-id", "")


if __name__ == "__main__":
    if sys.argv[1:]:
        make_server().run("streamable-http", port=int(sys.argv[1]))
    else:
        make_server().run("stdio")
