"""The Anthropic Messages API as it comes in. What goes out are plain dicts."""

from typing import Annotated, Literal, TypeAlias

from pydantic import Field, Tag

from nemo_gym.wire import DECODED_ONCE, JsonObject, TextOrList, WireModel, by_type


class TextBlock(WireModel):
    type: Literal["text"]
    text: str


class Source(WireModel):
    """Where an image or a document is: in the message (`data`) or elsewhere (`url`)."""

    type: str
    data: str | None = None
    media_type: str | None = None
    url: str | None = None


class MediaBlock(WireModel):
    type: Literal["image", "document"]
    source: Source
    title: str | None = None


class ToolUseBlock(WireModel):
    type: Literal["tool_use"]
    id: str
    name: str
    input: JsonObject


class ThinkingBlock(WireModel):
    type: Literal["thinking"]
    thinking: str
    signature: str = ""


class RedactedThinkingBlock(WireModel):
    type: Literal["redacted_thinking"]
    data: str


class ToolResultBlock(WireModel):
    type: Literal["tool_result"]
    tool_use_id: str
    content: "TextOrList[Block] | None" = None


class OtherBlock(WireModel):
    """A block of a type not modelled here."""

    type: str


Block: TypeAlias = Annotated[
    Annotated[TextBlock, Tag("text")]
    | Annotated[MediaBlock, Tag("image")]
    | Annotated[MediaBlock, Tag("document")]
    | Annotated[ToolUseBlock, Tag("tool_use")]
    | Annotated[ToolResultBlock, Tag("tool_result")]
    | Annotated[ThinkingBlock, Tag("thinking")]
    | Annotated[RedactedThinkingBlock, Tag("redacted_thinking")]
    | Annotated[OtherBlock, Tag("other")],
    by_type("text", "image", "document", "tool_use", "tool_result", "thinking", "redacted_thinking"),
    DECODED_ONCE,
]


class MessageParam(WireModel):
    role: Literal["user", "assistant", "system"]
    content: TextOrList[Block]


class Tool(WireModel):
    name: str
    description: str | None = None
    input_schema: JsonObject | None = None
    strict: bool | None = None
    type: str | None = None


class ToolChoice(WireModel):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(WireModel):
    type: str
    budget_tokens: int = 0


class OutputFormat(WireModel):
    schema_: JsonObject = Field(alias="schema")


class OutputConfig(WireModel):
    effort: str | None = None
    format: OutputFormat | None = None


class MessagesParams(WireModel):
    """A request to `/v1/messages`. Fields that steer only the service of that API are passed over."""

    messages: list[MessageParam]
    max_tokens: int
    metadata: JsonObject | None = None
    output_config: OutputConfig | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    system: TextOrList[TextBlock] | None = None
    temperature: float | None = None
    thinking: Thinking | None = None
    tool_choice: ToolChoice | None = None
    tools: list[Tool] | None = None
    top_k: int | None = None
    top_p: float | None = None
