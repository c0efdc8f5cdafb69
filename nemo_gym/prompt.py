"""Prompt files, under the path that environments import them from."""

from nemo_gym.data.prompts import *
from nemo_gym.llm_api.prompts import *
