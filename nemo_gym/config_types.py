"""The configuration models, under the path that environments import them from."""

from typing import TYPE_CHECKING

from nemo_gym.common.lazy_exports import lazy_attributes
from nemo_gym.config.keys import ROLLOUT_PATH_PREFIX as ROLLOUT_PATH_PREFIX
from nemo_gym.config.keys import TOKEN_CAPTURE_PATH_SEGMENT as TOKEN_CAPTURE_PATH_SEGMENT
from nemo_gym.config.types import *
from nemo_gym.errors import *
from nemo_gym.errors import MissingPathError, UnknownServerError
from nemo_gym.server.aggregate_metrics import AggregateMetrics as AggregateMetrics
from nemo_gym.server.aggregate_metrics import AggregateMetricsRequest as AggregateMetricsRequest

if TYPE_CHECKING:
    from omegaconf import OmegaConf as OmegaConf

ConfigPathNotFoundError = MissingPathError
ServerRefNotFoundError = UnknownServerError
__getattr__ = lazy_attributes(__name__)
