"""Types of the LLM APIs, conversions between them and clients of endpoints, under the path of the public NeMo Gym."""

from nemo_gym.client.load_balancer import *
from nemo_gym.common.retry import RATE_LIMIT_ERROR_CODES as RATE_LIMIT_ERROR_CODES
from nemo_gym.common.retry import RETRY_ERROR_CODES as RETRY_ERROR_CODES
from nemo_gym.compat.server_functions import MAX_NUM_TRIES as MAX_NUM_TRIES
from nemo_gym.llm_api import base as _base
from nemo_gym.llm_api.base import POLICY_VERSION_FIELD as POLICY_VERSION_FIELD
from nemo_gym.llm_api.base import TOKEN_FIELDS as TOKEN_FIELDS
from nemo_gym.llm_api.base import JsonObject as JsonObject
from nemo_gym.llm_api.base import TokenIDLogProbMixin as TokenIDLogProbMixin
from nemo_gym.llm_api.base import tokens_of as tokens_of
from nemo_gym.llm_api.base import without_nulls as without_nulls
from nemo_gym.llm_api.builders import message as message
from nemo_gym.llm_api.chat import *
from nemo_gym.llm_api.endpoint_errors import *
from nemo_gym.llm_api.json_codec import Body as Body
from nemo_gym.llm_api.json_codec import changed as changed
from nemo_gym.llm_api.json_codec import encode as encode
from nemo_gym.llm_api.json_codec import set_fields as set_fields
from nemo_gym.llm_api.responses import *
from nemo_gym.llm_api.responses import NeMoGymFunctionCallOutput
from nemo_gym.llm_api.responses_chat import *

NeMoGymResponseFunctionCallOutput = NeMoGymFunctionCallOutput
REQUIRED_TOKEN_METADATA_FIELDS = frozenset(_base.REQUIRED_TOKEN_METADATA_FIELDS)
TOKEN_METADATA_FIELDS = frozenset(_base.TOKEN_METADATA_FIELDS)
CHAT_REQUEST_PROVIDER_EXTENSION_FIELDS = frozenset(("chat_template_kwargs", "thinking", "output_config"))
