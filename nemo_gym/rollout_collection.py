"""Collecting rollouts, under the path that trainers import it from."""

from nemo_gym.common.lazy_exports import lazy_attributes
from nemo_gym.rollouts.collector import RolloutCollectionHelper as RolloutCollectionHelper
from nemo_gym.rollouts.config import RolloutCollectionConfig as RolloutCollectionConfig

__getattr__ = lazy_attributes(__name__, {"collect_rollouts": "nemo_gym.cli.collect:collect_rollouts"})
