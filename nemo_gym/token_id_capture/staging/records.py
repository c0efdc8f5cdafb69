"""Captured tokens, under the path of the public NeMo Gym."""

from nemo_gym.compat.token_capture import CaptureAdmission as CaptureAdmission
