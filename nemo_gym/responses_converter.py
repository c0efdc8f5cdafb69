"""Responses ⇄ Chat Completions, under the path that model servers import it from."""

from uuid import uuid4 as uuid4

from nemo_gym.compat.responses_converter import ResponsesConverter as ResponsesConverter
from nemo_gym.compat.responses_converter import ResponsesConverterState as ResponsesConverterState
from nemo_gym.compat.responses_converter import VLLMConverter as VLLMConverter
from nemo_gym.compat.responses_converter import (
    VLLMConverterResponsesToChatCompletionsState as VLLMConverterResponsesToChatCompletionsState,
)
from nemo_gym.compat.responses_converter import _usage_detail as _usage_detail
from nemo_gym.compat.responses_converter import (
    split_responses_input_output_items as split_responses_input_output_items,
)
