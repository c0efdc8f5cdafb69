"""Compatibility with servers written for the public NeMo Gym. Our own code uses none of it."""
