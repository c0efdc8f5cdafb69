"""The Responses API as it travels here: items, content parts, tools, requests and answers.

Which class an item becomes is looked up from its fields, never tried out, and an instance is passed through as it is.
Fields we do not know are kept and sent on.
"""

import base64
from collections.abc import Callable, Hashable, Iterable
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, Self, TypeAlias, TypeVar

import orjson
from pydantic import (
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    SerializeAsAny,
    Tag,
    WrapValidator,
    with_config,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema
from typing_extensions import TypedDict

from nemo_gym.errors import RolloutError
from nemo_gym.llm_api.base import (
    DECODED_ONCE,
    NULL_IS_ABSENT,
    POLICY_VERSION_FIELD,
    REQUIRED_TOKEN_METADATA_FIELDS,
    TOKEN_METADATA_FIELDS,
    VERSION_RUNS_FIELD,
    JsonObject,
    JsonRecord,
    OpenJsonObject,
    TextOrList,
    TokenIDLogProbMixin,
    TypedWireModel,
    Usage,
    WireModel,
    as_json_object,
    by_type,
    has_token_ids,
    type_of,
)
from nemo_gym.llm_api.base import NeMoGymResponseContent as NeMoGymResponseContent
from nemo_gym.llm_api.base import NeMoGymResponseInputImage as NeMoGymResponseInputImage
from nemo_gym.llm_api.base import NeMoGymResponseInputText as NeMoGymResponseInputText
from nemo_gym.llm_api.base import NeMoGymResponseOutputContent as NeMoGymResponseOutputContent
from nemo_gym.llm_api.base import NeMoGymResponseOutputRefusal as NeMoGymResponseOutputRefusal
from nemo_gym.llm_api.base import NeMoGymResponseOutputText as NeMoGymResponseOutputText
from nemo_gym.llm_api.json_codec import EncodeItem, FrozenBody, GrowingList, changed, encode, encode_set_fields, joined


class NeMoGymResponseInputTokensDetails(WireModel):
    model_config = ConfigDict(from_attributes=True)

    cached_tokens: int | None = 0
    """Null if the endpoint does not know, here and in other details."""


class NeMoGymResponseOutputTokensDetails(WireModel):
    model_config = ConfigDict(from_attributes=True)

    reasoning_tokens: int | None = 0


class NeMoGymResponseUsage(Usage):
    model_config = ConfigDict(from_attributes=True)

    input_tokens: int
    input_tokens_details: Annotated[NeMoGymResponseInputTokensDetails, NULL_IS_ABSENT] = Field(
        default_factory=NeMoGymResponseInputTokensDetails
    )
    output_tokens: int
    output_tokens_details: Annotated[NeMoGymResponseOutputTokensDetails, NULL_IS_ABSENT] = Field(
        default_factory=NeMoGymResponseOutputTokensDetails
    )
    total_tokens: int

    @classmethod
    def sum_from_list(cls, usages: Iterable[Self]) -> Self:
        """The usage of several calls; zero if there are none."""
        total: Self | None = None
        for usage in usages:
            total = accumulate_response_usage(total, usage)
        return cls(input_tokens=0, output_tokens=0, total_tokens=0) if total is None else total


_T = TypeVar("_T")
UsageT = TypeVar("UsageT", bound=Usage)


def accumulate_response_usage(total: UsageT | None, additional: UsageT | None) -> UsageT | None:
    """The sum, in a new object. A detail that one of them does not know is unknown."""
    if total is None:
        return None if additional is None else additional.model_copy(deep=True)
    return total if additional is None else total + additional


class ResponseItem(TypedWireModel):
    """The base of everything that `input` and `output` hold."""


class NeMoGymOtherItem(ResponseItem):
    """An item of a type not modelled here (`web_search_call`, ...), kept as it came."""

    type: str


class NeMoGymResponseFileSearchToolCall(NeMoGymOtherItem):
    type: str = "file_search_call"


class NeMoGymResponseFunctionWebSearch(NeMoGymOtherItem):
    type: str = "web_search_call"


class NeMoGymResponseComputerToolCall(NeMoGymOtherItem):
    type: str = "computer_call"


class NeMoGymComputerCallOutput(NeMoGymOtherItem):
    type: str = "computer_call_output"


class NeMoGymImageGenerationCall(NeMoGymOtherItem):
    type: str = "image_generation_call"


class NeMoGymResponseCodeInterpreterToolCall(NeMoGymOtherItem):
    type: str = "code_interpreter_call"


class NeMoGymLocalShellCall(NeMoGymOtherItem):
    type: str = "local_shell_call"


class NeMoGymLocalShellCallOutput(NeMoGymOtherItem):
    type: str = "local_shell_call_output"


class NeMoGymResponseCustomToolCall(NeMoGymOtherItem):
    type: str = "custom_tool_call"


class NeMoGymResponseCustomToolCallOutput(NeMoGymOtherItem):
    type: str = "custom_tool_call_output"


class NeMoGymResponseMcpCall(NeMoGymOtherItem):
    type: str = "mcp_call"


class NeMoGymResponseMcpListTools(NeMoGymOtherItem):
    type: str = "mcp_list_tools"


class NeMoGymResponseMcpApprovalRequest(NeMoGymOtherItem):
    type: str = "mcp_approval_request"


class NeMoGymMcpApprovalResponse(NeMoGymOtherItem):
    type: str = "mcp_approval_response"


HOSTED_ITEMS: dict[str, type[NeMoGymOtherItem]] = {
    str(kind.model_fields["type"].default): kind for kind in NeMoGymOtherItem.__subclasses__()
}
"""Each type of these items, and its class."""


ItemStatus: TypeAlias = Literal["in_progress", "completed", "incomplete"]


class NeMoGymSummary(TypedWireModel):
    text: str
    type: Literal["summary_text"] = "summary_text"


class NeMoGymEasyInputMessage(ResponseItem):
    """A message of any role in its short form; also an assistant's when it has no id or is a plain text."""

    always_set = ()

    content: TextOrList[NeMoGymResponseContent]
    role: Literal["user", "assistant", "system", "developer"]
    type: Literal["message"] = "message"


class NeMoGymMessage(ResponseItem):
    """A message to the model in its long form, with a status."""

    always_set = ()

    content: list[NeMoGymResponseContent]
    role: Literal["user", "system", "developer"]
    status: Annotated[ItemStatus, NULL_IS_ABSENT] = "completed"
    type: Literal["message"] = "message"


class NeMoGymResponseOutputMessage(ResponseItem):
    """A message of the model."""

    always_set = ("type", "role")

    id: str
    content: list[NeMoGymResponseOutputContent]
    role: Literal["assistant"] = "assistant"
    status: Annotated[ItemStatus, NULL_IS_ABSENT] = "completed"
    type: Literal["message"] = "message"


class NeMoGymResponseFunctionToolCall(ResponseItem):
    """The model calls a tool. `arguments` is what it wrote, not always JSON."""

    arguments: str
    call_id: str
    name: str
    type: Literal["function_call"] = "function_call"
    id: str | None = None
    namespace: str | None = None
    status: ItemStatus | None = None


class NeMoGymFunctionCallOutput(ResponseItem):
    """The output of a tool."""

    call_id: str
    output: TextOrList[NeMoGymResponseContent]
    type: Literal["function_call_output"] = "function_call_output"
    id: str | None = None
    status: ItemStatus | None = None


class NeMoGymResponseReasoningItem(ResponseItem):
    """Reasoning of the model. See `for_resubmission` for why `status` and `content` are not declared."""

    id: str
    summary: list[NeMoGymSummary]
    type: Literal["reasoning"] = "reasoning"
    encrypted_content: str | None = None


class NeMoGymEasyInputMessageForTraining(TokenIDLogProbMixin, NeMoGymEasyInputMessage):
    pass


class NeMoGymMessageForTraining(TokenIDLogProbMixin, NeMoGymMessage):
    pass


class NeMoGymResponseOutputMessageForTraining(TokenIDLogProbMixin, NeMoGymResponseOutputMessage):
    pass


class NeMoGymResponseFunctionToolCallForTraining(TokenIDLogProbMixin, NeMoGymResponseFunctionToolCall):
    pass


class NeMoGymResponseReasoningItemForTraining(TokenIDLogProbMixin, NeMoGymResponseReasoningItem):
    pass


class NeMoGymResponseCustomToolCallForTraining(TokenIDLogProbMixin, NeMoGymResponseCustomToolCall):
    pass


RESPONSES_TO_TRAIN: dict[type[ResponseItem], type[ResponseItem]] = {
    NeMoGymEasyInputMessage: NeMoGymEasyInputMessageForTraining,
    NeMoGymMessage: NeMoGymMessageForTraining,
    NeMoGymResponseOutputMessage: NeMoGymResponseOutputMessageForTraining,
    NeMoGymResponseFunctionToolCall: NeMoGymResponseFunctionToolCallForTraining,
    NeMoGymResponseReasoningItem: NeMoGymResponseReasoningItemForTraining,
    NeMoGymResponseCustomToolCall: NeMoGymResponseCustomToolCallForTraining,
}
"""Each class of item that a model can generate, and the one that carries its tokens too."""

_BY_TYPE: dict[str, type[ResponseItem]] = {
    "function_call": NeMoGymResponseFunctionToolCall,
    "function_call_output": NeMoGymFunctionCallOutput,
    "reasoning": NeMoGymResponseReasoningItem,
}
_OUTPUT_PARTS = ("output_text", "refusal")
_NO_ITEM = PydanticCustomError("item", "An item should be an object with a 'type', or a 'role' if it is a message")


def _message_class(item: JsonObject) -> type[ResponseItem]:
    content, role = item.get("content"), item.get("role")
    if role == "tool":
        raise PydanticCustomError(
            "item_role", "A message cannot have the role 'tool': give a tool's answer as a 'function_call_output' item"
        )
    if not isinstance(content, list):
        return NeMoGymEasyInputMessage
    if role == "assistant":
        written_by_model = item.get("id") is not None and all(type_of(part) in _OUTPUT_PARTS for part in content)
        return NeMoGymResponseOutputMessage if written_by_model else NeMoGymEasyInputMessage
    return NeMoGymEasyInputMessage if item.get("status") is None else NeMoGymMessage


def _item_class(item: JsonObject) -> type[ResponseItem]:
    """Raises PydanticCustomError if an item is none."""
    kind = item.get("type", "message" if "role" in item else None)
    if kind == "message":
        found = _message_class(item)
    elif isinstance(kind, str):
        found = _BY_TYPE.get(kind) or HOSTED_ITEMS.get(kind, NeMoGymOtherItem)
    else:
        raise _NO_ITEM
    if "generation_token_ids" in item or "prompt_token_ids" in item or "generation_log_probs" in item:
        _check_tokens(item)
        return RESPONSES_TO_TRAIN.get(found, found) if has_token_ids(item) else found
    return found


def _check_tokens(item: JsonObject) -> None:
    """Some of the token fields without the others are of no use to a trainer, which would lose them in silence."""
    missing = [name for name in REQUIRED_TOKEN_METADATA_FIELDS if item.get(name) is None]
    if 0 < len(missing) < len(REQUIRED_TOKEN_METADATA_FIELDS):
        raise PydanticCustomError(
            "token_metadata",
            "Token metadata must include all required fields; missing: {missing}",
            {"missing": ", ".join(missing)},
        )


def _read_item(item: Any, _read: Callable[[Any], Any]) -> Any:
    """The class is looked up here, so that the union, which is there for the JSON schema, need not find it again."""
    if type(item) is not dict:
        if isinstance(item, ResponseItem):
            return item
        item = as_json_object(item)
        if not isinstance(item, dict):
            raise _NO_ITEM
    return _item_class(item).__pydantic_validator__.validate_python(item)


NeMoGymResponseInputItem: TypeAlias = Annotated[
    Annotated[NeMoGymEasyInputMessage, Tag("NeMoGymEasyInputMessage")]
    | Annotated[NeMoGymMessage, Tag("NeMoGymMessage")]
    | Annotated[NeMoGymResponseOutputMessage, Tag("NeMoGymResponseOutputMessage")]
    | Annotated[NeMoGymResponseFunctionToolCall, Tag("NeMoGymResponseFunctionToolCall")]
    | Annotated[NeMoGymFunctionCallOutput, Tag("NeMoGymFunctionCallOutput")]
    | Annotated[NeMoGymResponseReasoningItem, Tag("NeMoGymResponseReasoningItem")]
    | Annotated[NeMoGymEasyInputMessageForTraining, Tag("NeMoGymEasyInputMessageForTraining")]
    | Annotated[NeMoGymMessageForTraining, Tag("NeMoGymMessageForTraining")]
    | Annotated[NeMoGymResponseOutputMessageForTraining, Tag("NeMoGymResponseOutputMessageForTraining")]
    | Annotated[NeMoGymResponseFunctionToolCallForTraining, Tag("NeMoGymResponseFunctionToolCallForTraining")]
    | Annotated[NeMoGymResponseReasoningItemForTraining, Tag("NeMoGymResponseReasoningItemForTraining")]
    | Annotated[NeMoGymOtherItem, Tag("NeMoGymOtherItem")],
    Discriminator(lambda item: _item_class(item).__name__),
    WrapValidator(_read_item),
    SerializeAsAny(),
]
NeMoGymResponseOutputItem: TypeAlias = NeMoGymResponseInputItem
NeMoGymResponseInput: TypeAlias = list[NeMoGymResponseInputItem]


def image_part(data: bytes, media_type: str = "image/png") -> NeMoGymResponseInputImage:
    """An image for the model. Return it from a tool, alone or in a list with `NeMoGymResponseInputText`."""
    encoded = base64.b64encode(data).decode()
    return NeMoGymResponseInputImage(image_url=f"data:{media_type};base64,{encoded}", detail="auto")


def tool_content(text: str) -> str | list[NeMoGymResponseContent]:
    """The output of a tool as the model reads it: parts if it is the JSON of one or more images, perhaps among texts.

    Only images in `data:` URLs count. A tool may repeat what the model has written, and no endpoint is to fetch an
    address of the model's choice."""
    if '"input_image"' not in text or text[:1] not in ("[", "{"):
        return text
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    parts = value if isinstance(value, list) else [value]
    kinds = [*map(_tool_part, parts)]
    if None in kinds or NeMoGymResponseInputImage not in kinds:
        return text
    return [kind(part) for kind, part in zip(kinds, parts, strict=True) if kind]


def _tool_part(part: Any) -> type[NeMoGymResponseContent] | None:
    if not isinstance(part, dict):
        return None
    if part.get("type") == "input_text" and isinstance(part.get("text"), str):
        return NeMoGymResponseInputText
    is_image = part.get("type") == "input_image" and str(part.get("image_url")).startswith("data:image/")
    return NeMoGymResponseInputImage if is_image else None


def training_variant_of(kind: type[ResponseItem]) -> type[ResponseItem]:
    """The class that also carries the tokens of an item."""
    if kind not in RESPONSES_TO_TRAIN:
        raise NotImplementedError(f"No class carries the tokens of {kind.__name__}")
    return RESPONSES_TO_TRAIN[kind]


_NOT_RESUBMITTABLE = (NeMoGymResponseReasoningItem, TokenIDLogProbMixin)


def for_resubmission(item: ResponseItem) -> JsonObject:
    """The item as a model endpoint takes it back: without nulls and tokens, and reasoning without its own text."""
    refused = {
        *TOKEN_METADATA_FIELDS,
        POLICY_VERSION_FIELD,
        VERSION_RUNS_FIELD,
        *(("status", "content") if isinstance(item, NeMoGymResponseReasoningItem) else ()),
    }
    return item.model_dump(mode="json", exclude=refused, exclude_unset=True, exclude_none=True)


def encode_for_resubmission(item: ResponseItem) -> bytes:
    """JSON of the item as a model endpoint takes it back."""
    if isinstance(item, _NOT_RESUBMITTABLE):
        return encode(for_resubmission(item))
    return encode_set_fields(item)


@with_config(ConfigDict(extra="allow"))
class NeMoGymFunctionToolParam(TypedDict):
    """A tool that the model may call, described to it by a JSON schema."""

    name: str
    type: Literal["function"]
    description: NotRequired[str | None]
    parameters: NotRequired[JsonObject | None]
    strict: NotRequired[bool | None]


@with_config(ConfigDict(extra="allow"))
class NeMoGymOtherToolParam(TypedDict):
    """A tool of a type not modelled here, kept as it came."""

    type: str


NeMoGymToolParam: TypeAlias = Annotated[
    Annotated[NeMoGymFunctionToolParam, Tag("function")] | Annotated[NeMoGymOtherToolParam, Tag("other")],
    by_type("function"),
    DECODED_ONCE,
    SerializeAsAny(),
]
ToolChoice: TypeAlias = Annotated[Literal["none", "auto", "required"] | OpenJsonObject, NULL_IS_ABSENT]


class NeMoGymResponseTool(JsonRecord):
    """A tool as a response repeats it: a dict, with its keys as attributes."""


class NeMoGymResponseCreateParamsNonStreaming(WireModel):
    """A request to a model. A name the API does not know is refused, since it is most likely misspelt."""

    model_config = ConfigDict(extra="forbid")

    access_programs: JsonObject | None = None
    background: bool | None = None
    client_metadata: JsonObject | None = None
    """What a client says of itself, such as the Codex CLI. It changes no reply."""
    context_management: list[JsonObject] | None = None
    conversation: str | JsonObject | None = None
    image: JsonObject | None = None
    include: list[str] | None = None
    input: TextOrList[NeMoGymResponseInputItem]
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    metadata: dict[str, str] | None = None
    model: str | None = None
    moderation: JsonObject | None = None
    parallel_tool_calls: bool | None = True
    previous_response_id: str | None = None
    prompt: JsonObject | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: JsonObject | None = None
    prompt_cache_retention: str | None = None
    reasoning: JsonObject | None = None
    safety_identifier: str | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"] | None = None
    store: bool | None = None
    stream: Literal[False] | None = None
    stream_options: JsonObject | None = None
    temperature: float | None = None
    text: JsonObject | None = None
    tool_choice: ToolChoice = "auto"
    tools: Annotated[list[NeMoGymToolParam], NULL_IS_ABSENT] = Field(default_factory=list)
    top_logprobs: int | None = None
    top_p: float | None = None
    truncation: Literal["auto", "disabled"] | None = None
    user: str | None = None


class FrozenRequest(FrozenBody):
    """A request to a model, with a conversation that grows. Nobody changes it: `extended` and `changed` make another
    one. What is computed from its parameters and items, such as their JSON, is computed once for all later ones."""

    __slots__ = ("_computed", "items", "params")

    def __init__(
        self,
        params: NeMoGymResponseCreateParamsNonStreaming,
        items: GrowingList[NeMoGymResponseInputItem],
        computed: dict[Any, Any],
    ) -> None:
        self.params = params
        """All but the items: its `input` is empty, or the text that the request was given instead of items."""
        self.items = items
        self._computed = computed

    @classmethod
    def of(cls, params: "NeMoGymResponseCreateParamsNonStreaming | FrozenRequest") -> "FrozenRequest":
        """The frozen form of a request, which shares its items. The item of a text is a message of the user."""
        if isinstance(params, FrozenRequest):
            return params
        given = params.input
        if isinstance(given, str):
            return cls(changed(params), GrowingList([NeMoGymEasyInputMessage(role="user", content=given)]), {})
        return cls(changed(params, input=[]), given if isinstance(given, GrowingList) else GrowingList(given), {})

    @classmethod
    def take(cls, value: Any) -> "FrozenRequest | None":
        return cls.of(value) if isinstance(value, (cls, NeMoGymResponseCreateParamsNonStreaming)) else None

    def extended(self, items: Iterable[NeMoGymResponseInputItem]) -> "FrozenRequest":
        """The request with more items."""
        params = changed(self.params, input=[]) if isinstance(self.params.input, str) else self.params
        return FrozenRequest(params, self.items.extended(items), self._computed)

    def changed(self, **fields: Any) -> "FrozenRequest":
        """The request with other parameters or, as `input`, other items."""
        return FrozenRequest.of(changed(self.params, **{"input": self.items, **fields}))

    def thawed(self) -> NeMoGymResponseCreateParamsNonStreaming:
        """The request as a model with a list of items."""
        return changed(self.params, input=list(self.items))

    def from_params(self, compute: Callable[..., _T], *options: Hashable) -> _T:
        """Return `compute(params, *options)`. Longer requests do not compute it again."""
        found: _T | None = self._computed.get((compute, options))
        if found is None:
            found = self._computed[compute, options] = compute(self.params, *options)
        return found

    def pieces(self, encode_item: EncodeItem = encode_set_fields, *, model: str | None = None) -> tuple[bytes, ...]:
        """JSON of what the request was given, in pieces of which longer requests share all but the last few. `model`
        replaces its own."""
        rest = self.from_params(_other_fields, model is None)
        start = b"{" if model is None else b'{"model":%b,' % encode(model)
        end = b"," + rest[1:] if len(rest) > 2 else b"}"
        if isinstance(self.params.input, str):
            return start + b'"input":' + encode(self.params.input), end
        return start + b'"input":[', *self.items.fold(joined, encode_item), b"]" + end

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(cls.of, handler(NeMoGymResponseCreateParamsNonStreaming))


def _other_fields(params: NeMoGymResponseCreateParamsNonStreaming, with_model: bool) -> bytes:
    """JSON of what a request was given, without its items."""
    excluded = {"input"} if with_model else {"input", "model"}
    if params.model_fields_set <= excluded:
        return b"{}"
    given: bytes = params.__pydantic_serializer__.to_json(params, exclude=excluded, exclude_unset=True, warnings=False)
    return given


class NeMoGymResponseError(WireModel):
    code: str
    message: str


class NeMoGymIncompleteDetails(WireModel):
    reason: str | None = None


class NeMoGymResponse(WireModel):
    """An answer of a model, or of an agent: then `output` also holds what tools answered."""

    id: str
    created_at: float
    error: NeMoGymResponseError | None = None
    incomplete_details: NeMoGymIncompleteDetails | None = None
    instructions: TextOrList[NeMoGymResponseInputItem] | None = None
    metadata: dict[str, str] | None = None
    model: str
    object: Literal["response"] = "response"
    output: list[NeMoGymResponseInputItem]
    parallel_tool_calls: Annotated[bool, NULL_IS_ABSENT] = True
    temperature: float | None = None
    tool_choice: ToolChoice = "auto"
    tools: Annotated[list[NeMoGymResponseTool], NULL_IS_ABSENT] = Field(default_factory=list)
    top_p: float | None = None
    background: bool | None = None
    conversation: OpenJsonObject | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    previous_response_id: str | None = None
    prompt: OpenJsonObject | None = None
    prompt_cache_key: str | None = None
    reasoning: OpenJsonObject | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    status: Literal["completed", "failed", "in_progress", "cancelled", "queued", "incomplete"] | None = None
    text: OpenJsonObject | None = None
    top_logprobs: int | None = None
    truncation: Literal["auto", "disabled"] | None = None
    usage: NeMoGymResponseUsage | None = None
    user: str | None = None

    @property
    def output_text(self) -> str:
        """Everything the model said as text, joined with nothing between."""
        messages = (item for item in self.output if isinstance(item, NeMoGymResponseOutputMessage))
        parts = (part for message in messages for part in message.content)
        return "".join(part.text for part in parts if isinstance(part, NeMoGymResponseOutputText))


FailureCode: TypeAlias = Literal["failed", "cancelled", "queued", "in_progress"]

UNFINISHED: dict[str | None, FailureCode] = {
    "failed": "failed",
    "cancelled": "cancelled",
    "queued": "queued",
    "in_progress": "in_progress",
}
CutOff: TypeAlias = Literal["max_output_tokens", "content_filter"]
"""Why a reply is incomplete, as `incomplete_details` has it."""
CUT_OFF: dict[str, CutOff] = {
    "length": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "content_filter": "content_filter",
    "safety": "content_filter",
}
"""Reasons of an incomplete answer by finish reason. The second name of each comes from some gateways."""
_LIMITS = frozenset((*CUT_OFF, *CUT_OFF.values()))
"""Why a response is incomplete if a limit of the model's own reply ended it. Any other reason is a failure."""
_MAX_REASON_CHARS = 500


class ResponseFailure(NamedTuple):
    """Why a response is not the model's answer."""

    code: FailureCode
    reason: str


def response_failure(response: NeMoGymResponse) -> ResponseFailure | None:
    """Why a response is not the model's answer; None if it is. A reply that a limit has cut off is an answer."""
    if response.status == "completed" and response.error is None and response.incomplete_details is None:
        return None
    code = UNFINISHED.get(response.status)
    if response.error is not None:
        return ResponseFailure(code or "failed", f"{response.error.code}: {response.error.message}")
    if code is not None:
        return ResponseFailure(code, "no reason given")
    return None if _was_ended_by_model_or_limit(response) else ResponseFailure("failed", _incomplete_reason(response))


def raise_response_failure(response: NeMoGymResponse, *, server: str) -> None:
    """Raise a `RolloutError` with the cause `model` if a response is not the model's answer."""
    failure = response_failure(response)
    if failure is None:
        return
    reason = " ".join(failure.reason.split())[:_MAX_REASON_CHARS]  # line breaks could forge log lines
    message = f"The reply of {server} has the status '{response.status}' ({reason}), expected an answer of the model."
    raise RolloutError("model", message, server=server, code=failure.code)


def _was_ended_by_model_or_limit(response: NeMoGymResponse) -> bool:
    """Gateways such as LiteLLM give no reason for a reply that was cut off, so without one the output decides."""
    details = response.incomplete_details
    if details is not None and details.reason is not None:
        return details.reason in _LIMITS
    return response.status != "incomplete" or bool(response.output)


def _incomplete_reason(response: NeMoGymResponse) -> str:
    details = response.incomplete_details
    if details is None or details.reason is None:
        return "incomplete, without output and without a reason"
    return f"incomplete because of {details.reason}"
