"""Rows from a seed: those of example_multi_step."""

from resources_servers.example_multi_step.generate import generate_rows as generate_rows
