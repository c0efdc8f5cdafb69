"""Capacity benchmark: runs the real commands against a simulated model endpoint and reports what saturates first."""
