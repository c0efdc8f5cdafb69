"""What the environment reads from a row."""

from typing import Any

from nemo_gym.base_resources_server import BaseVerifyRequest
from nemo_gym.llm_api.responses import NeMoGymEasyInputMessage


class EquivalenceVerifyRequest(BaseVerifyRequest):
    expected_answer: str | None = None
    uuid: str | int | None = None
    options: list[dict[str, Any]] | None = None
    metadata: dict[str, Any] | None = None
    template_metadata: dict[str, Any] | None = None

    def gold_answer(self) -> str:
        """The row's `expected_answer` or, if that is empty, the one in its metadata."""
        fallback = (self.metadata or {}).get("expected_answer")
        return self.expected_answer or ("" if fallback is None else str(fallback))

    def output_regex(self) -> str | None:
        """The row's own regex to extract the answer from a reply."""
        regex = (self.template_metadata or {}).get("output_regex")
        return regex if isinstance(regex, str) and regex else None

    def question(self) -> str:
        """The last user message whose content is a plain string."""
        items = self.responses_create_params.input
        for item in () if isinstance(items, str) else reversed(items):
            if isinstance(item, NeMoGymEasyInputMessage) and item.role == "user" and isinstance(item.content, str):
                return item.content.strip()
        return ""
