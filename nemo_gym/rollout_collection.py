"""Collecting rollouts, under the path that trainers import it from."""

from nemo_gym.common.lazy_exports import lazy_attributes
from nemo_gym.config.keys import NG_FAILURE_CLASS_KEY as NG_FAILURE_CLASS_KEY
from nemo_gym.config.keys import NG_NO_PERSIST_KEY as NG_NO_PERSIST_KEY
from nemo_gym.config.keys import NG_TERMINAL_KEY as NG_TERMINAL_KEY
from nemo_gym.rollouts.collector import RolloutCollectionHelper as RolloutCollectionHelper
from nemo_gym.rollouts.config import RolloutCollectionConfig as RolloutCollectionConfig
from nemo_gym.rollouts.config import _get_max_rollout_attempts as _get_max_rollout_attempts
from nemo_gym.rollouts.store import failures_path_for as failures_path_for

__getattr__ = lazy_attributes(__name__, {"collect_rollouts": "nemo_gym.cli.collect:collect_rollouts"})
