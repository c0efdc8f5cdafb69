"""Which rollout a request belongs to, under the path that environments import it from."""

from nemo_gym.server.rollout_prefix import *
