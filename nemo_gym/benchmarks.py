"""Benchmarks, under the path of the public NeMo Gym."""

from nemo_gym.compat.folder_functions import BenchmarkConfig as BenchmarkConfig
