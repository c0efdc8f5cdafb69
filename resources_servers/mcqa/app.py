"""Multiple-choice questions: the letter that the model answers with, compared with the right one."""

from typing import Any

from pydantic import Field

from nemo_gym.answers import message_texts
from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    Score,
    SimpleResourcesServer,
)
from nemo_gym.compute import LONG_TEXT, TIMED_OUT, Compute, TimedOut
from resources_servers.mcqa.extraction import GradingMode, extracted, lettered, normalised, one_letter


class McqaResourcesServerConfig(BaseResourcesServerConfig, extra="forbid"):
    check_timeout_s: float = Field(default=10.0, gt=0)
    """CPU time limit for finding the answer. A regex in a row may never finish."""


class McqaVerifyRequest(BaseVerifyRequest):
    options: list[dict[str, str]] | None = None
    expected_answer: str | None = None
    grading_mode: GradingMode = "strict_single_letter_boxed"
    template_metadata: dict[str, Any] | None = None
    """Only its `output_regex` is read."""
    uuid: str | None = None
    metadata: dict[str, Any] | None = None


class McqaResourcesServer(SimpleResourcesServer):
    config: McqaResourcesServerConfig

    @classmethod
    def check_row(cls, row: dict[str, Any]) -> None:
        """Refuse an expected answer that is no option, and options that leave no choice or are the same twice. Only
        the row's own regex finds letters without options."""
        gold, letters = (row.get("expected_answer") or "").strip().upper(), lettered(row.get("options") or [])
        has_regex = bool((row.get("template_metadata") or {}).get("output_regex"))
        if gold not in letters and (letters or not has_regex or one_letter(gold) is None):
            raise ValueError(f"expected_answer {gold!r:.100} is none of the options {', '.join(letters) or '(none)'}")
        if letters:
            _check_options(row["options"], letters)

    async def verify(self, body: McqaVerifyRequest, compute: Compute) -> Score:
        gold, answer = (body.expected_answer or "").strip().upper(), await self._answer(body, compute)
        return Score(
            float(bool(gold) and answer == gold),
            expected_answer=gold,
            extracted_answer=None if answer is TIMED_OUT else answer,
            timed_out=answer is TIMED_OUT,
        )

    async def _answer(self, body: McqaVerifyRequest, compute: Compute) -> str | TimedOut | None:
        """The letter in the model's text. What may take long leaves the loop."""
        regex = (body.template_metadata or {}).get("output_regex")
        pattern = regex if isinstance(regex, str) and regex else None
        messages, options = list(map("\n".join, message_texts(body.response))), lettered(body.options or [])
        if pattern is None and sum(map(len, messages)) <= LONG_TEXT:
            return extracted(messages, body.grading_mode, options, None)
        return await compute.run(
            extracted,
            messages,
            body.grading_mode,
            options,
            pattern,
            timeout_s=self.config.check_timeout_s,
            on_limit=TIMED_OUT,
        )


def _check_options(options: list[dict[str, str]], letters: dict[str, str]) -> None:
    texts = [text for option in letters.values() if (text := normalised(option))]
    if len(letters) < 2:
        raise ValueError("options has one option only")
    if len(letters) < len(options) and len(letters) < sum(1 for option in options if option and _letter_of(option)):
        raise ValueError("options has a letter twice")
    if len({*texts}) < len(texts):
        raise ValueError("options has the same text for two letters")


def _letter_of(option: dict[str, str]) -> str | None:
    return one_letter(next(iter(option)))
