"""Prompt files, under the path that environments import them from."""

from typing import TYPE_CHECKING

from nemo_gym.common.lazy_exports import lazy_attributes
from nemo_gym.llm_api.prompts import PromptConfig as PromptConfig
from nemo_gym.llm_api.prompts import apply_prompt_to_row as apply_prompt_to_row
from nemo_gym.llm_api.prompts import fill_prompt as fill_prompt
from nemo_gym.llm_api.prompts import load_prompt_config as load_prompt_config

if TYPE_CHECKING:
    from nemo_gym.data.prepare import materialize_prompts as materialize_prompts
    from nemo_gym.data.prepare import validate_prompt_compatibility as validate_prompt_compatibility

__getattr__ = lazy_attributes(__name__)
