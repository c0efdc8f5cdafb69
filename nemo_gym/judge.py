"""Ask a judge model, or several, and read the verdict: equality, labels, a scale, a rubric, JSON or a preference.

The last label of a complete reply is the verdict. A complete reply without a label means not equal if equality is
asked for, and is no verdict otherwise. A judge that gives no verdict ends the rollout without a result (cause
`judge`), never with a reward, unless the configuration sets one for that kind of failure.

What a prompt is filled with, such as the answer of a policy, cannot contain the labels or the delimiters of the
template: `Judge` fills in the template itself and breaks them up."""

import asyncio
import functools
import itertools
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator

from nemo_gym.answers import all_text, is_refusal, last_part_of_last_item, shown, without_thinking
from nemo_gym.client.reply import get_response_json, raise_for_status
from nemo_gym.client.server_client import ServerClient
from nemo_gym.common.deadline import current_deadline, timeout
from nemo_gym.common.exceptions import raise_first_error
from nemo_gym.common.plugins import plugin
from nemo_gym.common.retry import retry
from nemo_gym.errors import SETUP_CODES, ConfigError, ConnectError, GymError, RolloutError, UpstreamError
from nemo_gym.llm_api.json_codec import changed
from nemo_gym.llm_api.responses import (
    UNFINISHED,
    FailureCode,
    NeMoGymEasyInputMessage,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseOutputMessage,
    response_failure,
)
from nemo_gym.verdicts import BREAK as BREAK
from nemo_gym.verdicts import EQUAL_LABEL as EQUAL_LABEL
from nemo_gym.verdicts import NOT_EQUAL_LABEL as NOT_EQUAL_LABEL
from nemo_gym.verdicts import RESERVED, Equality, Reading, UnreadableError, VerdictForm
from nemo_gym.verdicts import Criterion as Criterion
from nemo_gym.verdicts import JsonVerdict as JsonVerdict
from nemo_gym.verdicts import Labels as Labels
from nemo_gym.verdicts import Markers as Markers
from nemo_gym.verdicts import Preference as Preference
from nemo_gym.verdicts import Rubric as Rubric
from nemo_gym.verdicts import Scale as Scale
from nemo_gym.verdicts import delimiters as delimiters
from nemo_gym.verdicts import final_labels as final_labels
from nemo_gym.verdicts import is_label_denied as is_label_denied

logger = logging.getLogger(__name__)

Reply = TypeVar("Reply", bound=BaseModel)
Verify = TypeVar("Verify", bound=Callable[..., Any])

NO_LABEL = "no_label"
"""What a record says in `judge_failure` if the judge's reply was complete, but without a label."""
MAX_ATTEMPTS = 2
"""For broken connections and truncated replies. The model server retries error statuses and the client retries failed
connects; retrying those here too would multiply the load on an overloaded endpoint."""
ReplyFailure = Literal["context_overflow", "content_filter", "incomplete", "refused", "empty", "ambiguous", "no_label"]
"""Replies without a verdict that a policy could provoke, so a reward can be configured for them."""
CallFailure = FailureCode | Literal["timeout", "error"]
"""Infrastructure failures: these never get a reward."""
JudgeFailure = ReplyFailure | CallFailure


class JudgeServerRef(BaseModel):
    """The judge model. The name may be missing if the configuration never asks it."""

    model_config = ConfigDict(frozen=True)

    type: Literal["responses_api_models"] = "responses_api_models"
    name: str | None = None


class JudgeConfig(BaseModel):
    """The judge settings of an environment. Inherit this beside the environment's own config base."""

    judge_model_server: JudgeServerRef = Field(default_factory=JudgeServerRef)
    """The model that judges."""

    judge_responses_create_params: NeMoGymResponseCreateParamsNonStreaming = Field(
        default_factory=lambda: NeMoGymResponseCreateParamsNonStreaming(input=[])
    )
    """Request parameters for the judge, such as its temperature. `input` is replaced."""

    judge_endpoint_max_concurrency: int | None = Field(default=64, ge=1)
    """The maximum number of concurrent judge requests; null for no limit."""

    judge_timeout_s: float = Field(default=600.0, gt=0)
    """The timeout of one judge request, including the wait for a free slot."""

    judge_failure_reward: FiniteFloat | dict[ReplyFailure, FiniteFloat] | None = None
    """The reward when the judge's reply has no verdict (context_overflow, content_filter, incomplete, refused, empty,
    ambiguous; no_label unless equality is asked for): one number for all kinds, or one for each kind. Kinds without a
    reward end the rollout without a result, as do all infrastructure failures. Set it if a policy learns to provoke
    such replies to avoid low rewards."""

    def asks_judge(self) -> bool:
        """True if the judge can be asked, so its name is required."""
        return True

    @model_validator(mode="after")
    def _judge_is_named(self) -> Self:
        if self.asks_judge() and self.judge_model_server.name is None:
            raise ValueError("judge_model_server.name has to be given: the name of the model that judges")
        return self


@dataclass(frozen=True, slots=True)
class Verdict:
    """The request, the reply, and what it says."""

    params: NeMoGymResponseCreateParamsNonStreaming
    response: NeMoGymResponse
    reading: Reading | None
    """None if the reply has no verdict."""

    @property
    def score(self) -> float:
        return 0.0 if self.reading is None else self.reading.score

    @property
    def label(self) -> str | None:
        return None if self.reading is None else self.reading.label

    @property
    def reason(self) -> str:
        """What the judge says about its verdict: the whole reply without thoughts, or the `reason` in its JSON."""
        given = None if self.reading is None else self.reading.reason
        return shown(last_part_of_last_item(self.response)).strip() if given is None else given

    @property
    def is_equal(self) -> bool:
        return self.score == 1.0


class JudgeEvaluation(BaseModel):
    """A verdict as a record stores it."""

    responses_create_params: NeMoGymResponseCreateParamsNonStreaming
    response: NeMoGymResponse
    verdict_label: str | None

    @classmethod
    def of(cls, verdict: Verdict) -> Self:
        return cls(responses_create_params=verdict.params, response=verdict.response, verdict_label=verdict.label)


class JudgeError(RolloutError):
    """The judge gave no verdict. `code` says why; `verdict` has the request and the reply, if there was one.

    An environment that asks a judge itself may raise it with a message alone.
    """

    def __init__(
        self,
        kind: JudgeFailure | str = "error",
        message: str | None = None,
        *,
        server: str | None = None,
        verdict: Verdict | None = None,
    ) -> None:
        super().__init__("judge", kind if message is None else message, server=server)
        self.code = "error" if message is None else kind
        self.verdict = verdict


class Judge:
    """Asks one model for verdicts, within the configured concurrency.

    `template` has a `{placeholder}` for each field of a question; a literal brace is written twice. `verdict` is what
    the judge is asked for; by default whether two answers are equal, by the two labels.
    """

    def __init__(
        self,
        config: JudgeConfig,
        template: str,
        *,
        verdict: VerdictForm | None = None,
        system: str | None = None,
        equal_label: str = EQUAL_LABEL,
        not_equal_label: str = NOT_EQUAL_LABEL,
    ) -> None:
        self._config, self._server = config, config.judge_model_server.name or ""
        self._system_messages = [] if system is None else [NeMoGymEasyInputMessage(role="system", content=system)]
        self._form = verdict or Equality(equal_label, not_equal_label)
        self._template, self._instruction = template, self._form.instruction
        self._markers = Markers([*self._form.markers, *delimiters(template), *RESERVED])
        limit = config.judge_endpoint_max_concurrency
        self._slots: AbstractAsyncContextManager[Any] = nullcontext() if limit is None else asyncio.Semaphore(limit)

    @property
    def server(self) -> str:
        """The name of the model server."""
        return self._server

    async def ask(
        self, client: ServerClient, fields: Mapping[str, str], *, record: list[Verdict] | None = None
    ) -> Verdict:
        """Ask one question: the template, filled in with `fields`.

        Raises `JudgeError` if the reply has no verdict, or there is no reply. Every reply is appended to `record`,
        also one without a verdict.
        """
        params = changed(self._config.judge_responses_create_params, input=self._messages(fields))
        response = await self._response(client, params)
        reading, failure = self._read(response)
        verdict = Verdict(params, response, reading)
        if record is not None:
            record.append(verdict)
        if failure is not None:
            reason = f": {response.error.message}" if response.error else ""
            message = f"The reply of judge '{self._server}' has no verdict ({failure}{reason})."
            raise JudgeError(failure, message, server=self._server, verdict=verdict)
        return verdict

    def _messages(self, fields: Mapping[str, str]) -> list[NeMoGymEasyInputMessage]:
        prompt = self._template.format_map({name: self._markers.broken_up(text) for name, text in fields.items()})
        whole = f"{prompt}\n\n{self._instruction}" if self._instruction else prompt
        return [*self._system_messages, NeMoGymEasyInputMessage(role="user", content=whole)]

    def _read(self, response: NeMoGymResponse) -> tuple[Reading | None, JudgeFailure | None]:
        failure = failure_kind(response)
        if failure is not None:
            return None, failure
        try:
            return self._form.read(last_part_of_last_item(response)), None
        except UnreadableError as error:
            return None, error.kind

    def failure_reward(self, error: JudgeError) -> float:
        """The reward configured for this kind of failure. Raises `error` if there is none."""
        rewards = self._config.judge_failure_reward
        if isinstance(rewards, float) and error.code in get_args(ReplyFailure):
            return rewards
        if isinstance(rewards, dict) and error.code in rewards:
            return rewards[error.code]
        raise error

    async def _response(
        self, client: ServerClient, params: NeMoGymResponseCreateParamsNonStreaming
    ) -> NeMoGymResponse:
        rollout, limit_s = current_deadline(), self._config.judge_timeout_s

        def call() -> Awaitable[NeMoGymResponse]:
            return client.call(
                self._server, "/v1/responses", params, answer=NeMoGymResponse, cause="judge", timeout_s=limit_s
            )

        try:
            async with timeout(limit_s, what=f"The judge '{self._server}'"), self._slots:
                return await retry(call, max_tries=MAX_ATTEMPTS, retryable=_is_retryable)
        except GymError as error:
            if rollout is not None and rollout.left_s() <= 0:
                raise
            failure = JudgeError(_call_failure(error), f"The judge failed: {error}", server=self._server)
            if isinstance(error, RolloutError) and error.code in SETUP_CODES:
                failure.code, failure.retryable = error.code, error.retryable
            raise failure from error


def failure_kind(response: NeMoGymResponse) -> JudgeFailure | None:
    """Why a reply has no verdict; None if it is complete and says something."""
    failure = response_failure(response)
    if failure is not None:
        return failure.code
    details = response.incomplete_details
    reason = None if details is None else details.reason
    if reason == "content_filter":
        return "content_filter"
    if reason is not None or response.status == "incomplete" or _last_message_is_incomplete(response):
        return "context_overflow" if _generated_nothing(response) else "incomplete"
    if is_refusal(response):
        return "refused"
    said = (without_thinking(text).strip() for text in (all_text(response), last_part_of_last_item(response)))
    return None if any(said) else "empty"


def _last_message_is_incomplete(response: NeMoGymResponse) -> bool:
    last = response.output[-1] if response.output else None
    return isinstance(last, NeMoGymResponseOutputMessage) and last.status != "completed"


def _generated_nothing(response: NeMoGymResponse) -> bool:
    """True for a prompt that did not fit: the reply stopped at a length limit before its first token."""
    return not response.output and response.usage is not None and response.usage.output_tokens == 0


def _call_failure(error: GymError) -> CallFailure:
    if isinstance(error, RolloutError):
        if error.code in UNFINISHED:
            return UNFINISHED[error.code]
        if error.cause == "timeout":
            return "timeout"
    return "error"


def _is_retryable(error: Exception) -> bool:
    """True if the connection broke or the reply is not a valid response."""
    reason = error.__cause__
    if isinstance(reason, UpstreamError):
        return reason.cause != "timeout" and not isinstance(reason, ConnectError)
    return isinstance(reason, ValidationError)


async def ask_both_ways(ask: Callable[[str, str], Awaitable[Verdict]], one: str, other: str) -> list[Verdict]:
    """Ask about two answers and, if they are found equal, again with the answers swapped.

    A judge may favour a position; so the answers count as equal only if both verdicts are.
    """
    verdict = await ask(one, other)
    return [verdict, await ask(other, one)] if verdict.is_equal else [verdict]


@dataclass(frozen=True, slots=True)
class Preferred:
    """The verdicts about a pair of answers in both orders."""

    score: float
    """1 if the first answer is better, 0 if the other is, 0.5 for a tie; the mean of both orders."""
    orders_agree: bool
    verdicts: tuple[Verdict, Verdict]


async def prefer(ask: Callable[[str, str], Awaitable[Verdict]], one: str, other: str) -> Preferred:
    """Ask which of two answers is better, in both orders: a judge may favor a position."""
    first, swapped = await ask(one, other), await ask(other, one)
    scores = (first.score, 1.0 - swapped.score)
    return Preferred(sum(scores) / 2, scores[0] == scores[1], (first, swapped))


@dataclass(frozen=True, slots=True)
class PanelVerdict:
    """The verdicts of several judges on the same question."""

    score: float
    """Their mean."""
    scores: Mapping[str, float]
    """The mean of each criterion of a rubric."""
    agreement: float | None
    """The share of pairs of judges with the same score. None for one judge."""
    verdicts: tuple[Verdict, ...]


class Panel:
    """Several judges that are asked the same. If one of them has no verdict, there is none."""

    def __init__(self, judges: Sequence[Judge]) -> None:
        if not judges:
            raise ConfigError("The panel has no judge.")
        self.judges = tuple(judges)

    async def ask(
        self, client: ServerClient, fields: Mapping[str, str], *, record: list[Verdict] | None = None
    ) -> PanelVerdict:
        """Ask all judges at once. See `Judge.ask`."""
        replies: list[list[Verdict]] = [[] for _ in self.judges]
        try:
            with raise_first_error():
                async with asyncio.TaskGroup() as group:
                    for judge, own in zip(self.judges, replies, strict=True):
                        group.create_task(judge.ask(client, fields, record=own))
        finally:
            verdicts = tuple(itertools.chain.from_iterable(replies))
            if record is not None:
                record.extend(verdicts)
        scores = [verdict.score for verdict in verdicts]
        return PanelVerdict(_mean(scores), _mean_by_name(verdicts), agreement(scores), verdicts)


def agreement(scores: Sequence[float]) -> float | None:
    """The share of pairs of judges with the same score. None for one judge."""
    pairs = list(itertools.combinations(scores, 2))
    return sum(one == other for one, other in pairs) / len(pairs) if pairs else None


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _mean_by_name(verdicts: Sequence[Verdict]) -> dict[str, float]:
    readings = [verdict.reading for verdict in verdicts if verdict.reading is not None]
    return {name: _mean([reading.scores[name] for reading in readings]) for name in readings[0].scores}


def missing_label(verdicts: Sequence[Verdict]) -> str | None:
    """What a record says in `judge_failure` about verdicts it was scored by: whether any of them has no label."""
    return NO_LABEL if any(verdict.label is None for verdict in verdicts) else None


async def call_judge(
    server_client: ServerClient, *, server_name: str, url_path: str, json: Any, response_model: type[Reply]
) -> Reply:
    """Ask a model server and read its reply. Whatever goes wrong is a `JudgeError`: the rollout has no result.

    `Judge` does more: it limits how many ask at once, has a timeout, and reads verdicts.
    """
    return await reraise_judge_errors(_post(server_client, server_name, url_path, json, response_model))


async def _post(client: ServerClient, server: str, path: str, body: Any, answer: type[Reply]) -> Reply:
    """By the methods that environments' own tests replace."""
    response = await client.post(server_name=server, url_path=path, json=body)
    await raise_for_status(response)
    return answer.model_validate(await get_response_json(response))


async def reraise_judge_errors(call: Awaitable[Reply]) -> Reply:
    """Await a call of a judge. Whatever it raises is raised as a `JudgeError`."""
    try:
        return await call
    except JudgeError:
        raise
    except Exception as error:
        raise JudgeError(f"{type(error).__name__}: {error}") from error


def judge_failsafe(verify: Verify) -> Verify:
    """Answer as the public NeMo Gym does if the judge fails: the row, marked as a failure. Our endpoints need no such
    wrapper: there, a `JudgeError` leaves a rollout without a result."""

    @functools.wraps(verify)
    async def verify_or_mark(*args: Any, **kwargs: Any) -> Any:
        try:
            return await verify(*args, **kwargs)
        except JudgeError as error:
            return plugin("judge_failure_reply")(error, (*args, *kwargs.values()))

    return verify_or_mark  # type: ignore[return-value]
