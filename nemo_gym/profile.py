"""Reward profiling, under the path that outside code imports it from."""

from nemo_gym.analysis.profile import ProfileConfig as ProfileConfig
from nemo_gym.analysis.profile import RewardProfilingMetrics as RewardProfilingMetrics
from nemo_gym.common.lazy_exports import lazily

__getattr__ = lazily(__name__, {"profile": "nemo_gym.cli.analyze:profile"})
