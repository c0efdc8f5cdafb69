"""The configuration models, under the path of the public NeMo Gym."""

from omegaconf import OmegaConf as OmegaConf

from nemo_gym.common.lazy_exports import lazy_attributes
from nemo_gym.config.command_options import BaseNeMoGymCLIConfig as BaseNeMoGymCLIConfig
from nemo_gym.config.command_options import CommandConfig as CommandConfig
from nemo_gym.config.keys import ROLLOUT_PATH_PREFIX as ROLLOUT_PATH_PREFIX
from nemo_gym.config.keys import TOKEN_CAPTURE_PATH_SEGMENT as TOKEN_CAPTURE_PATH_SEGMENT
from nemo_gym.config.keys import ServerType as ServerType
from nemo_gym.config.types import *
from nemo_gym.errors import *
from nemo_gym.errors import MissingPathError, UnknownServerError
from nemo_gym.server.aggregate_metrics import AggregateMetrics as AggregateMetrics
from nemo_gym.server.aggregate_metrics import AggregateMetricsRequest as AggregateMetricsRequest

ConfigPathNotFoundError = MissingPathError
ServerRefNotFoundError = UnknownServerError

__getattr__ = lazy_attributes(
    __name__,
    {
        "AgentCompositionError": "nemo_gym.compat.agent_swap:AgentCompositionError",
        "AmbiguousEnvironmentServerError": "nemo_gym.compat.row_routing:AmbiguousEnvironmentServerError",
        "UnsupportedAgentPairingError": "nemo_gym.compat.agent_swap:UnsupportedAgentPairingError",
        "DownloadJsonlDatasetGitlabConfig": "nemo_gym.data.hubs.gitlab:DownloadJsonlDatasetGitlabConfig",
    },
)
