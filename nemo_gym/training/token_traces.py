"""Token traces: what the policy read and sampled in a rollout, call by call, for a trainer.

A call whose prompt begins with all tokens of an earlier call continues that call's segment. Any other call starts a
new segment: the context was compacted, a sub-agent spoke, or the conversation was tokenized again.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, zip_longest
from typing import Any, Literal, NamedTuple, TypeAlias

from nemo_gym.llm_api.base import POLICY_VERSION_FIELD, VERSION_RUNS_FIELD, JsonObject, is_policy_version
from nemo_gym.llm_api.base import REQUIRED_TOKEN_METADATA_FIELDS as TOKEN_FIELDS
from nemo_gym.llm_api.stored_tokens import expand_prompts
from nemo_gym.llm_api.tokens import PROMPT, TokenArray, joined, log_prob_fault, token_ids
from nemo_gym.llm_api.tokens import TokenTraceError as TokenTraceError
from nemo_gym.participants import ENVIRONMENT, HARNESS, TOOL, USER

PolicyVersion: TypeAlias = int | str | None
NOT_SAMPLED = frozenset((TOOL, USER, ENVIRONMENT, HARNESS))
"""Producers of items that no policy has sampled, whatever tokens these items claim to have."""


Role: TypeAlias = Literal["prompt", "sampled", "tool", "user", "mixed", "image"]
"""The origin of a token: `prompt` is text before the policy's first call, or of its template alone, and
`mixed` of both tools and users."""


class RewardSpan(NamedTuple):
    """A reward for tokens from `start` to `end`, which it does not contain."""

    start: int
    end: int
    reward: float


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A call of the policy."""

    prompt_ids: Sequence[int]
    sampled_ids: Sequence[int]
    log_probs: Sequence[float]
    policy_version: PolicyVersion = None
    """Version of the weights that sampled it, if the endpoint reports it. The last one, if they changed meanwhile."""
    item: int | None = None
    """The index of its output item."""
    version_runs: Sequence[tuple[PolicyVersion, int]] = ()
    """Versions and how many tokens each sampled, if there were several."""
    role: Role = "prompt"
    """Origin of the prompt tokens that no earlier call has."""
    top_log_probs: Sequence[Sequence[tuple[int, float]]] = ()
    """The likeliest tokens in place of each sampled one, if the endpoint was asked for them."""
    prompt_log_probs: Sequence[float | None] = ()
    """Log-probs of the last tokens of the prompt, if the endpoint was asked for them."""
    log_prob_mode: str | None = None
    """`raw` or `processed`, if the configuration of the model says."""
    routed_experts: Any = None
    """Experts that each token of the call was routed to, as the engine encodes them."""
    image_token: int | None = None
    """The token that stands for an image."""
    images: Sequence[str] = ()
    """The places in the record of all images that the prompt shows."""
    rewards: Sequence[RewardSpan] = ()
    """Rewards for spans of the sampled tokens."""

    @property
    def length(self) -> int:
        return len(self.prompt_ids) + len(self.sampled_ids)

    def is_prefix_of(self, prompt: Sequence[int]) -> bool:
        """True if the prompt begins with all tokens of this call. Takes no time if they share an array."""
        return joined(token_ids(self.prompt_ids), token_ids(self.sampled_ids)).is_prefix_of(token_ids(prompt))


class RoleSpan(NamedTuple):
    """Tokens from `start` to `end`, which it does not contain, that come from one place."""

    start: int
    end: int
    role: Role


class ImageSpan(NamedTuple):
    """Tokens from `start` to `end`, which it does not contain, that stand for an image."""

    start: int
    end: int
    place: str | None
    """Place of the image in the record, such as `responses_create_params.input.0.content.1`. None if the prompt has
    another number of images than the record, as after the context was compacted."""


class VersionSpan(NamedTuple):
    """Tokens from `start` to `end`, which it does not contain, that one version of the weights sampled."""

    start: int
    end: int
    version: PolicyVersion


class PrefixBreak(NamedTuple):
    """A call that does not continue the call before it."""

    call: int
    """The number of the call in the rollout, from 1."""
    position: int
    """The first token of the prompt that differs."""
    expected: int
    found: int | None
    """None if the prompt is too short."""

    def __str__(self) -> str:
        found = "missing" if self.found is None else self.found
        return (
            f"turn {self.call}: token {self.position} of the prompt is {found}, "
            f"expected {self.expected} as in turn {self.call - 1}"
        )


@dataclass(frozen=True, slots=True)
class FlatTokens:
    """A segment as one sequence. The first three lists have one entry per token."""

    ids: list[int]
    loss_mask: list[int]
    """1 for a token that the policy sampled, 0 for one that it read."""
    log_probs: list[float]
    """0.0 where the mask is 0."""
    prompt_length: int
    """Number of tokens before the first sampled one."""
    policy_versions: list[PolicyVersion] = field(default_factory=list)
    """One entry for each model call."""
    version_spans: list[VersionSpan] = field(default_factory=list)
    """Spans of tokens, each with the version that sampled it. Neighbouring spans differ in their version, or have
    tokens that were read between them. Tokens whose version is unknown are in none."""

    roles: list[RoleSpan] = field(default_factory=list)
    """Spans of all tokens in their order, each with its origin."""
    images: list[ImageSpan] = field(default_factory=list)
    """If the configuration of the model names the token that stands for an image."""
    rewards: list[RewardSpan] = field(default_factory=list)
    """If the record has rewards for steps or spans of tokens."""
    top_log_probs: list[Sequence[tuple[int, float]]] = field(default_factory=list)
    """One entry per token, if the endpoint gave them; empty for tokens that were read."""
    prompt_log_probs: list[float | None] = field(default_factory=list)
    """One entry per token, if the endpoint gave them; None for tokens that were sampled."""
    routed_experts: Any = None
    """Those of the last call, which cover all its tokens."""
    log_prob_mode: str | None = None

    def versions(self) -> list[PolicyVersion]:
        """One entry for each token; None for tokens that were read, or whose version is unknown."""
        found: list[PolicyVersion] = [None] * len(self.ids)
        for start, end, version in self.version_spans:
            found[start:end] = [version] * (end - start)
        return found

    @property
    def sampled_ids(self) -> list[int]:
        return [token for token, is_sampled in zip(self.ids, self.loss_mask, strict=True) if is_sampled]


@dataclass(frozen=True, slots=True)
class Segment:
    """Model calls whose prompts each begin with all tokens of the call before."""

    calls: list[ModelCall]

    def flatten(self) -> FlatTokens:
        """The segment as one sequence. This is the only place where a mask is made."""
        last = self.calls[-1]
        starts = (len(call.prompt_ids) for call in self.calls if call.sampled_ids)
        flat = FlatTokens(
            ids=[*last.prompt_ids, *last.sampled_ids],
            loss_mask=[0] * last.length,
            log_probs=[0.0] * last.length,
            prompt_length=next(starts, last.length),
            policy_versions=[call.policy_version for call in self.calls],
        )
        for call in self.calls:
            sampled = slice(len(call.prompt_ids), call.length)
            flat.loss_mask[sampled] = [1] * len(call.sampled_ids)
            flat.log_probs[sampled] = call.log_probs
            flat.version_spans.extend(_spans(call))
            flat.rewards.extend(
                RewardSpan(sampled.start + start, sampled.start + end, reward) for start, end, reward in call.rewards
            )
        return self._with_extras(flat)

    def _with_extras(self, flat: FlatTokens) -> FlatTokens:
        last, images = self.calls[-1], [*self._images()]
        top, read = list[Sequence[tuple[int, float]]](), list[float | None]()
        if any(call.top_log_probs for call in self.calls):
            top = [()] * last.length
        if any(call.prompt_log_probs for call in self.calls):
            read = [None] * last.length
        for call in self.calls:
            start = len(call.prompt_ids)
            if call.top_log_probs:
                top[start : call.length] = call.top_log_probs
            if call.prompt_log_probs:
                read[start - len(call.prompt_log_probs) : start] = call.prompt_log_probs
        return replace(
            flat,
            roles=[*self._roles(images)],
            images=images,
            top_log_probs=top,
            prompt_log_probs=read,
            routed_experts=last.routed_experts,
            log_prob_mode=last.log_prob_mode,
        )

    def _roles(self, images: Sequence[ImageSpan]) -> Iterator[RoleSpan]:
        """Return spans of tokens with their origin, without empty ones."""
        at = 0
        for call in self.calls:
            for image in (each for each in images if at <= each.start < len(call.prompt_ids)):
                yield from _span(at, image.start, call.role)
                yield RoleSpan(image.start, image.end, "image")
                at = image.end
            yield from _span(at, len(call.prompt_ids), call.role)
            yield from _span(len(call.prompt_ids), call.length, "sampled")
            at = call.length

    def _images(self) -> Iterator[ImageSpan]:
        last = self.calls[-1]
        if last.image_token is None:
            return
        runs, at = list[tuple[int, int]](), 0
        for is_image, tokens in groupby(last.prompt_ids, key=last.image_token.__eq__):
            size = len([*tokens])
            runs += [(at, at + size)] if is_image else []
            at += size
        places = last.images if len(last.images) == len(runs) else [None] * len(runs)
        yield from (ImageSpan(start, end, place) for (start, end), place in zip(runs, places, strict=True))


def _span(start: int, end: int, role: Role) -> Iterator[RoleSpan]:
    if start < end:
        yield RoleSpan(start, end, role)


def _spans(call: ModelCall) -> Iterator[VersionSpan]:
    start = len(call.prompt_ids)
    for version, count in call.version_runs or [(call.policy_version, len(call.sampled_ids))]:
        if count and version is not None:
            yield VersionSpan(start, start + count, version)
        start += count


@dataclass(frozen=True, slots=True)
class TokenTrace:
    """All model calls of a rollout."""

    segments: list[Segment]
    breaks: list[PrefixBreak]
    """Every call but the first that starts a segment."""

    calls: list[ModelCall] = field(default_factory=list)
    """In the order in which they were made."""

    @property
    def num_calls(self) -> int:
        return len(self.calls)


MALFORMED = (KeyError, TypeError, AttributeError, IndexError, ValueError)
"""What reading a record raises that is not in the form of one."""


def trace_of(record: Mapping[str, Any]) -> TokenTrace:
    """The token trace of a scored record, as it is stored or as `run_examples` gives it."""
    try:
        output = expand_prompts({"output": record["response"]["output"]})["output"]
        calls = [*calls_of(output, images=_images_in(record))]
        return trace_of_calls(_with_rewards(calls, record))
    except TokenTraceError:
        raise
    except MALFORMED as error:
        raise TokenTraceError(f"The record has no `response.output` that can be read ({error!r}).") from error


def _with_rewards(calls: list[ModelCall], record: Mapping[str, Any]) -> Iterator[ModelCall]:
    """The calls with the rewards of their steps, or of spans of their tokens."""
    steps, spans = record.get("step_rewards"), record.get("token_rewards")
    if steps is not None and (not are_numbers(steps) or len(steps) != len(calls)):
        raise TokenTraceError(f"`step_rewards` is {steps!r:.100}; expected a number for each of {len(calls)} turns")
    if spans is not None and not (isinstance(spans, list) and all(map(_is_reward_span, spans))):
        raise TokenTraceError(f"`token_rewards` is {spans!r:.100}; expected lists of item, start, end and reward")
    left = len(spans or ())
    for number, call in enumerate(calls):
        size = len(call.sampled_ids)
        own = [
            RewardSpan(*span) for item, *span in spans or () if item == call.item and 0 <= span[0] < span[1] <= size
        ]
        left -= len(own)
        yield replace(call, rewards=([RewardSpan(0, size, steps[number])] if steps and size else []) + own)
    if left:
        raise TokenTraceError(f"{left} of the `token_rewards` are of tokens that no turn sampled")


def are_numbers(values: Any) -> bool:
    return isinstance(values, list | tuple) and all(_is_number(value) for value in values)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _is_reward_span(span: Any) -> bool:
    return (
        isinstance(span, list | tuple)
        and len(span) == 4
        and all(type(each) is int for each in span[:3])
        and _is_number(span[3])
    )


def _images_in(record: Mapping[str, Any]) -> list[tuple[int, str]]:
    """The images of a rollout, in order: the index of the output item with each, or -1 if the row has it, and its
    place."""
    given = (record.get("responses_create_params") or {}).get("input")
    asked = given if isinstance(given, list) else []
    start = [(-1, f"responses_create_params.input.{at}", item) for at, item in enumerate(asked)]
    items = [*start, *((at, f"response.output.{at}", item) for at, item in enumerate(record["response"]["output"]))]
    return [
        (at, f"{place}.{name}.{number}")
        for at, place, item in items
        for name in ("content", "output")
        if isinstance(item, Mapping) and _is_list(item.get(name))
        for number, part in enumerate(item[name])
        if isinstance(part, Mapping) and part.get("type") == "input_image"
    ]


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def trace_of_calls(calls: Iterable[ModelCall]) -> TokenTrace:
    """Calls in the order in which they were made, sorted into segments."""
    segments: list[Segment] = []
    breaks: list[PrefixBreak] = []
    previous: ModelCall | None = None
    made = [*calls]
    for number, call in enumerate(made, 1):
        # The latest first: usually a call continues the one before it.
        continued = next(
            (known for known in reversed(segments) if known.calls[-1].is_prefix_of(call.prompt_ids)), None
        )
        if continued is not None:
            continued.calls.append(call)
        else:
            segments.append(Segment([call]))
            if previous is not None:
                breaks.append(_break_between(number, previous, call))
        previous = call
    return TokenTrace(segments, breaks, made)


def _break_between(number: int, before: ModelCall, after: ModelCall) -> PrefixBreak:
    pairs = enumerate(zip_longest([*before.prompt_ids, *before.sampled_ids], after.prompt_ids))
    index, (expected, found) = next((at, pair) for at, pair in pairs if pair[0] != pair[1])
    return PrefixBreak(number, index, expected, found)


def calls_of(output: Iterable[JsonObject], *, images: Sequence[tuple[int, str]] = ()) -> Iterable[ModelCall]:
    """The model calls behind output items: the last item of each call has its tokens."""
    number, roles = 0, set[Role]()
    for place, item in enumerate(output):
        if (role := _role_of(item)) is not None:
            roles |= {role}
            continue
        if item.get("produced_by") in NOT_SAMPLED or all(item.get(name) is None for name in TOKEN_FIELDS):
            continue
        number += 1
        if (fault := _fault_in(item)) is not None:
            raise TokenTraceError(f"turn {number}: {fault}")
        prompt, sampled, log_probs = (item[name] for name in TOKEN_FIELDS)
        yield ModelCall(
            prompt,
            sampled,
            log_probs,
            item.get(POLICY_VERSION_FIELD),
            place,
            item.get(VERSION_RUNS_FIELD) or (),
            role="prompt" if not roles else roles.pop() if len(roles) == 1 else "mixed",
            top_log_probs=item.get("generation_top_log_probs") or (),
            prompt_log_probs=item.get("prompt_log_probs") or (),
            log_prob_mode=item.get("log_prob_mode"),
            routed_experts=item.get("routed_experts"),
            image_token=item.get("image_token_id"),
            images=[path for at, path in images if at < place],
        )
        roles = set()


def _role_of(item: JsonObject) -> Role | None:
    """Return the producer of the tokens that an item adds to the next prompt, if that is not the policy."""
    if item.get("type") == "function_call_output":
        return "tool"
    return "user" if item.get("role", "assistant") != "assistant" else None


def _fault_in(item: JsonObject) -> str | None:
    if isinstance(item.get(PROMPT), dict):
        return "the prompt continues a call that the record does not have"
    missing = next((name for name in TOKEN_FIELDS if not isinstance(item.get(name), list | TokenArray)), None)
    if missing is not None:
        return f"the output item has tokens, but no list `{missing}`"
    prompt, sampled, log_probs = (item[name] for name in TOKEN_FIELDS)
    if len(sampled) != len(log_probs):
        return f"{len(sampled)} tokens were generated, but {len(log_probs)} have log-probs"
    if not all(isinstance(ids, TokenArray) or _are_token_ids(ids) for ids in (prompt, sampled)):
        return "a token id is not a whole number from 0 on"
    if not set(map(type, log_probs)) <= {float, int}:
        return "a log-prob is not a finite number"
    if (wrong := log_prob_fault(log_probs)) is not None:
        return f"a log-prob is {wrong}"
    top, read = item.get("generation_top_log_probs"), item.get("prompt_log_probs")
    if top is not None and not (_is_list(top) and len(top) == len(sampled)):
        return f"{len(sampled)} tokens were generated, but the top log-probs are of another number"
    if read is not None and not (_is_list(read) and len(read) <= len(prompt)):
        return f"the prompt has {len(prompt)} tokens, but its log-probs are of another number"
    return _version_fault(item, len(sampled))


def _version_fault(item: JsonObject, count: int) -> str | None:
    runs = item.get(VERSION_RUNS_FIELD)
    if not is_policy_version(item.get(POLICY_VERSION_FIELD)):
        return f"the policy version {item[POLICY_VERSION_FIELD]!r:.100} is neither a whole number nor a name"
    if runs is None:
        return None
    if not isinstance(runs, list | tuple) or not all(map(_is_run, runs)):
        return f"the policy versions {runs!r:.100} are not pairs of a version and a number of tokens"
    named = sum(size for _, size in runs)
    return None if named == count else f"{count} tokens were generated, but {named} have a policy version"


def _is_run(run: Any) -> bool:
    return (
        isinstance(run, list | tuple)
        and len(run) == 2
        and is_policy_version(run[0])
        and type(run[1]) is int
        and run[1] >= 0
    )


def _are_token_ids(ids: Iterable[Any]) -> bool:
    return all(type(token) is int and token >= 0 for token in ids)
