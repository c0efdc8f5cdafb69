"""The configuration of a command, under the path that outside code imports it from."""

from nemo_gym.config.loading import *
