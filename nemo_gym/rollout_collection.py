"""Collecting rollouts, under the path that trainers import it from."""

from nemo_gym.common.lazy_exports import lazy_attributes
from nemo_gym.compat import rollout_functions as _functions
from nemo_gym.compat.rollout_functions import DispatchLatencyTracker as DispatchLatencyTracker
from nemo_gym.compat.rollout_functions import is_terminal_failure as is_terminal_failure
from nemo_gym.compat.rollout_functions import migrate_invalid_judge_main_rows as migrate_invalid_judge_main_rows
from nemo_gym.compat.rollout_functions import observed_elapsed as observed_elapsed
from nemo_gym.config.keys import NG_FAILURE_CLASS_KEY as NG_FAILURE_CLASS_KEY
from nemo_gym.config.keys import NG_NO_PERSIST_KEY as NG_NO_PERSIST_KEY
from nemo_gym.config.keys import NG_TERMINAL_KEY as NG_TERMINAL_KEY
from nemo_gym.rollouts.collector import RolloutCollectionHelper as RolloutCollectionHelper
from nemo_gym.rollouts.config import RolloutCollectionConfig as RolloutCollectionConfig
from nemo_gym.rollouts.config import _get_max_rollout_attempts as _get_max_rollout_attempts
from nemo_gym.rollouts.store import failures_path_for as failures_path_for

SharedRolloutCollectionConfig = RolloutCollectionConfig
get_max_rollout_attempts = _get_max_rollout_attempts
_attach_ng_perf = _functions.attach_ng_perf
_attach_trajectory_record = _functions.attach_trajectory_record
_build_trajectory_record = _functions.build_trajectory_record
_environment_server_for_agent = _functions.environment_server_for_agent
_environment_servers_by_agent = _functions.environment_servers_by_agent
_trajectory_identity = _functions.trajectory_identity

__getattr__ = lazy_attributes(__name__, {"collect_rollouts": "nemo_gym.cli.collect:collect_rollouts"})
