"""An environment whose reward is the verdict of a judge: declare what the judge is asked, and for what."""

import string
from typing import Any, ClassVar

import orjson
from pydantic import Field, PrivateAttr

from nemo_gym.answers import is_blank, last_text, shown
from nemo_gym.base_resources_server import BaseResourcesServerConfig, BaseVerifyRequest, Score, SimpleResourcesServer
from nemo_gym.client.server_client import ServerClient
from nemo_gym.errors import ConfigError
from nemo_gym.judge import Judge, JudgeConfig, JudgeError, JudgeEvaluation, JudgeServerRef, Panel, Verdict, prefer
from nemo_gym.llm_api.base import JsonObject, content_text
from nemo_gym.verdicts import Preference, VerdictForm

RESPONSE, PROMPT = "response", "prompt"
ANSWER_A, ANSWER_B, REFERENCE = "answer_a", "answer_b", "reference"


class JudgedConfig(BaseResourcesServerConfig, JudgeConfig):
    """The configuration of a judged environment. Subclass it for fields of its own."""

    more_judge_model_servers: list[JudgeServerRef] = Field(default_factory=list)
    """Further models that judge the same. The reward is the mean of all, and the record has their agreement."""

    max_answer_chars: int = Field(default=1_000_000, ge=1)
    """A longer answer is not judged: it scores 0.0, with `too_long` in the record."""


class JudgedVerifyRequest(BaseVerifyRequest, extra="allow"):
    """A row with all its fields, and the response."""


class JudgedEnvironment(SimpleResourcesServer):
    """Subclass and set `judge_prompt` and `judge_verdict`.

    The prompt is filled in with `{response}`, the last text of the model, `{prompt}`, the last message of the user,
    and fields of the row. With a `Preference` it has `{answer_a}` and `{answer_b}`: the response and the field
    `reference` of the row, in both orders.
    """

    config: JudgedConfig

    judge_prompt: ClassVar[str] = ""
    """What the judge is asked, with a `{placeholder}` for each field. A literal brace is written twice."""

    judge_verdict: ClassVar[VerdictForm | None] = None
    """`Labels`, `Scale`, `Rubric`, `JsonVerdict` or `Preference`; by default the labels of equality, which the prompt
    has to name."""

    judge_system: ClassVar[str | None] = None
    """The system message of the judge."""

    _panel: Panel = PrivateAttr()

    def model_post_init(self, _context: Any, /) -> None:
        kind, config = type(self), self.config
        if RESPONSE not in kind._placeholders() and not isinstance(kind.judge_verdict, Preference):
            raise ConfigError(f"{kind.__name__}.judge_prompt has no {{response}}, so the judge would not see it.")
        servers = [config.judge_model_server, *config.more_judge_model_servers]
        configs = [config.model_copy(update={"judge_model_server": server}) for server in servers]
        self._panel = Panel(
            [Judge(each, kind.judge_prompt, verdict=kind.judge_verdict, system=kind.judge_system) for each in configs]
        )

    @classmethod
    def _placeholders(cls) -> set[str]:
        try:
            return {name for _, name, _, _ in string.Formatter().parse(cls.judge_prompt) if name is not None}
        except ValueError as error:
            raise ConfigError(f"{cls.__name__}.judge_prompt: {error}. Write a literal brace twice.") from error

    @classmethod
    def check_row(cls, row: JsonObject) -> None:
        """Refuse a row without a field that the judge is asked about."""
        needed = cls._placeholders() - {RESPONSE, PROMPT}
        if isinstance(cls.judge_verdict, Preference):
            needed = needed - {ANSWER_A, ANSWER_B} | {REFERENCE}
        if missing := sorted(name for name in needed if row.get(name) is None):
            raise ValueError(f"there is no {', '.join(missing)}, which the judge is asked about")

    async def verify(self, body: JudgedVerifyRequest, client: ServerClient) -> Score:
        """Score the last text of the model by the verdict."""
        return await self.judged(body, shown(last_text(body.response)).strip(), client)

    async def judged(self, body: JudgedVerifyRequest, answer: str, client: ServerClient) -> Score:
        """The score of an answer: a blank or too long one scores 0.0, any other what the judges say."""
        if is_blank(answer):
            return Score(0.0, judge_evaluations=[])
        if len(answer) > self.config.max_answer_chars:
            return Score(0.0, judge_evaluations=[], too_long=True)
        fields, replies = _fields(body), list[Verdict]()
        try:
            score, more = await self._asked({**fields, RESPONSE: answer}, client, replies)
        except JudgeError as error:
            score, more = self._panel.judges[0].failure_reward(error), {"judge_failure": error.code}
        evaluations = [JudgeEvaluation.of(verdict) for verdict in replies]
        reasons = [verdict.reason for verdict in replies]
        return Score(score, **more, judge_reasons=reasons, judge_evaluations=evaluations)

    async def _asked(
        self, fields: dict[str, str], client: ServerClient, replies: list[Verdict]
    ) -> tuple[float, JsonObject]:
        if isinstance(type(self).judge_verdict, Preference):
            return await self._preferred(fields, client, replies)
        found = await self._panel.ask(client, fields, record=replies)
        more = {"reward_components": dict(found.scores), "judge_agreement": found.agreement}
        return found.score, {name: value for name, value in more.items() if value not in ({}, None)}

    async def _preferred(
        self, fields: dict[str, str], client: ServerClient, replies: list[Verdict]
    ) -> tuple[float, JsonObject]:
        scores, agree = list[float](), list[bool]()
        for judge in self._panel.judges:

            async def ask(one: str, other: str, judge: Judge = judge) -> Verdict:
                return await judge.ask(client, {**fields, ANSWER_A: one, ANSWER_B: other}, record=replies)

            found = await prefer(ask, fields[RESPONSE], fields[REFERENCE])
            scores.append(found.score)
            agree.append(found.orders_agree)
        return sum(scores) / len(scores), {"orders_agree": all(agree)}


def _fields(body: JudgedVerifyRequest) -> dict[str, str]:
    given = {name: value for name, value in (body.model_extra or {}).items() if value is not None}
    asked = body.responses_create_params.model_dump(include={"input"})["input"]
    said = [
        content_text(item.get("content")) for item in asked if isinstance(item, dict) and item.get("role") == "user"
    ]
    prompt = asked if isinstance(asked, str) else next(reversed(said), "")
    return {PROMPT: prompt, **{name: _text(value) for name, value in given.items()}}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()
