"""The web page on rollouts, datasets and live runs. Pages come through an index of offsets, never the whole file."""
