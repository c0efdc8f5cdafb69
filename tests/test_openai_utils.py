"""The names that environments and trainers import."""

import subprocess
import sys

import pytest

from nemo_gym import openai_utils

PUBLIC_NAMES = [
    "RESPONSES_TO_TRAIN",
    "TokenIDLogProbMixin",
    "NeMoGymEasyInputMessage",
    "NeMoGymMessage",
    "NeMoGymResponseOutputMessage",
    "NeMoGymResponseFunctionToolCall",
    "NeMoGymEasyInputMessageForTraining",
    "NeMoGymMessageForTraining",
    "NeMoGymResponseOutputMessageForTraining",
    "NeMoGymResponseFunctionToolCallForTraining",
    "NeMoGymResponseReasoningItemForTraining",
    "NeMoGymResponseReasoningItem",
    "NeMoGymFunctionCallOutput",
    "NeMoGymResponseOutputText",
    "NeMoGymResponseOutputRefusal",
    "NeMoGymSummary",
    "NeMoGymResponseInputItem",
    "NeMoGymResponseOutputItem",
    "NeMoGymResponseCreateParamsNonStreaming",
    "NeMoGymResponse",
    "NeMoGymFunction",
    "NeMoGymChoice",
    "NeMoGymChatCompletion",
    "NeMoGymChatCompletionMessage",
    "NeMoGymChatCompletionMessageForTraining",
    "NeMoGymChatCompletionMessageToolCall",
    "NeMoGymChatCompletionUserMessageParam",
    "NeMoGymChatCompletionSystemMessageParam",
    "NeMoGymChatCompletionDeveloperMessageParam",
    "NeMoGymChatCompletionAssistantMessageParam",
    "NeMoGymChatCompletionAssistantMessageForTrainingParam",
    "NeMoGymChatCompletionToolMessageParam",
    "NeMoGymChatCompletionMessageToolCallParam",
    "NeMoGymChatCompletionMessageToolCallFunctionParam",
    "NeMoGymChatCompletionContentPartTextParam",
    "NeMoGymChatCompletionToolParam",
    "NeMoGymChatCompletionMessageParam",
    "NeMoGymFunctionDefinition",
    "NeMoGymFunctionToolParam",
    "NeMoGymChatCompletionCreateParamsNonStreaming",
]


@pytest.mark.parametrize("name", PUBLIC_NAMES)
def test_a_name_that_environments_import_is_there(name: str) -> None:
    assert hasattr(openai_utils, name)


def test_the_types_do_not_load_the_openai_package() -> None:
    code = "import sys, nemo_gym.openai_utils; sys.exit('openai' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
