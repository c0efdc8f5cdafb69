"""Rows from a seed: those of example_stateful_counter."""

from resources_servers.example_stateful_counter.generate import generate_rows as generate_rows
