"""The configuration models, under the path that environments import them from."""

from typing import TYPE_CHECKING

from nemo_gym.common.lazy_exports import lazy_attributes
from nemo_gym.config.command_options import BaseNeMoGymCLIConfig as BaseNeMoGymCLIConfig
from nemo_gym.config.command_options import CommandConfig as CommandConfig
from nemo_gym.config.keys import ROLLOUT_PATH_PREFIX as ROLLOUT_PATH_PREFIX
from nemo_gym.config.keys import TOKEN_CAPTURE_PATH_SEGMENT as TOKEN_CAPTURE_PATH_SEGMENT
from nemo_gym.config.keys import ServerType as ServerType
from nemo_gym.config.types import AgentServerRef as AgentServerRef
from nemo_gym.config.types import BaseRunServerConfig as BaseRunServerConfig
from nemo_gym.config.types import BaseRunServerInstanceConfig as BaseRunServerInstanceConfig
from nemo_gym.config.types import BaseRunServerTypeConfig as BaseRunServerTypeConfig
from nemo_gym.config.types import BaseServerConfig as BaseServerConfig
from nemo_gym.config.types import DatasetConfig as DatasetConfig
from nemo_gym.config.types import DatasetType as DatasetType
from nemo_gym.config.types import Domain as Domain
from nemo_gym.config.types import GitlabDatasetIdentifier as GitlabDatasetIdentifier
from nemo_gym.config.types import GlobalSettings as GlobalSettings
from nemo_gym.config.types import HuggingFaceDatasetIdentifier as HuggingFaceDatasetIdentifier
from nemo_gym.config.types import Isolation as Isolation
from nemo_gym.config.types import License as License
from nemo_gym.config.types import ModelServerRef as ModelServerRef
from nemo_gym.config.types import Port as Port
from nemo_gym.config.types import ResourcesServerInstanceConfig as ResourcesServerInstanceConfig
from nemo_gym.config.types import ResourcesServerRef as ResourcesServerRef
from nemo_gym.config.types import ResourcesServerTypeConfig as ResourcesServerTypeConfig
from nemo_gym.config.types import ResponsesAPIAgentServerInstanceConfig as ResponsesAPIAgentServerInstanceConfig
from nemo_gym.config.types import ResponsesAPIAgentServerTypeConfig as ResponsesAPIAgentServerTypeConfig
from nemo_gym.config.types import ResponsesAPIModelServerInstanceConfig as ResponsesAPIModelServerInstanceConfig
from nemo_gym.config.types import ResponsesAPIModelServerTypeConfig as ResponsesAPIModelServerTypeConfig
from nemo_gym.config.types import ServerInstanceConfig as ServerInstanceConfig
from nemo_gym.config.types import ServerRef as ServerRef
from nemo_gym.config.types import is_server_ref as is_server_ref
from nemo_gym.config.types import maybe_get_server_instance_config as maybe_get_server_instance_config
from nemo_gym.errors import AlmostServerError as AlmostServerError
from nemo_gym.errors import ConfigError as ConfigError
from nemo_gym.errors import ConfigInterpolationError as ConfigInterpolationError
from nemo_gym.errors import ConfigMissingValuesError as ConfigMissingValuesError
from nemo_gym.errors import InheritPathNotFoundError as InheritPathNotFoundError
from nemo_gym.errors import MalformedConfigPathsError as MalformedConfigPathsError
from nemo_gym.errors import MissingPathError as MissingPathError
from nemo_gym.errors import NoServerInstancesError as NoServerInstancesError
from nemo_gym.errors import UnknownServerError as UnknownServerError
from nemo_gym.server.aggregate_metrics import AggregateMetrics as AggregateMetrics
from nemo_gym.server.aggregate_metrics import AggregateMetricsRequest as AggregateMetricsRequest

if TYPE_CHECKING:
    from omegaconf import OmegaConf as OmegaConf

ConfigPathNotFoundError = MissingPathError
ServerRefNotFoundError = UnknownServerError
__getattr__ = lazy_attributes(__name__)
