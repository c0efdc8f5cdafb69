"""Metrics over the rollouts of an environment, under the path that environments import them from."""

from typing import TYPE_CHECKING

from nemo_gym.analysis.score_metrics import *
from nemo_gym.common.lazy_exports import lazy_attributes
from nemo_gym.server.aggregate_metrics import *

if TYPE_CHECKING:
    from nemo_gym.analysis.reward_profiler import RewardProfiler as RewardProfiler

__getattr__ = lazy_attributes(__name__)
