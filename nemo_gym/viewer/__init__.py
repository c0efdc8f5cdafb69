"""The web page for rollouts, datasets and live runs. Pages are read through an index of offsets, never the whole
file."""
