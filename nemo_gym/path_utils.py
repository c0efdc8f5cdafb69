"""Names of output files, under the path of the public NeMo Gym."""

from nemo_gym.rollouts.store import failures_path_for as failures_path_for
