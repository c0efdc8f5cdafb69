"""Ask a judge model whether two answers are equal, and read its verdict.

The last label of a complete reply is the verdict, and a complete reply without a label means not equal. A judge that
gives no verdict ends the rollout without a result (cause `judge`), never with a reward, unless the configuration sets
one for that kind of failure.

What a prompt is filled with, such as the answer of a policy, cannot contain the labels or the delimiters of the
template: `Judge` fills in the template itself and breaks them up."""

import asyncio
import html
import itertools
import logging
import re
import string
import unicodedata
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator

from nemo_gym.answers import THOUGHT_TAGS, all_text, is_denied, is_refusal, last_part_of_last_item, without_thinking
from nemo_gym.client.reply import get_response_json, raise_for_status
from nemo_gym.client.server_client import ServerClient
from nemo_gym.common.deadline import current_deadline, timeout
from nemo_gym.common.markup import TO_LATIN
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

logger = logging.getLogger(__name__)

Reply = TypeVar("Reply", bound=BaseModel)
Verify = TypeVar("Verify", bound=Callable[..., Any])

EQUAL_LABEL = "[[A=B]]"
NOT_EQUAL_LABEL = "[[A!=B]]"
NO_LABEL = "no_label"
"""What a record says in `judge_failure` if the judge's reply was complete, but without a label."""
MAX_ATTEMPTS = 2
"""For broken connections and truncated replies. The model server retries error statuses and the client retries failed
connects; retrying those here too would multiply the load on an overloaded endpoint."""
BREAK = "\N{OPEN BOX}"
"""Put into a label or delimiter where it must not be one. A model reads it as a blank."""
MAX_ESCAPES = 3
"""How often a text may be HTML-escaped for its labels and delimiters to be found."""
RESERVED = (*(f"<{end}{tag}" for tag in THOUGHT_TAGS for end in ("", "/")), "[think]", "[/think]", "◁", "<|")
"""Broken up whatever the template: tags of thoughts, and the beginning of most chat templates' special tokens."""
_BRACKETS, _SIGNS = (
    "\u2039\u203a\u27e8\u27e9\u276c\u276d\u276e\u276f\u3010\u3011\u3014\u3015\u2772\u2773",
    "\ua78a\u2e40\u01c3\u2215\u2044",
)
_LOOK_ALIKES = TO_LATIN | str.maketrans(_BRACKETS + _SIGNS, "<><><><>[][][]==!//") | {0x27E6: "[[", 0x27E7: "]]"}
"""Characters that are taken for others of labels and delimiters."""
_MARKUP = str.maketrans("", "", "\\*_`~")
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)

ReplyFailure = Literal["context_overflow", "content_filter", "incomplete", "refused", "empty", "ambiguous"]
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
    ambiguous): one number for all kinds, or one for each kind. Kinds without a reward end the rollout without a
    result, as do all infrastructure failures. Set it if a policy learns to provoke such replies to avoid low
    rewards."""

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
    """The request, the reply, and the label found in it (None if there is none)."""

    params: NeMoGymResponseCreateParamsNonStreaming
    response: NeMoGymResponse
    label: str | None
    is_equal: bool


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

    `template` has a `{placeholder}` for each field of a question; a literal brace is written twice.
    """

    def __init__(
        self,
        config: JudgeConfig,
        template: str,
        *,
        system: str | None = None,
        equal_label: str = EQUAL_LABEL,
        not_equal_label: str = NOT_EQUAL_LABEL,
    ) -> None:
        self._config, self._server = config, config.judge_model_server.name or ""
        self._system_messages = [] if system is None else [NeMoGymEasyInputMessage(role="system", content=system)]
        self._template, self._equal_label, self._not_equal_label = template, equal_label, not_equal_label
        self._markers = Markers([*_checked_labels(equal_label, not_equal_label), *delimiters(template), *RESERVED])
        limit = config.judge_endpoint_max_concurrency
        self._slots: AbstractAsyncContextManager[Any] = nullcontext() if limit is None else asyncio.Semaphore(limit)

    async def ask(
        self, client: ServerClient, fields: Mapping[str, str], *, record: list[Verdict] | None = None
    ) -> Verdict:
        """Ask one question: the template, filled in with `fields`.

        Raises `JudgeError` if the reply has no verdict, or there is no reply. Every reply is appended to `record`,
        also one without a verdict.
        """
        prompt = self._template.format_map({name: self._markers.broken_up(text) for name, text in fields.items()})
        question = NeMoGymEasyInputMessage(role="user", content=prompt)
        params = changed(self._config.judge_responses_create_params, input=[*self._system_messages, question])
        response = await self._response(client, params)
        failure, labels = failure_kind(response), set[str]()
        if failure is None:
            reply = last_part_of_last_item(response)
            labels = final_labels(reply, self._equal_label, self._not_equal_label)
            if labels == {self._equal_label} and is_label_denied(reply, self._equal_label):
                labels = set()
            failure = "ambiguous" if len(labels) > 1 else None
        label = labels.pop() if len(labels) == 1 else None
        verdict = Verdict(params, response, label, is_equal=label == self._equal_label)
        if record is not None:
            record.append(verdict)
        if failure is not None:
            reason = f": {response.error.message}" if response.error else ""
            message = f"The reply of judge '{self._server}' has no verdict ({failure}{reason})."
            raise JudgeError(failure, message, server=self._server, verdict=verdict)
        return verdict

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


def missing_label(verdicts: Sequence[Verdict]) -> str | None:
    """What a record says in `judge_failure` about verdicts it was scored by: whether any of them has no label."""
    return NO_LABEL if any(verdict.label is None for verdict in verdicts) else None


def final_labels(text: str, *labels: str) -> set[str]:
    """The labels in the last line that has any. Thoughts in `<think>` tags and HTML comments are not read.

    A label within a longer one or within a word does not count: `INCORRECT` is not `CORRECT`.
    """
    pattern = _label_pattern(labels)
    return next(filter(None, (set(pattern.findall(line)) for line in reversed(_lines(text)))), set())


def is_label_denied(text: str, label: str) -> bool:
    """True if the last line with the label says that it is not the verdict: "It should not be [[A=B]]."."""
    pattern = _label_pattern([label])
    line = next((line for line in reversed(_lines(text)) if pattern.search(line)), "")
    return any(is_denied(line, *found.span()) for found in pattern.finditer(line))


def _lines(text: str) -> list[str]:
    return _COMMENT.sub("", without_thinking(text)).splitlines()


def _label_pattern(labels: Iterable[str]) -> re.Pattern[str]:
    longest_first = sorted(labels, key=len, reverse=True)
    return re.compile("|".join(rf"{_edge(label[0])}{re.escape(label)}{_edge(label[-1])}" for label in longest_first))


def _edge(character: str) -> str:
    return r"\b" if re.match(r"\w", character) else ""


def _checked_labels(equal: str, not_equal: str) -> tuple[str, str]:
    for label in (equal, not_equal):
        if len(folded(label)) < 2 or len(label.splitlines()) > 1:
            raise ConfigError(f"The judge's label {label!r} has to be of two characters or more, in one line.")
    if equal == not_equal:
        raise ConfigError(f"Both labels of the judge are {equal!r}; expected different ones.")
    return equal, not_equal


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
    """Kept for servers that decorate `verify` with it: a `JudgeError` leaves a rollout without a result already."""
    return verify


# Labels and delimiters in the texts that a prompt is filled with


def delimiters(template: str) -> Iterator[str]:
    """What tells the parts of a prompt template apart: tags, words in brackets, and the lines around its fields.

    Lines without punctuation are left out: they may be words of any answer.
    """
    for name in re.findall(r"</?([^\s<>/]+)[^<>\n]*>", template):
        yield from (f"<{name}", f"</{name}")
    yield from re.findall(r"\[+[^\[\]\n]+\]+", template)
    for literal, *_ in string.Formatter().parse(template):
        lines = list(filter(str.strip, literal.splitlines()))
        for line in lines[:1] + lines[-1:]:
            if len(bare := folded(line)) > 1 and not bare.isalnum():
                yield line


class Markers:
    """Texts that must not occur in others, nor anything that may be taken for them."""

    def __init__(self, markers: Iterable[str]) -> None:
        self._markers = sorted({folded(marker) for marker in markers})
        bare = {marker.translate(_MARKUP) for marker in self._markers}
        self._markers_without_markup = sorted(each for each in bare if len(each) > 1 and not each.isalnum())

    def broken_up(self, text: str) -> str:
        """The text with a visible `BREAK` in each marker, and otherwise as it is.

        Found are also markers in another case, of look-alike characters (full width, accents, Cyrillic), with white
        space, invisible characters, backslashes or emphasis in them, and HTML-escaped ones; in a text with the latter,
        all escapes are resolved.
        """
        plain = _unescaped(text)
        places = self._places(plain)
        if plain != text and not places:
            plain, places = text, self._places(text)
        return BREAK.join(plain[start:end] for start, end in itertools.pairwise([0, *places, len(plain)]))

    def _places(self, text: str) -> list[int]:
        """Where to put a break: behind the first character of each marker."""
        folds = {ord(character): folded(character) for character in set(text)}
        bare = {each: fold.translate(_MARKUP) for each, fold in folds.items()}
        return sorted({*_breaks(text, folds, self._markers), *_breaks(text, bare, self._markers_without_markup)})


def _breaks(text: str, folds: dict[int, str], markers: Sequence[str]) -> set[int]:
    bare = text.translate(folds)
    found = [(at, at + len(marker) - 1) for marker in markers for at in _occurrences(marker, bare)]
    if not found:
        return set()
    ends = list(itertools.accumulate(len(folds[ord(character)]) for character in text))
    spans = ((bisect_right(ends, first), bisect_right(ends, last)) for first, last in found)
    return {first + 1 for first, last in spans if first < last and _is_apart(text, first, last)}


def folded(text: str) -> str:
    """The text without differences that a reader may overlook, such as those of case, form and white space."""
    characters = unicodedata.normalize("NFKD", text).casefold().translate(_LOOK_ALIKES)
    return "".join(each for each in characters if unicodedata.category(each)[0] not in "CMZ")


def _unescaped(text: str) -> str:
    for _ in range(MAX_ESCAPES):
        text = html.unescape(text)
    return text


def _occurrences(part: str, text: str) -> Iterator[int]:
    at = text.find(part)
    while at != -1:
        yield at
        at = text.find(part, at + 1)


def _is_apart(text: str, first: int, last: int) -> bool:
    """True if the characters from `first` to `last` are not a part of a longer word."""
    edges = (text[max(first - 1, 0) : first + 1], text[last : last + 2])
    return not any(len(edge) == 2 and all(map(_is_word, edge)) for edge in edges)


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"
