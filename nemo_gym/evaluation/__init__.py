"""Evaluate a model in an environment: from Python, and what `ng eval` finds by name."""
