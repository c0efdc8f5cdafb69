"""Captured tokens, under the path of the public NeMo Gym."""
