"""Metrics over the rollouts of an environment, under the path that environments import them from."""

from typing import TYPE_CHECKING

from nemo_gym.common.lazy_exports import lazy_attributes
from nemo_gym.compat.pass_majority import add_avg_sample_std_dev as add_avg_sample_std_dev
from nemo_gym.compat.pass_majority import compute_pass_majority_metrics as compute_pass_majority_metrics
from nemo_gym.compat.pass_majority import compute_subset_metrics as compute_subset_metrics
from nemo_gym.compat.pass_majority import highest_k_metrics as highest_k_metrics
from nemo_gym.server.aggregate_metrics import AggregateMetrics as AggregateMetrics
from nemo_gym.server.aggregate_metrics import AggregateMetricsMixin as AggregateMetricsMixin
from nemo_gym.server.aggregate_metrics import AggregateMetricsRequest as AggregateMetricsRequest
from nemo_gym.server.aggregate_metrics import compute_aggregate_metrics as compute_aggregate_metrics

if TYPE_CHECKING:
    from nemo_gym.analysis.profile import RewardProfiler as RewardProfiler

__getattr__ = lazy_attributes(__name__, {"RewardProfiler": "nemo_gym.analysis.profile:RewardProfiler"})
