"""The configuration of a command, under the path that outside code imports it from."""

from omegaconf import DictConfig as DictConfig
from omegaconf import OmegaConf as OmegaConf

from nemo_gym.compat.global_config import GlobalConfigDictParser as GlobalConfigDictParser
from nemo_gym.compat.global_config import GlobalConfigDictParserConfig as GlobalConfigDictParserConfig
from nemo_gym.compat.global_config import get_global_config_dict as get_global_config_dict
from nemo_gym.compat.global_config import get_hf_token as get_hf_token
from nemo_gym.compat.global_config import maybe_get_global_config_dict as maybe_get_global_config_dict
from nemo_gym.compat.global_config import set_global_config_dict as set_global_config_dict
from nemo_gym.config.keys import *
from nemo_gym.config.loading import LOCAL_MODEL_CONFIG as LOCAL_MODEL_CONFIG
from nemo_gym.config.loading import POLICY_MODEL as POLICY_MODEL
from nemo_gym.config.loading import complete as complete
from nemo_gym.config.loading import dump as dump
from nemo_gym.config.loading import find_open_port as find_open_port
from nemo_gym.config.loading import get_first_server_config_dict as get_first_server_config_dict
from nemo_gym.config.loading import installed_pins as installed_pins
from nemo_gym.config.loading import load_config as load_config
from nemo_gym.config.loading import read_settings as read_settings
