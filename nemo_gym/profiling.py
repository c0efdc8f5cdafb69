"""A profiler, under the path that servers import it from."""

from nemo_gym.compat.profiler import Profiler as Profiler
