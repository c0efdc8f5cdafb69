"""Rows made from a seed, under the path that environments import them from."""

from nemo_gym.data.row_generators import difficulty_level as difficulty_level
from nemo_gym.data.row_generators import distinct_rows as distinct_rows
