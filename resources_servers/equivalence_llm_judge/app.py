"""Short answers: a judge model decides whether they are equivalent to the gold answer."""

import re
from typing import Any, NamedTuple

from pydantic import PrivateAttr

from nemo_gym import ServerClient
from nemo_gym.answers import is_blank, last_text, shown
from nemo_gym.base_resources_server import Score, SimpleResourcesServer
from nemo_gym.compute import Compute, LimitExceededError
from nemo_gym.judge import Judge, JudgeError, JudgeEvaluation, Verdict, ask_both_ways, missing_label
from resources_servers.equivalence_llm_judge.config import EquivalenceConfig
from resources_servers.equivalence_llm_judge.engine import extract
from resources_servers.equivalence_llm_judge.rows import EquivalenceVerifyRequest

_EMPTY_MARKUP = re.compile(r"!?\[\s*\]\([^()\s]*\)|\u2800")
"""Links and pictures without words, and the blank of Braille."""


class _Case(NamedTuple):
    """The question, the gold answer and the given answer to judge."""

    question: str
    expected: str
    answer: str
    """The extracted part of the reply."""
    reply: str
    has_regex: bool
    """True if the row's own regex extracted the answer."""
    is_long: bool
    """True if the row has a regex, but its gold answer is too long for extraction."""


class EquivalenceLLMJudgeResourcesServer(SimpleResourcesServer):
    config: EquivalenceConfig

    _judge: Judge = PrivateAttr()

    def model_post_init(self, _context: Any, /) -> None:
        config = self.config
        self._judge = Judge(
            config,
            config.prompt_template(),
            system=config.judge_system_message,
            equal_label=config.judge_equal_label,
            not_equal_label=config.judge_not_equal_label,
        )

    @classmethod
    def check_row(cls, row: dict[str, Any]) -> None:
        """Refuse a row without a gold answer: the judge would compare with nothing."""
        given = row.get("expected_answer") or (row.get("metadata") or {}).get("expected_answer")
        if given is None or isinstance(given, list | dict | bool) or says_nothing(shown(str(given))):
            raise ValueError("there is no expected_answer, neither in the row nor in its metadata")

    async def verify(self, body: EquivalenceVerifyRequest, client: ServerClient, compute: Compute) -> Score:
        reply = shown(last_text(body.response)).strip()
        if len(reply) > self.config.max_answer_chars:
            return _score(body, 0.0, [], too_long=True)
        if says_nothing(reply):
            return _score(body, 0.0, [])
        question = await self._part(body.question(), self.config.question_extract_regex, compute)
        try:
            case = await self._case(body, question, reply, compute)
        except LimitExceededError:
            return _score(body, 0.0, [], timed_out=True)
        verdicts: list[Verdict] = []
        try:
            return _score(body, await self._reward(case, client, verdicts), verdicts)
        except JudgeError as error:
            return _score(body, self._judge.failure_reward(error), verdicts, judge_failure=error.code)

    async def _case(self, body: EquivalenceVerifyRequest, question: str, reply: str, compute: Compute) -> _Case:
        expected, longest = body.gold_answer(), self.config.extraction_length_threshold
        of_row = body.output_regex() if self.config.use_per_record_regex else None
        is_long = of_row is not None and longest is not None and len(expected) > longest
        answer = await self._part(reply, None if is_long else of_row or self.config.response_extract_regex, compute)
        return _Case(question, expected, answer, reply, has_regex=of_row is not None and not is_long, is_long=is_long)

    async def _part(self, text: str, regex: str | None, compute: Compute) -> str:
        """Return the part of a text that a regex matches; the whole text without a regex or a match."""
        if not regex:
            return text
        found = await compute.run(extract, regex, text, timeout_s=self.config.regex_timeout_s)
        return text if found is None else found

    async def _reward(self, case: _Case, client: ServerClient, verdicts: list[Verdict]) -> float:
        """Every reply of the judge is appended to `verdicts`, also one that ends this with a `JudgeError`."""

        async def ask(expected: str, answer: str) -> Verdict:
            fields = {"question": case.question, "expected_answer": expected, "generated_answer": answer}
            return await self._judge.ask(client, fields, record=verdicts)

        config = self.config
        if says_nothing(case.answer):
            pass  # different without asking
        elif config.check_twice_swap and not case.is_long:
            await ask_both_ways(ask, case.expected, case.answer)
        else:
            await ask(case.expected, case.answer)
        if verdicts and verdicts[0].is_equal:
            return 1.0 if verdicts[-1].is_equal else config.reward_if_swap_fails
        if not (case.has_regex and config.check_full_generation_on_fail):
            return 0.0
        again = await ask(case.expected, case.reply)
        return config.reward_if_full_generation_succeeds if again.is_equal else 0.0


def says_nothing(text: str) -> bool:
    """True for a text of white space and empty markup, such as a link without words."""
    return is_blank(_EMPTY_MARKUP.sub("", text))


def _score(
    body: EquivalenceVerifyRequest,
    reward: float,
    verdicts: list[Verdict],
    *,
    judge_failure: str | None = None,
    timed_out: bool = False,
    too_long: bool = False,
) -> Score:
    return Score(
        reward,
        expected_answer=body.gold_answer(),
        judge_evaluations=[JudgeEvaluation.of(verdict) for verdict in verdicts],
        judge_failure=judge_failure or missing_label(verdicts),
        timed_out=timed_out,
        too_long=too_long,
    )
