"""Fields of a row that the environment reads."""

from typing import Any

from nemo_gym.base_resources_server import BaseVerifyRequest
from nemo_gym.participants import message_text


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
        """The text of the last user message."""
        items = self.responses_create_params.input
        if isinstance(items, str):
            return items.strip()
        by_user = [item for item in items if getattr(item, "role", None) == "user"]
        return message_text(by_user[-1:]).strip()
