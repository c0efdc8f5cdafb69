"""The Chat Completions API as it travels here. What is sent to it are plain dicts, what it answers are models."""

from typing import Annotated, Any, Literal, NotRequired, TypeAlias

from pydantic import ConfigDict, Discriminator, SerializeAsAny, Tag, with_config
from typing_extensions import TypedDict

from nemo_gym.llm_api.base import (
    DECODED_ONCE,
    JsonObject,
    TextOrList,
    TokenIDLogProbMixin,
    Usage,
    WireModel,
    by_type,
    has_token_ids,
)

_OPEN = with_config(ConfigDict(extra="allow"))


@_OPEN
class NeMoGymChatCompletionContentPartTextParam(TypedDict):
    text: str
    type: Literal["text"]


@_OPEN
class NeMoGymChatCompletionOtherContentPartParam(TypedDict):
    """An image or another part that is not a text, kept as it came."""

    type: str


NeMoGymChatCompletionContentPartParam: TypeAlias = Annotated[
    Annotated[NeMoGymChatCompletionContentPartTextParam, Tag("text")]
    | Annotated[NeMoGymChatCompletionOtherContentPartParam, Tag("other")],
    by_type("text"),
]
ChatContent: TypeAlias = TextOrList[NeMoGymChatCompletionContentPartParam]


@_OPEN
class NeMoGymChatCompletionUserMessageParam(TypedDict):
    content: ChatContent
    role: Literal["user"]
    name: NotRequired[str]


@_OPEN
class NeMoGymChatCompletionSystemMessageParam(TypedDict):
    content: ChatContent
    role: Literal["system"]
    name: NotRequired[str]


@_OPEN
class NeMoGymChatCompletionDeveloperMessageParam(TypedDict):
    content: ChatContent
    role: Literal["developer"]
    name: NotRequired[str]


@_OPEN
class NeMoGymChatCompletionToolMessageParam(TypedDict):
    content: ChatContent
    role: Literal["tool"]
    tool_call_id: str


@_OPEN
class NeMoGymChatCompletionMessageToolCallFunctionParam(TypedDict):
    arguments: str
    name: str


@_OPEN
class NeMoGymChatCompletionMessageToolCallParam(TypedDict):
    id: str
    function: NeMoGymChatCompletionMessageToolCallFunctionParam
    type: Literal["function"]


@_OPEN
class NeMoGymChatCompletionAssistantMessageParam(TypedDict):
    role: Literal["assistant"]
    content: NotRequired[ChatContent | None]
    name: NotRequired[str]
    reasoning_content: NotRequired[str | None]
    refusal: NotRequired[str | None]
    tool_calls: NotRequired[list[NeMoGymChatCompletionMessageToolCallParam]]


@_OPEN
class NeMoGymChatCompletionAssistantMessageForTrainingParam(NeMoGymChatCompletionAssistantMessageParam):
    """Sent back with its exact tokens, so that the endpoint need not make them again from the text."""

    prompt_token_ids: list[int]
    generation_token_ids: list[int]
    generation_log_probs: list[float]


def _message_tag(message: Any) -> Any:
    role = message.get("role") if isinstance(message, dict) else None
    return "assistant_for_training" if role == "assistant" and has_token_ids(message) else role


NeMoGymChatCompletionMessageParam: TypeAlias = Annotated[
    Annotated[NeMoGymChatCompletionUserMessageParam, Tag("user")]
    | Annotated[NeMoGymChatCompletionSystemMessageParam, Tag("system")]
    | Annotated[NeMoGymChatCompletionDeveloperMessageParam, Tag("developer")]
    | Annotated[NeMoGymChatCompletionAssistantMessageParam, Tag("assistant")]
    | Annotated[NeMoGymChatCompletionAssistantMessageForTrainingParam, Tag("assistant_for_training")]
    | Annotated[NeMoGymChatCompletionToolMessageParam, Tag("tool")],
    Discriminator(
        _message_tag,
        custom_error_type="chat_message",
        custom_error_message="A message should be an object with the role user, system, developer, assistant or tool",
    ),
    DECODED_ONCE,
    SerializeAsAny(),
]


@_OPEN
class NeMoGymFunctionDefinition(TypedDict):
    name: str
    description: NotRequired[str]
    parameters: NotRequired[JsonObject]
    strict: NotRequired[bool | None]


@_OPEN
class NeMoGymChatCompletionToolParam(TypedDict):
    function: NeMoGymFunctionDefinition
    type: Literal["function"]


class NeMoGymChatCompletionCreateParamsNonStreaming(WireModel):
    """A request to a model. What it says beyond these fields is passed on: endpoints know more than the API has."""

    messages: list[NeMoGymChatCompletionMessageParam]
    audio: JsonObject | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    logprobs: bool | None = None
    max_completion_tokens: int | None = None
    max_tokens: int | None = None
    metadata: dict[str, str] | None = None
    modalities: list[str] | None = None
    model: str | None = None
    n: int | None = None
    parallel_tool_calls: bool | None = True
    prediction: JsonObject | None = None
    presence_penalty: float | None = None
    reasoning_effort: str | None = None
    response_format: JsonObject | None = None
    seed: int | None = None
    service_tier: str | None = None
    stop: TextOrList[str] | None = None
    store: bool | None = None
    stream: Literal[False] | None = None
    stream_options: JsonObject | None = None
    temperature: float | None = None
    tool_choice: Literal["none", "auto", "required"] | JsonObject | None = None
    tools: list[NeMoGymChatCompletionToolParam] | None = None
    top_logprobs: int | None = None
    top_p: float | None = None
    user: str | None = None
    web_search_options: JsonObject | None = None


class NeMoGymFunction(WireModel):
    arguments: str
    name: str


class NeMoGymChatCompletionMessageToolCall(WireModel):
    id: str
    function: NeMoGymFunction
    type: Literal["function"] = "function"


class NeMoGymChatCompletionMessage(WireModel):
    content: str | None = None
    refusal: str | None = None
    role: Literal["assistant"] = "assistant"
    tool_calls: list[NeMoGymChatCompletionMessageToolCall] | None = None


class NeMoGymChatCompletionMessageForTraining(TokenIDLogProbMixin, NeMoGymChatCompletionMessage):
    pass


def _answer_tag(message: Any) -> str:
    trained = isinstance(message, NeMoGymChatCompletionMessageForTraining) or (
        isinstance(message, dict) and has_token_ids(message)
    )
    return "message_for_training" if trained else "message"


class NeMoGymChoice(WireModel):
    finish_reason: str
    index: int
    logprobs: JsonObject | None = None
    message: Annotated[
        Annotated[NeMoGymChatCompletionMessage, Tag("message")]
        | Annotated[NeMoGymChatCompletionMessageForTraining, Tag("message_for_training")],
        Discriminator(_answer_tag),
        DECODED_ONCE,
        SerializeAsAny(),
    ]


class NeMoGymCompletionUsage(Usage):
    completion_tokens: int
    prompt_tokens: int
    total_tokens: int
    completion_tokens_details: JsonObject | None = None
    prompt_tokens_details: JsonObject | None = None


class NeMoGymChatCompletion(WireModel):
    id: str
    choices: list[NeMoGymChoice]
    created: int
    model: str
    object: Literal["chat.completion"] = "chat.completion"
    service_tier: str | None = None
    system_fingerprint: str | None = None
    usage: NeMoGymCompletionUsage | None = None


class NeMoGymCompletionCreateParams(WireModel):
    """A request to `/v1/completions`: plain text, or token ids, to be continued."""

    prompt: str | list[Any]
