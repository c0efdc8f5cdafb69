"""Rows made from a seed, under the path that environments import them from."""

from nemo_gym.data.generate import difficulty_level as difficulty_level
from nemo_gym.data.generate import distinct_rows as distinct_rows
from nemo_gym.data.generate import trivial_numbers as trivial_numbers
