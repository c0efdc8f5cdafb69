"""What is read out of a row and of a response to it."""

from typing import Any

from nemo_gym.base_resources_server import BaseVerifyRequest
from nemo_gym.llm_api.responses import (
    NeMoGymEasyInputMessage,
    NeMoGymResponse,
    NeMoGymResponseOutputMessage,
    NeMoGymResponseOutputText,
)


class EquivalenceVerifyRequest(BaseVerifyRequest):
    expected_answer: str | None = None
    uuid: str | int | None = None
    options: list[dict[str, Any]] | None = None
    metadata: dict[str, Any] | None = None
    template_metadata: dict[str, Any] | None = None

    def gold_answer(self) -> str:
        """What is expected: the row's own field or, if that is empty, what its metadata say."""
        fallback = (self.metadata or {}).get("expected_answer")
        return self.expected_answer or ("" if fallback is None else str(fallback))

    def output_regex(self) -> str | None:
        """The row's own way to find the answer in a reply."""
        regex = (self.template_metadata or {}).get("output_regex")
        return regex if isinstance(regex, str) and regex else None

    def question(self) -> str:
        """The last user message that is a plain text."""
        items = self.responses_create_params.input
        for item in () if isinstance(items, str) else reversed(items):
            if isinstance(item, NeMoGymEasyInputMessage) and item.role == "user" and isinstance(item.content, str):
                return item.content.strip()
        return ""


def last_reply(response: NeMoGymResponse) -> str:
    """The texts of the last message of the model, one a line."""
    messages = [item for item in response.output if isinstance(item, _MESSAGES) and item.role == "assistant"]
    if not messages or isinstance(messages[-1].content, str):
        return ""
    texts = [part.text for part in messages[-1].content if isinstance(part, NeMoGymResponseOutputText)]
    return "\n".join(texts).strip()


_MESSAGES = (NeMoGymResponseOutputMessage, NeMoGymEasyInputMessage)
