"""The types of the Responses and Chat Completions APIs, under the name that environments import them by."""

from nemo_gym.client.openai_client import NeMoGymAsyncOpenAI as NeMoGymAsyncOpenAI
from nemo_gym.llm_api.base import TokenIDLogProbMixin as TokenIDLogProbMixin
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
from nemo_gym.llm_api.chat import NeMoGymFunction as NeMoGymFunction
from nemo_gym.llm_api.chat import NeMoGymFunctionDefinition as NeMoGymFunctionDefinition
from nemo_gym.llm_api.responses import RESPONSES_TO_TRAIN as RESPONSES_TO_TRAIN
from nemo_gym.llm_api.responses import NeMoGymEasyInputMessage as NeMoGymEasyInputMessage
from nemo_gym.llm_api.responses import NeMoGymEasyInputMessageForTraining as NeMoGymEasyInputMessageForTraining
from nemo_gym.llm_api.responses import NeMoGymFunctionCallOutput as NeMoGymFunctionCallOutput
from nemo_gym.llm_api.responses import NeMoGymFunctionToolParam as NeMoGymFunctionToolParam
from nemo_gym.llm_api.responses import NeMoGymMessage as NeMoGymMessage
from nemo_gym.llm_api.responses import NeMoGymMessageForTraining as NeMoGymMessageForTraining
from nemo_gym.llm_api.responses import NeMoGymResponse as NeMoGymResponse
from nemo_gym.llm_api.responses import (
    NeMoGymResponseCreateParamsNonStreaming as NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.llm_api.responses import NeMoGymResponseFunctionToolCall as NeMoGymResponseFunctionToolCall
from nemo_gym.llm_api.responses import (
    NeMoGymResponseFunctionToolCallForTraining as NeMoGymResponseFunctionToolCallForTraining,
)
from nemo_gym.llm_api.responses import NeMoGymResponseInputItem as NeMoGymResponseInputItem
from nemo_gym.llm_api.responses import NeMoGymResponseOutputItem as NeMoGymResponseOutputItem
from nemo_gym.llm_api.responses import NeMoGymResponseOutputMessage as NeMoGymResponseOutputMessage
from nemo_gym.llm_api.responses import (
    NeMoGymResponseOutputMessageForTraining as NeMoGymResponseOutputMessageForTraining,
)
from nemo_gym.llm_api.responses import NeMoGymResponseOutputRefusal as NeMoGymResponseOutputRefusal
from nemo_gym.llm_api.responses import NeMoGymResponseOutputText as NeMoGymResponseOutputText
from nemo_gym.llm_api.responses import NeMoGymResponseReasoningItem as NeMoGymResponseReasoningItem
from nemo_gym.llm_api.responses import (
    NeMoGymResponseReasoningItemForTraining as NeMoGymResponseReasoningItemForTraining,
)
from nemo_gym.llm_api.responses import NeMoGymSummary as NeMoGymSummary
