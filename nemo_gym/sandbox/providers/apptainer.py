"""Apptainer, under the path of the public NeMo Gym."""

from nemo_gym.sandbox.containers import ApptainerProvider as ApptainerProvider
