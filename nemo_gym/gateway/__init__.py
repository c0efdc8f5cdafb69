"""For programs that agents start: a model and MCP tools, URLs that name the rollout, and records of model calls."""
