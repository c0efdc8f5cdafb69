"""Rows as tasks, under the path of the public NeMo Gym."""

from nemo_gym.compat.episodes import materialize_task as materialize_task
