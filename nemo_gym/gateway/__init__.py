"""A model and tools for programs that agents start: the gateway they call, MCP, and a socket into a sandbox."""
