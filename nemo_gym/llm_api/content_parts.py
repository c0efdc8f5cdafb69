"""The parts of messages. Those that a model wrote are objects; those given to it are dicts with attributes."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import Field, SerializeAsAny

from nemo_gym.llm_api.base import NULL_IS_ABSENT, ContentPart, JsonObject, JsonRecord


class NeMoGymResponseContent(JsonRecord):
    """A part of an input message or of a tool's output: a dict, with its keys as attributes."""

    TYPE: ClassVar[str] = ""
    REQUIRED: ClassVar[Mapping[str, Mapping[str, type]]] = {
        "input_text": {"text": str},
        "output_text": {"text": str},
        "refusal": {"refusal": str},
    }

    def __init__(self, fields: Mapping[str, Any] | None = None, **more: Any) -> None:
        super().__init__({**({"type": self.TYPE} if self.TYPE else {}), **(fields or {}), **more})


class NeMoGymResponseInputText(NeMoGymResponseContent):
    TYPE = "input_text"


class NeMoGymResponseInputImage(NeMoGymResponseContent):
    TYPE = "input_image"


class NeMoGymResponseOutputText(ContentPart):
    annotations: Annotated[list[JsonObject], NULL_IS_ABSENT] = Field(default_factory=list)
    text: str
    type: Literal["output_text"] = "output_text"
    logprobs: list[JsonObject] | None = None


class NeMoGymResponseOutputRefusal(ContentPart):
    refusal: str
    type: Literal["refusal"] = "refusal"


def content_text(content: Any) -> str:
    """The text in a message's content: a string, or a list of parts. Other parts, such as images, have none."""
    return content if isinstance(content, str) else "".join(part.get("text") or "" for part in content or ())


NeMoGymResponseOutputContent: TypeAlias = Annotated[
    NeMoGymResponseOutputText | NeMoGymResponseOutputRefusal, Field(discriminator="type"), SerializeAsAny()
]
