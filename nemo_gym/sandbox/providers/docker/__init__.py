"""Docker, under the path of the public NeMo Gym."""

from nemo_gym.sandbox.containers import DockerCreateConfig as DockerCreateConfig
from nemo_gym.sandbox.containers import DockerProvider as DockerProvider
