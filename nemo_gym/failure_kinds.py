"""Kinds of failure, under the path of the public NeMo Gym."""

from nemo_gym.compat.failure_kinds import FAILURE_KINDS as FAILURE_KINDS
from nemo_gym.compat.failure_kinds import JUDGE_FAILED as JUDGE_FAILED
from nemo_gym.compat.failure_kinds import VERIFIER_ERROR as VERIFIER_ERROR
from nemo_gym.compat.failure_kinds import FailureStage as FailureStage
from nemo_gym.compat.failure_kinds import is_namespaced as is_namespaced
from nemo_gym.compat.failure_kinds import is_registered as is_registered
from nemo_gym.compat.failure_kinds import validate_failure_kind as validate_failure_kind
