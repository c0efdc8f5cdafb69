"""Rows made from a seed, under the path that environments import them from."""

from nemo_gym.data.row_generators import *
