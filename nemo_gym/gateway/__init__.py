"""Endpoints for programs that agents start: a model, and tools over MCP."""
