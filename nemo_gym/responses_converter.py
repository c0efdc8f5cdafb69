"""Responses ⇄ Chat Completions, under the path that model servers import it from."""

from nemo_gym.compat.responses_converter import *
from nemo_gym.compat.responses_converter import _usage_detail as _usage_detail
