"""Environment servers, under the path of the public NeMo Gym."""

from nemo_gym.compat.environment_server import BaseEnvironmentServer as BaseEnvironmentServer
from nemo_gym.compat.environment_server import BaseEnvironmentServerConfig as BaseEnvironmentServerConfig
from nemo_gym.compat.environment_server import CleanupContext as CleanupContext
from nemo_gym.compat.environment_server import CleanupHandle as CleanupHandle
from nemo_gym.compat.environment_server import HandledEpisodeError as HandledEpisodeError
