"""Token traces: what the policy read and sampled in a rollout, call by call, for a trainer.

A call whose prompt begins with all tokens of an earlier call continues that call's segment. Any other call starts a
new segment: the context was compacted, a sub-agent spoke, or the conversation was tokenized again.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, NamedTuple, TypeAlias

from nemo_gym.llm_api.base import POLICY_VERSION_FIELD, JsonObject
from nemo_gym.llm_api.base import REQUIRED_TOKEN_METADATA_FIELDS as TOKEN_FIELDS
from nemo_gym.llm_api.tokens import TokenTraceError as TokenTraceError

PolicyVersion: TypeAlias = int | str | None
MAX_LOG_PROB = 1e-3
"""A probability of 1, and what rounding in 16 bits may add to it."""


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One call of the policy."""

    prompt_ids: Sequence[int]
    sampled_ids: Sequence[int]
    log_probs: Sequence[float]
    policy_version: PolicyVersion = None
    """Which weights sampled it, if the endpoint says."""

    @property
    def length(self) -> int:
        return len(self.prompt_ids) + len(self.sampled_ids)

    def is_prefix_of(self, prompt: Sequence[int]) -> bool:
        start = len(self.prompt_ids)
        return list(prompt[:start]) == list(self.prompt_ids) and list(prompt[start : self.length]) == list(
            self.sampled_ids
        )


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
    """A segment as one sequence. All lists but the last have one entry per token."""

    ids: list[int]
    loss_mask: list[int]
    """1 for a token that the policy sampled, 0 for one that it read."""
    log_probs: list[float]
    """0.0 where the mask is 0."""
    prompt_length: int
    """How many tokens come before the first sampled one."""
    policy_versions: list[PolicyVersion] = field(default_factory=list)
    """One per model call."""

    @property
    def sampled_ids(self) -> list[int]:
        return [token for token, is_sampled in zip(self.ids, self.loss_mask, strict=True) if is_sampled]


@dataclass(frozen=True, slots=True)
class Segment:
    """Model calls of which each prompt begins with all that came before."""

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
        return flat


@dataclass(frozen=True, slots=True)
class TokenTrace:
    """All model calls of a rollout."""

    segments: list[Segment]
    breaks: list[PrefixBreak]
    """Every call but the first that starts a segment."""

    @property
    def num_calls(self) -> int:
        return sum(len(segment.calls) for segment in self.segments)


def trace_of(record: Mapping[str, Any]) -> TokenTrace:
    """The token trace of a scored record, or of a result of `run_examples`."""
    try:
        output = record["response"]["output"]
    except (KeyError, TypeError) as error:
        raise TokenTraceError(f"The record has no `response.output` ({error!r}).") from error
    return trace_of_calls(calls_of(output))


def trace_of_calls(calls: Iterable[ModelCall]) -> TokenTrace:
    """Calls in the order in which they were made, sorted into segments."""
    segments: list[Segment] = []
    breaks: list[PrefixBreak] = []
    previous: ModelCall | None = None
    for number, call in enumerate(calls, 1):
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
    return TokenTrace(segments, breaks)


def _break_between(number: int, before: ModelCall, after: ModelCall) -> PrefixBreak:
    pairs = enumerate(zip_longest([*before.prompt_ids, *before.sampled_ids], after.prompt_ids))
    index, (expected, found) = next((at, pair) for at, pair in pairs if pair[0] != pair[1])
    return PrefixBreak(number, index, expected, found)


def calls_of(output: Iterable[JsonObject]) -> Iterable[ModelCall]:
    """The model calls behind output items: the last item of each call has its tokens."""
    with_tokens = (item for item in output if any(item.get(name) is not None for name in TOKEN_FIELDS))
    for number, item in enumerate(with_tokens, 1):
        fault = _fault_in(item)
        if fault is not None:
            raise TokenTraceError(f"turn {number}: {fault}")
        prompt, sampled, log_probs = (item[name] for name in TOKEN_FIELDS)
        yield ModelCall(prompt, sampled, log_probs, item.get(POLICY_VERSION_FIELD))


def _fault_in(item: JsonObject) -> str | None:
    missing = next((name for name in TOKEN_FIELDS if not isinstance(item.get(name), list)), None)
    if missing is not None:
        return f"the output item has tokens, but no list `{missing}`"
    prompt, sampled, log_probs = (item[name] for name in TOKEN_FIELDS)
    if len(sampled) != len(log_probs):
        return f"{len(sampled)} tokens were generated, but {len(log_probs)} have log-probs"
    if not all(type(token) is int and token >= 0 for ids in (prompt, sampled) for token in ids):
        return "a token id is not a whole number from 0 on"
    if not all(type(value) in (float, int) and math.isfinite(value) for value in log_probs):
        return "a log-prob is not a finite number"
    if any(value > MAX_LOG_PROB for value in log_probs):
        return f"a log-prob is {max(log_probs)}, expected at most 0"
    return None
