"""Rows from a seed: those of example_simple_weather."""

from resources_servers.example_simple_weather.generate import generate_rows as generate_rows
