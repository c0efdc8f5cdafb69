"""Captured tokens, under the path of the public NeMo Gym."""

from nemo_gym.compat.token_capture import token_id_capture_config as token_id_capture_config
