"""Datasets: check, measure, collate, import, generate, publish."""
