"""A profiler, under the path that servers import it from."""

from nemo_gym.common.profiler import Profiler as Profiler
