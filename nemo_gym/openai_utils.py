"""What authors of servers import for LLM APIs: the types of Responses and Chat Completions, conversions between them,
JSON, and clients of endpoints."""

from nemo_gym.client.load_balancer import REQUEST_TIMEOUT_S as REQUEST_TIMEOUT_S
from nemo_gym.client.load_balancer import EndpointPool as EndpointPool
from nemo_gym.client.load_balancer import EndpointSettings as EndpointSettings
from nemo_gym.client.load_balancer import NeMoGymAsyncOpenAI as NeMoGymAsyncOpenAI
from nemo_gym.common.retry import RATE_LIMIT_ERROR_CODES as RATE_LIMIT_ERROR_CODES
from nemo_gym.common.retry import RETRY_ERROR_CODES as RETRY_ERROR_CODES
from nemo_gym.llm_api.base import POLICY_VERSION_FIELD as POLICY_VERSION_FIELD
from nemo_gym.llm_api.base import REQUIRED_TOKEN_METADATA_FIELDS as REQUIRED_TOKEN_METADATA_FIELDS
from nemo_gym.llm_api.base import TOKEN_FIELDS as TOKEN_FIELDS
from nemo_gym.llm_api.base import TOKEN_METADATA_FIELDS as TOKEN_METADATA_FIELDS
from nemo_gym.llm_api.base import JsonObject as JsonObject
from nemo_gym.llm_api.base import TokenIDLogProbMixin as TokenIDLogProbMixin
from nemo_gym.llm_api.base import tokens_of as tokens_of
from nemo_gym.llm_api.base import without_nulls as without_nulls
from nemo_gym.llm_api.builders import message as message
from nemo_gym.llm_api.chat import NeMoGymChatCompletion as NeMoGymChatCompletion
from nemo_gym.llm_api.chat import (
    NeMoGymChatCompletionAssistantMessageForTrainingParam as NeMoGymChatCompletionAssistantMessageForTrainingParam,
)
from nemo_gym.llm_api.chat import (
    NeMoGymChatCompletionAssistantMessageParam as NeMoGymChatCompletionAssistantMessageParam,
)
from nemo_gym.llm_api.chat import (
    NeMoGymChatCompletionContentPartTextParam as NeMoGymChatCompletionContentPartTextParam,
)
from nemo_gym.llm_api.chat import (
    NeMoGymChatCompletionCreateParamsNonStreaming as NeMoGymChatCompletionCreateParamsNonStreaming,
)
from nemo_gym.llm_api.chat import (
    NeMoGymChatCompletionDeveloperMessageParam as NeMoGymChatCompletionDeveloperMessageParam,
)
from nemo_gym.llm_api.chat import NeMoGymChatCompletionMessage as NeMoGymChatCompletionMessage
from nemo_gym.llm_api.chat import NeMoGymChatCompletionMessageForTraining as NeMoGymChatCompletionMessageForTraining
from nemo_gym.llm_api.chat import NeMoGymChatCompletionMessageParam as NeMoGymChatCompletionMessageParam
from nemo_gym.llm_api.chat import NeMoGymChatCompletionMessageToolCall as NeMoGymChatCompletionMessageToolCall
from nemo_gym.llm_api.chat import (
    NeMoGymChatCompletionMessageToolCallFunctionParam as NeMoGymChatCompletionMessageToolCallFunctionParam,
)
from nemo_gym.llm_api.chat import (
    NeMoGymChatCompletionMessageToolCallParam as NeMoGymChatCompletionMessageToolCallParam,
)
from nemo_gym.llm_api.chat import NeMoGymChatCompletionSystemMessageParam as NeMoGymChatCompletionSystemMessageParam
from nemo_gym.llm_api.chat import NeMoGymChatCompletionToolMessageParam as NeMoGymChatCompletionToolMessageParam
from nemo_gym.llm_api.chat import NeMoGymChatCompletionToolParam as NeMoGymChatCompletionToolParam
from nemo_gym.llm_api.chat import NeMoGymChatCompletionUserMessageParam as NeMoGymChatCompletionUserMessageParam
from nemo_gym.llm_api.chat import NeMoGymChoice as NeMoGymChoice
from nemo_gym.llm_api.chat import NeMoGymCompletionCreateParams as NeMoGymCompletionCreateParams
from nemo_gym.llm_api.chat import NeMoGymFunction as NeMoGymFunction
from nemo_gym.llm_api.chat import NeMoGymFunctionDefinition as NeMoGymFunctionDefinition
from nemo_gym.llm_api.endpoint_errors import raise_response_failure as raise_response_failure
from nemo_gym.llm_api.endpoint_errors import response_failure as response_failure
from nemo_gym.llm_api.json_codec import Body as Body
from nemo_gym.llm_api.json_codec import EncodedItems as EncodedItems
from nemo_gym.llm_api.json_codec import changed as changed
from nemo_gym.llm_api.json_codec import encode as encode
from nemo_gym.llm_api.json_codec import encode_request as encode_request
from nemo_gym.llm_api.json_codec import request_pieces as request_pieces
from nemo_gym.llm_api.json_codec import set_fields as set_fields
from nemo_gym.llm_api.responses import RESPONSES_TO_TRAIN as RESPONSES_TO_TRAIN
from nemo_gym.llm_api.responses import NeMoGymComputerCallOutput as NeMoGymComputerCallOutput
from nemo_gym.llm_api.responses import NeMoGymEasyInputMessage as NeMoGymEasyInputMessage
from nemo_gym.llm_api.responses import NeMoGymEasyInputMessageForTraining as NeMoGymEasyInputMessageForTraining
from nemo_gym.llm_api.responses import NeMoGymFunctionCallOutput as NeMoGymFunctionCallOutput
from nemo_gym.llm_api.responses import NeMoGymFunctionToolParam as NeMoGymFunctionToolParam
from nemo_gym.llm_api.responses import NeMoGymImageGenerationCall as NeMoGymImageGenerationCall
from nemo_gym.llm_api.responses import NeMoGymLocalShellCall as NeMoGymLocalShellCall
from nemo_gym.llm_api.responses import NeMoGymLocalShellCallOutput as NeMoGymLocalShellCallOutput
from nemo_gym.llm_api.responses import NeMoGymMcpApprovalResponse as NeMoGymMcpApprovalResponse
from nemo_gym.llm_api.responses import NeMoGymMessage as NeMoGymMessage
from nemo_gym.llm_api.responses import NeMoGymMessageForTraining as NeMoGymMessageForTraining
from nemo_gym.llm_api.responses import NeMoGymResponse as NeMoGymResponse
from nemo_gym.llm_api.responses import (
    NeMoGymResponseCodeInterpreterToolCall as NeMoGymResponseCodeInterpreterToolCall,
)
from nemo_gym.llm_api.responses import NeMoGymResponseComputerToolCall as NeMoGymResponseComputerToolCall
from nemo_gym.llm_api.responses import (
    NeMoGymResponseCreateParamsNonStreaming as NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.llm_api.responses import NeMoGymResponseCustomToolCall as NeMoGymResponseCustomToolCall
from nemo_gym.llm_api.responses import NeMoGymResponseCustomToolCallOutput as NeMoGymResponseCustomToolCallOutput
from nemo_gym.llm_api.responses import NeMoGymResponseFileSearchToolCall as NeMoGymResponseFileSearchToolCall
from nemo_gym.llm_api.responses import NeMoGymResponseFunctionToolCall as NeMoGymResponseFunctionToolCall
from nemo_gym.llm_api.responses import (
    NeMoGymResponseFunctionToolCallForTraining as NeMoGymResponseFunctionToolCallForTraining,
)
from nemo_gym.llm_api.responses import NeMoGymResponseFunctionWebSearch as NeMoGymResponseFunctionWebSearch
from nemo_gym.llm_api.responses import NeMoGymResponseInput as NeMoGymResponseInput
from nemo_gym.llm_api.responses import NeMoGymResponseInputImage as NeMoGymResponseInputImage
from nemo_gym.llm_api.responses import NeMoGymResponseInputItem as NeMoGymResponseInputItem
from nemo_gym.llm_api.responses import NeMoGymResponseInputText as NeMoGymResponseInputText
from nemo_gym.llm_api.responses import NeMoGymResponseInputTokensDetails as NeMoGymResponseInputTokensDetails
from nemo_gym.llm_api.responses import NeMoGymResponseMcpApprovalRequest as NeMoGymResponseMcpApprovalRequest
from nemo_gym.llm_api.responses import NeMoGymResponseMcpCall as NeMoGymResponseMcpCall
from nemo_gym.llm_api.responses import NeMoGymResponseMcpListTools as NeMoGymResponseMcpListTools
from nemo_gym.llm_api.responses import NeMoGymResponseOutputItem as NeMoGymResponseOutputItem
from nemo_gym.llm_api.responses import NeMoGymResponseOutputMessage as NeMoGymResponseOutputMessage
from nemo_gym.llm_api.responses import (
    NeMoGymResponseOutputMessageForTraining as NeMoGymResponseOutputMessageForTraining,
)
from nemo_gym.llm_api.responses import NeMoGymResponseOutputRefusal as NeMoGymResponseOutputRefusal
from nemo_gym.llm_api.responses import NeMoGymResponseOutputText as NeMoGymResponseOutputText
from nemo_gym.llm_api.responses import NeMoGymResponseOutputTokensDetails as NeMoGymResponseOutputTokensDetails
from nemo_gym.llm_api.responses import NeMoGymResponseReasoningItem as NeMoGymResponseReasoningItem
from nemo_gym.llm_api.responses import (
    NeMoGymResponseReasoningItemForTraining as NeMoGymResponseReasoningItemForTraining,
)
from nemo_gym.llm_api.responses import NeMoGymResponseUsage as NeMoGymResponseUsage
from nemo_gym.llm_api.responses import NeMoGymSummary as NeMoGymSummary
from nemo_gym.llm_api.responses import NeMoGymToolParam as NeMoGymToolParam
from nemo_gym.llm_api.responses import accumulate_response_usage as accumulate_response_usage
from nemo_gym.llm_api.responses import encode_for_resubmission as encode_for_resubmission
from nemo_gym.llm_api.responses import for_resubmission as for_resubmission
from nemo_gym.llm_api.responses import is_resubmittable as is_resubmittable
from nemo_gym.llm_api.responses import training_variant_of as training_variant_of
from nemo_gym.llm_api.responses_chat import ChatMessages as ChatMessages
from nemo_gym.llm_api.responses_chat import UnsupportedError as UnsupportedError
from nemo_gym.llm_api.responses_chat import chat_params as chat_params
from nemo_gym.llm_api.responses_chat import completion_refusal as completion_refusal
from nemo_gym.llm_api.responses_chat import normalize_completion as normalize_completion
from nemo_gym.llm_api.responses_chat import output_items as output_items
from nemo_gym.llm_api.responses_chat import response_from_completion as response_from_completion
from nemo_gym.llm_api.responses_chat import response_refusal as response_refusal
from nemo_gym.llm_api.responses_chat import separated as separated
from nemo_gym.llm_api.responses_chat import split_think_tags as split_think_tags
from nemo_gym.llm_api.responses_chat import think_tags as think_tags
