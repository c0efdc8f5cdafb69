"""Tracing, under the path of the public NeMo Gym."""

from nemo_gym.compat.folder_functions import connection_pool as connection_pool
