"""A profiler, under the path that servers import it from."""

from nemo_gym.compat.server_functions import Profiler as Profiler
