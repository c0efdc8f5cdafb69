"""Calling servers and LLM endpoints: the HTTP connection pool, server replies, load balancing."""
