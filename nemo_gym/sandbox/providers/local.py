"""Sandboxes on this machine, under the path of the public NeMo Gym."""

from nemo_gym.sandbox.local import LocalProvider as LocalProvider
