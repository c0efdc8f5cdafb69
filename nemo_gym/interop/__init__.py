"""Interoperation: harnesses that run our rollouts, and our environments for Gymnasium, TRL, verifiers and MCP
clients."""
