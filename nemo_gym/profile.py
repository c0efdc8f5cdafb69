"""Reward profiling, under the path that outside code imports it from."""

from nemo_gym.analysis.profile import ProfileConfig as ProfileConfig
from nemo_gym.analysis.profile import RewardProfilingMetrics as RewardProfilingMetrics
from nemo_gym.common.lazy_exports import lazy_attributes

__getattr__ = lazy_attributes(__name__, {"profile": "nemo_gym.cli.analyze:profile"})
