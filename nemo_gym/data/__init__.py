"""Datasets: check them, describe them, collate them, import them, make them."""
