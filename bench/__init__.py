"""Benchmarks. `python -m bench` measures the cost of a rollout on this machine, in units of a bare HTTP request."""
