"""A profiler, under the path that servers import it from."""

from nemo_gym.analysis.profiler import Profiler as Profiler
