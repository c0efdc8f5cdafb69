"""Collecting rollouts: dataset rows, the collector, concurrency, storage, metrics."""
