"""What authors of servers import for LLM APIs: the types of Responses and Chat Completions, conversions between them,
JSON, and clients of endpoints."""

from nemo_gym.client.load_balancer import EndpointPool as EndpointPool
from nemo_gym.client.load_balancer import EndpointSettings as EndpointSettings
from nemo_gym.client.openai_client import REQUEST_TIMEOUT_S as REQUEST_TIMEOUT_S
from nemo_gym.client.openai_client import NeMoGymAsyncOpenAI as NeMoGymAsyncOpenAI
from nemo_gym.common.retry import RATE_LIMIT_ERROR_CODES as RATE_LIMIT_ERROR_CODES
from nemo_gym.common.retry import RETRY_ERROR_CODES as RETRY_ERROR_CODES
from nemo_gym.llm_api.base import *
from nemo_gym.llm_api.builders import message as message
from nemo_gym.llm_api.chat import *
from nemo_gym.llm_api.endpoint_refusals import *
from nemo_gym.llm_api.hosted_items import *
from nemo_gym.llm_api.json_codec import EncodedItems as EncodedItems
from nemo_gym.llm_api.json_codec import changed as changed
from nemo_gym.llm_api.json_codec import encode as encode
from nemo_gym.llm_api.json_codec import encode_request as encode_request
from nemo_gym.llm_api.json_codec import set_fields as set_fields
from nemo_gym.llm_api.normalize_completion import *
from nemo_gym.llm_api.responses import *
from nemo_gym.llm_api.responses_chat import *
from nemo_gym.llm_api.usage import *
