"""Math answers, checked by the math-verify library and, if that finds them different, optionally by a judge model."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import Field, PrivateAttr

from nemo_gym import JsonObject, ServerClient
from nemo_gym.answers import is_blank, message_texts
from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    Score,
    SimpleResourcesServer,
    SlowCheck,
)
from nemo_gym.compute import TIMED_OUT, Compute
from nemo_gym.errors import RolloutError
from nemo_gym.judge import Judge, JudgeConfig, JudgeError, JudgeEvaluation, Verdict, ask_both_ways, missing_label
from resources_servers.math_with_judge import prompts
from resources_servers.math_with_judge.engine import (
    NOTHING,
    check,
    is_balanced,
    is_plain,
    normalized,
    spoken,
    unreadable_gold,
)
from resources_servers.math_with_judge.final_answer import MAX_ANSWER_CHARS

MISSING_VALUES = ("null", "nan")
"""Texts that programs write for a missing value."""


class LibraryJudgeMathConfig(BaseResourcesServerConfig, JudgeConfig, extra="forbid"):
    """The judge, whether it is used, and the limits of the library."""

    should_use_judge: bool = True
    """Ask the judge if the library does not find the answers equal."""

    library_timeout_s: float = Field(default=15.0, gt=0)
    """CPU time limit of the library for one row. The default is the sum of the library's own limits for parsing two
    answers and comparing them. A row that exceeds it scores 0.0, with `timed_out` in the record."""

    max_answer_chars: int = Field(default=1_000_000, ge=1)
    """A longer reply is not checked: it scores 0.0, with `too_long` in the record."""

    def asks_judge(self) -> bool:
        return self.should_use_judge


class MathVerifyRequest(BaseVerifyRequest):
    question: str
    expected_answer: str


class _Judged(NamedTuple):
    reward: float
    verdicts: list[Verdict] | None = None
    failure: str | None = None


class LibraryJudgeMathResourcesServer(SimpleResourcesServer):
    config: LibraryJudgeMathConfig

    _judge: Judge = PrivateAttr()

    def model_post_init(self, _context: Any, /) -> None:
        self._judge = Judge(self.config, prompts.TEMPLATE, system=prompts.SYSTEM)

    @classmethod
    def check_row(cls, row: JsonObject) -> None:
        """Refuse a question that is blank, and an expected answer that is blank, cut off or too long."""
        expected = row["expected_answer"]
        if "question" in row and is_blank(row["question"]):
            raise ValueError("question is blank; the judge needs it")
        if len(expected) > MAX_ANSWER_CHARS:
            raise ValueError(
                f"expected_answer has {len(expected)} characters; at most {MAX_ANSWER_CHARS} are compared"
            )
        if is_blank(expected) or not normalized(expected) or not is_balanced(expected):
            raise ValueError(f"expected_answer is blank or has a brace without its counterpart: {expected!r:.200}")
        if expected.strip().lower() in MISSING_VALUES:
            raise ValueError(f"expected_answer is {expected!r}, which stands for a missing value")

    @classmethod
    def slow_check(cls, row: JsonObject, settings: Mapping[str, Any]) -> SlowCheck | None:
        """Refuse an expected answer that the library cannot parse, unless there is a judge, who can do without."""
        expected, defaults = row["expected_answer"], LibraryJudgeMathConfig.model_fields
        if settings.get("should_use_judge", defaults["should_use_judge"].default) or is_plain(expected):
            return None
        return SlowCheck(unreadable_gold, (expected,), defaults["library_timeout_s"].default)

    async def verify(self, body: MathVerifyRequest, client: ServerClient, compute: Compute) -> Score:
        messages = list(map("".join, message_texts(body.response)))
        too_long = sum(map(len, messages)) > self.config.max_answer_chars
        checked = await compute.run(
            check,
            body.expected_answer,
            *([] if too_long else messages),
            timeout_s=self.config.library_timeout_s,
            on_limit=TIMED_OUT,
        )
        found = NOTHING if checked is TIMED_OUT else checked
        if not found.is_gold_readable and not self.config.should_use_judge:
            raise RolloutError("input", f"math-verify cannot parse expected_answer: {body.expected_answer!r:.200}")
        judged = _Judged(found.reward)
        if self.config.should_use_judge and judged.reward <= 0.5 and not too_long:
            judged = await self._judged(body, spoken(messages).strip(), client)
        return Score(
            judged.reward,
            expected_answer=body.expected_answer,
            extracted_answer=found.extracted,
            library_reward=found.reward,
            judge_evaluations=judged.verdicts and [JudgeEvaluation.of(verdict) for verdict in judged.verdicts],
            judge_failure=judged.failure,
            timed_out=checked is TIMED_OUT,
            too_long=too_long,
        )

    async def _judged(self, body: MathVerifyRequest, answer: str, client: ServerClient) -> _Judged:
        if is_blank(answer):
            return _Judged(0.0)
        verdicts: list[Verdict] = []

        async def ask(answer_a: str, answer_b: str) -> Verdict:
            fields = {"problem": body.question, "answer_a": answer_a, "answer_b": answer_b}
            return await self._judge.ask(client, fields, record=verdicts)

        try:
            await ask_both_ways(ask, body.expected_answer, answer)
        except JudgeError as error:
            return _Judged(self._judge.failure_reward(error), verdicts, error.code)
        return _Judged(float(verdicts[-1].is_equal), verdicts, missing_label(verdicts))
