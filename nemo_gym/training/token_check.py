"""Check the tokens of stored rollouts: that they are what the policy sampled, and that a trainer gets exactly them.

A trainer concatenates the turns of a segment; where a prompt was tokenized again, it would train on tokens nobody
generated. Other checks compare the tokens with the rest of the record: its text, its usage, other rollouts of the same
prompt. A check that lacks what it needs (a tokenizer, a common end token, two rollouts with one prompt) is reported as
not run, so that a clean report says what it is worth."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from nemo_gym.common.paths import find
from nemo_gym.config.keys import TASK_INDEX_FIELD
from nemo_gym.errors import ConfigError, MissingExtraError
from nemo_gym.llm_api.base import JsonObject, content_text
from nemo_gym.llm_api.stored_tokens import read_record
from nemo_gym.llm_api.tokens import token_ids
from nemo_gym.participants import POLICY, policy_records
from nemo_gym.rollouts.types import REPEAT_INDEX_KEY_NAME, is_cut_off
from nemo_gym.training.samples import VIEWS, TrainerView, TrainingSample
from nemo_gym.training.token_file import token_records
from nemo_gym.training.token_traces import (
    MALFORMED,
    FlatTokens,
    ModelCall,
    PolicyVersion,
    TokenTrace,
    TokenTraceError,
    trace_of,
)

SAMPLE = 1000
"""Rollouts from which the end token is learned."""
MIN_TURNS = 8
"""Fewer turns do not show which token ends them."""
END_SHARE = 0.9
"""An end token ends at least this share of the turns that were not cut off."""
MIN_ZERO_TOKENS = 8
"""This many log-probs, all exactly 0, are none."""
MAX_DIFFERENCE = 0.5
"""Log-probs of one token after one prompt under one version differ by rounding only. Engines that batch differ by some
hundredths, for unlikely tokens by tenths."""
MIN_SEEN, MIN_COMPARED, MAX_SHIFT_RATIO = 5, 20, 0.5
"""A token's mean counts from 5 occurrences in other rollouts, and a rollout is judged from 20 such tokens. Log-probs
are shifted if that halves their squared distance from the means. If they were unrelated to tokens, it would stay."""
MAX_KNOWN = 200_000
"""First tokens of prompts that are remembered to compare others with."""

_NUMBER = re.compile(r"\D*(\d+)")
_MODEL_ITEMS = frozenset(("message", "function_call", "reasoning"))


class Tokenizer:
    """A tokenizer.json, to tell what tokens mean."""

    def __init__(self, path: str) -> None:
        try:
            import tokenizers
        except ImportError as error:
            raise MissingExtraError("A tokenizer", "tokens") from error
        found = find(path, what="tokenizer")
        file = found / "tokenizer.json" if found.is_dir() else found
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the package raises plain exceptions
            raise ConfigError(f"{file} is not a tokenizer.json: {error}") from error
        self.size: int = self._tokenizer.get_vocab_size(with_added_tokens=True)
        added = self._tokenizer.get_added_tokens_decoder()
        self.special = frozenset(number for number, token in added.items() if token.special)

    def text(self, ids: Iterable[int]) -> str:
        found: str = self._tokenizer.decode(
            [number for number in ids if number < self.size], skip_special_tokens=False
        )
        return found


class Checked(NamedTuple):
    """What was found in one line."""

    segments: int
    turns: int
    faults: list[str]
    breaks: list[str]


@dataclass(slots=True)
class TokenReport:
    """What was found in a file."""

    rollouts: int = 0
    segments: int = 0
    turns: int = 0
    faults: list[str] = field(default_factory=list)
    """One line for each fault, naming the row, the turn and the first token."""
    breaks: list[str] = field(default_factory=list)
    """One line for each turn that starts a new segment."""
    not_run: list[str] = field(default_factory=list)
    """Checks that could not be made, each with the reason."""

    def add(self, place: str, found: Checked) -> None:
        self.segments += found.segments
        self.turns += found.turns
        self.faults += [f"{place}, {fault}" for fault in found.faults]
        self.breaks += [f"{place}, {each}" for each in found.breaks]


class _Policy(NamedTuple):
    """One policy of a rollout."""

    prefix: str
    """Before its faults: its name, if there are several policies."""
    response: JsonObject
    trace: TokenTrace | None
    error: str = ""


def check_tokens(
    lines: Iterable[bytes],
    *,
    trainer: str | None = None,
    tokenizer: Tokenizer | None = None,
    restored: Callable[[JsonObject], JsonObject] | None = None,
) -> TokenReport:
    """Check every rollout of a file, given line by line, or every sample if it was exported for a trainer. `restored`
    puts the tokens into records that have them in another file."""
    if trainer is not None:
        return _check_samples(lines, VIEWS[trainer])
    return _check_records((_decoded(line, restored) for line in lines), tokenizer=tokenizer)


def check_token_file(path: Path, *, tokenizer: Tokenizer | None = None) -> TokenReport:
    """Check the rollouts in a file of tokens, which has no text to compare with."""
    return _check_records(token_records(path), tokenizer=tokenizer, has_text=False)


def _check_records(records: Iterable[Any], *, tokenizer: Tokenizer | None, has_text: bool = True) -> TokenReport:
    """Check records, or errors in the place of some. None is a blank line."""
    report, remaining = TokenReport(), enumerate(records, 1)
    head = [(number, record, _policies(record)) for number, record in islice(remaining, SAMPLE)]
    known = [policy for _, _, policies in head for policy in policies]
    means = TokenMeans(policy.trace.calls for policy in known if policy.trace is not None)
    checker = RolloutChecker(_end_tokens(known) if has_text else frozenset(), tokenizer, means)
    rest = ((number, record, _policies(record)) for number, record in remaining)
    for number, record, policies in chain(head, rest):
        if record is None:
            continue
        report.rollouts += 1
        place = f"{'line' if has_text else 'rollout'} {number}"
        if not policies:
            reason = repr(record) if isinstance(record, Exception) else "no `response.output`"
            report.faults.append(f"{place}: no rollout with tokens in it ({reason})")
            continue
        place += _named(record)
        try:
            report.add(place, checker.check(policies, place))
        except MALFORMED as error:
            report.faults.append(f"{place}: a field of it is not valid ({error!r})")
    report.not_run = checker.not_run(has_text=has_text)
    return report


def _check_samples(lines: Iterable[bytes], view: TrainerView) -> TokenReport:
    report = TokenReport()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        report.rollouts += 1
        try:
            record = orjson.loads(line)
            found = check_sample(record, view)
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError, ValueError) as error:
            report.faults.append(f"line {number}: no sample in it ({error!r})")
            continue
        report.add(f"line {number}{_named(record)}", found)
    return report


def check_sample(line: Any, view: TrainerView) -> Checked:
    """Check a line that `ng_export` wrote for a trainer."""
    tokens = view.read(line["sample"])
    turns = sum(now > before for before, now in pairwise([0, *tokens.loss_mask]))
    return Checked(1, turns, list(sample_faults(tokens)), [])


class TokenMeans:
    """The mean log-prob of each token in a file: some are always likely, some never. So log-probs that belong to the
    tokens before or after fit those better than their own."""

    def __init__(self, rollouts: Iterable[list[ModelCall]] = ()) -> None:
        self._sums: Counter[int] = Counter()
        self._counts: Counter[int] = Counter()
        self._known: set[int] = set()
        for calls in rollouts:
            self._known.add(id(calls))
            for call in calls:
                for token, value in zip(call.sampled_ids, call.log_probs, strict=True):
                    self._sums[token] += value  # type: ignore[assignment]
                    self._counts[token] += 1

    def shift(self, calls: list[ModelCall]) -> int | None:
        """By how many tokens the log-probs of a rollout are shifted; None if there is too little to tell."""
        own = TokenMeans([calls]) if id(calls) in self._known else TokenMeans()
        errors = dict.fromkeys((0, -1, 1), 0.0)
        compared = 0
        for call in calls:
            means = [self._mean(token, own) for token in call.sampled_ids]
            for at in range(1, len(means) - 1):
                around = {shift: means[at + shift] for shift in errors}
                if None not in around.values():
                    compared += 1
                    for shift, mean in around.items():
                        errors[shift] += (call.log_probs[at] - mean) ** 2  # type: ignore[operator]
        if compared < MIN_COMPARED:
            return None
        best = min(errors, key=lambda shift: errors[shift])
        return best if errors[best] < MAX_SHIFT_RATIO * errors[0] else 0

    def _mean(self, token: int, own: "TokenMeans") -> float | None:
        count = self._counts[token] - own._counts[token]
        return (self._sums[token] - own._sums[token]) / count if count >= MIN_SEEN else None


class RolloutChecker:
    """Checks rollouts, and remembers what others are compared with."""

    def __init__(
        self, end_tokens: frozenset[int], tokenizer: Tokenizer | None, means: TokenMeans | None = None
    ) -> None:
        self._ends, self._tokenizer, self._means = end_tokens, tokenizer, means or TokenMeans()
        self._measured = 0
        self._first: dict[tuple[bytes, int, PolicyVersion], tuple[float, str]] = {}
        """The log-prob of the first token that was sampled after a prompt, and whose it is."""
        self._compared = self._with_usage = 0

    def check(self, policies: list[_Policy], place: str) -> Checked:
        segments = turns = 0
        faults: list[str] = []
        breaks: list[str] = []
        for policy in policies:
            if policy.trace is None:
                faults.append(policy.prefix + policy.error)
                continue
            segments += len(policy.trace.segments)
            turns += policy.trace.num_calls
            faults += [policy.prefix + fault for fault in self._faults(policy.trace, policy.response, place)]
            breaks += [f"{policy.prefix}{each}" for each in policy.trace.breaks]
        return Checked(segments, turns, faults, breaks)

    def not_run(self, *, has_text: bool) -> list[str]:
        """The checks that no rollout could be put to, each with the reason."""
        needs = {
            "end tokens: no token ends 9 of 10 turns": has_text and not self._ends,
            "shifted log-probs: too few tokens occur in several rollouts": not self._measured,
            "log-probs of equal prompts: no two rollouts begin with the same tokens": not self._compared,
            "usage: no record has it": has_text and not self._with_usage,
            "text and vocabulary: needs +tokenizer=<folder or tokenizer.json>": has_text and self._tokenizer is None,
            "vocabulary: needs +tokenizer=<folder or tokenizer.json>": not has_text and self._tokenizer is None,
            "text, usage, turns without tokens, end tokens: a file of tokens has no replies": not has_text,
        }
        return [text for text, is_missing in needs.items() if is_missing]

    def _faults(self, trace: TokenTrace, response: JsonObject, place: str) -> Iterator[str]:
        calls = trace.calls
        yield from view_faults(trace)
        yield from _missing_turns(response, calls)
        yield from _zero_faults(calls)
        yield from _version_faults(calls)
        yield from self._usage_faults(response, calls)
        yield from self._end_faults(trace, response)
        yield from self._first_token_faults(calls, place)
        shift = self._means.shift(calls)
        self._measured += shift is not None
        if shift:
            yield f"log-probs fit the tokens {'after' if shift > 0 else 'before'} their own better: they are shifted"
        if self._tokenizer is not None:
            yield from _text_faults(self._tokenizer, response, calls)

    def _end_faults(self, trace: TokenTrace, response: JsonObject) -> Iterator[str]:
        """Turns that go on after the end token, or lack it although they were not cut off."""
        if not self._ends:
            return
        numbers = {id(call): number for number, call in enumerate(trace.calls, 1)}
        after = {id(call): following for segment in trace.segments for call, following in pairwise(segment.calls)}
        output = response.get("output") or []
        for call in trace.calls:
            sampled, number = [*call.sampled_ids], numbers[id(call)]
            at = next((at for at, token in enumerate(sampled[:-1]) if token in self._ends), None)
            if at is not None:
                yield f"turn {number}: sampled token {at} is an end token, but {len(sampled) - at - 1} more follow it"
            elif (
                sampled
                and sampled[-1] not in self._ends
                and not _may_be_cut(call, calls=trace.calls, response=response, output=output)
            ):
                following = after.get(id(call))
                added = following is not None and following.prompt_ids[call.length : call.length + 1]
                if following is None or (added and added[0] in self._ends):
                    yield f"turn {number}: its end token is missing"

    def _usage_faults(self, response: JsonObject, calls: list[ModelCall]) -> Iterator[str]:
        usage = response.get("usage")
        if not isinstance(usage, dict) or not calls:
            return
        self._with_usage += 1
        for name, sizes in (
            ("output_tokens", [len(call.sampled_ids) for call in calls]),
            ("input_tokens", [len(call.prompt_ids) for call in calls]),
        ):
            reported = usage.get(name)
            if isinstance(reported, int) and reported not in (sum(sizes), sizes[-1]):
                yield f"the usage has {reported} {name}, but the turns have {sum(sizes)}"

    def _first_token_faults(self, calls: list[ModelCall], place: str) -> Iterator[str]:
        if not calls or not calls[0].sampled_ids:
            return
        call = calls[0]
        version = call.version_runs[0][0] if call.version_runs else call.policy_version
        key = bytes(token_ids(call.prompt_ids)), call.sampled_ids[0], version
        known = self._first.get(key)
        if known is None:
            if len(self._first) < MAX_KNOWN:
                self._first[key] = call.log_probs[0], place
            return
        self._compared += 1
        if abs(known[0] - call.log_probs[0]) > MAX_DIFFERENCE:
            yield (
                f"turn 1: the log-prob of the first token is {call.log_probs[0]:.4g}, but {known[0]:.4g} after the "
                f"same prompt in {known[1]}; log-probs may be shifted, or of other weights"
            )


def _may_be_cut(call: ModelCall, *, calls: list[ModelCall], response: JsonObject, output: list[Any]) -> bool:
    if call is calls[-1] and is_cut_off(response):
        return True
    item = output[call.item] if call.item is not None and call.item < len(output) else {}
    return item.get("status") == "incomplete"


def _missing_turns(response: JsonObject, calls: list[ModelCall]) -> Iterator[str]:
    """What the policy did in a turn of which no item has tokens."""
    own = response.get("participant") or POLICY
    turn, is_open = 1, False
    with_tokens = {call.item for call in calls}
    for place, item in enumerate(response.get("output") or ()):
        is_own = item.get("type", "message") in _MODEL_ITEMS and item.get("role", "assistant") == "assistant"
        if place in with_tokens:
            turn, is_open = turn + 1, False
        elif is_own and item.get("produced_by", own) == own:
            is_open = True
        elif is_open:
            yield f"turn {turn}: no item of it has tokens"
            is_open = False
    if is_open and calls and not is_cut_off(response):
        yield f"turn {turn}: no item of it has tokens"


def _zero_faults(calls: list[ModelCall]) -> Iterator[str]:
    values = [value for call in calls for value in call.log_probs]
    if len(values) >= MIN_ZERO_TOKENS and not any(values):
        yield f"all {len(values)} log-probs are 0"


def _version_faults(calls: list[ModelCall]) -> Iterator[str]:
    """Versions that go back. Names with a number in them are compared by it."""
    newest: int | None = None
    for number, call in enumerate(calls, 1):
        runs = call.version_runs or [(call.policy_version, len(call.sampled_ids))]
        for version, _ in runs:
            found = _NUMBER.fullmatch(str(version)) if version is not None else None
            if found is None:
                continue
            if newest is not None and int(found[1]) < newest:
                yield f"turn {number}: policy version {version} after {newest}"
            newest = max(newest or 0, int(found[1]))


def _text_faults(tokenizer: Tokenizer, response: JsonObject, calls: list[ModelCall]) -> Iterator[str]:
    """Ids beyond the vocabulary, and items whose text is not in the tokens of their turn."""
    output, start = response.get("output") or [], 0
    for number, call in enumerate(calls, 1):
        beyond = next((token for token in chain(call.sampled_ids, call.prompt_ids) if token >= tokenizer.size), None)
        if beyond is not None:
            yield f"turn {number}: token {beyond} is beyond the vocabulary of {tokenizer.size}"
            continue
        if call.item is None:
            continue
        said = _squeezed(tokenizer.text(call.sampled_ids))
        items = [item for item in output[start : call.item + 1] if item.get("role", "assistant") == "assistant"]
        start = call.item + 1
        missing = next((text for item in items for text in _texts(item) if _squeezed(text) not in said), None)
        if missing is not None:
            yield f"turn {number}: the tokens do not say {missing[:80]!r}"


def _texts(item: JsonObject) -> Iterator[str]:
    """What the tokens of a turn must contain. Arguments may be spaced and escaped in other ways, so only names, texts
    and numbers in them count."""
    kind = item.get("type", "message")
    if kind == "message":
        yield content_text(item.get("content"))
    elif kind == "reasoning":
        yield from (part.get("text") or "" for part in chain(item.get("content") or (), item.get("summary") or ()))
    elif kind == "function_call":
        yield item.get("name", "")
        try:
            yield from _scalars(orjson.loads(item.get("arguments") or "{}"))
        except orjson.JSONDecodeError:
            yield item["arguments"]


def _scalars(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, each in value.items():
            yield name
            yield from _scalars(each)
    elif isinstance(value, list):
        for each in value:
            yield from _scalars(each)
    elif isinstance(value, str):
        yield from re.findall(r"[\w.-]+", value, re.ASCII)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield str(value)


def _squeezed(text: str) -> str:
    """Without white space, which parsers strip."""
    return "".join(text.split())


def _end_tokens(policies: Iterable[_Policy]) -> frozenset[int]:
    """The token, or two, with which nearly all turns end that were not cut off."""
    ends: Counter[int] = Counter()
    for policy in policies:
        calls = policy.trace.calls if policy.trace is not None else []
        whole = calls[:-1] if is_cut_off(policy.response) else calls
        ends.update(call.sampled_ids[-1] for call in whole if call.sampled_ids)
    common = ends.most_common(2)
    for count in (1, 2):
        if ends.total() >= MIN_TURNS and sum(number for _, number in common[:count]) >= END_SHARE * ends.total():
            return frozenset(token for token, _ in common[:count])
    return frozenset()


def view_faults(trace: TokenTrace) -> Iterator[str]:
    """Where a trainer's view of a trace differs from what the endpoint sampled."""
    for number, segment in enumerate(trace.segments, 1):
        tokens = segment.flatten()
        if 1 not in tokens.loss_mask:
            continue  # it is no sample
        sampled = [token for call in segment.calls for token in call.sampled_ids]
        for trainer, view in VIEWS.items():
            read = view.read(view.write(TrainingSample(tokens, 0.0)))
            if read.sampled_ids != sampled or read.ids != tokens.ids or read.log_probs != tokens.log_probs:
                yield f"segment {number}: the view for {trainer} does not have the tokens that were sampled"


def sample_faults(tokens: FlatTokens) -> Iterator[str]:
    """What a trainer would trip over."""
    size = len(tokens.ids)
    if not size == len(tokens.loss_mask) == len(tokens.log_probs):
        yield f"{size} tokens, but a mask of {len(tokens.loss_mask)} and {len(tokens.log_probs)} log-probs"
        return
    if not set(tokens.loss_mask) <= {0, 1}:
        yield "the loss mask has values other than 0 and 1"
    if 1 not in tokens.loss_mask:
        yield "no token is trainable"
    stray = (at for at, value in enumerate(tokens.log_probs) if value and not tokens.loss_mask[at])
    if (at := next(stray, None)) is not None:
        yield f"token {at} has a log-prob, but the policy did not sample it"


def _decoded(line: bytes, restored: Callable[[JsonObject], JsonObject] | None) -> Any:
    """The record in a line, None if it is blank, or the error if it is not JSON or its tokens are lost."""
    if not line.strip():
        return None
    try:
        record = read_record(line)
        if not isinstance(record, dict):
            raise TypeError(f"{record!r:.100} is not a JSON object")
        return record if restored is None else restored(record)
    except (ValueError, TypeError) as error:
        return error


def _policies(record: Any) -> list[_Policy]:
    """The policies of a rollout; none if it is no rollout."""
    try:
        parts = policy_records(record)
        return [_policy(f"{name}, " if len(parts) > 1 else "", part) for name, part in parts.items()]
    except MALFORMED:
        return []


def _policy(prefix: str, part: Mapping[str, Any]) -> _Policy:
    try:
        return _Policy(prefix, part["response"], trace_of(part))
    except TokenTraceError as error:
        return _Policy(prefix, part["response"], None, str(error))


def _named(record: Any) -> str:
    if not isinstance(record, dict):
        return ""
    marks = [f"{key} {record[key]}" for key in (TASK_INDEX_FIELD, REPEAT_INDEX_KEY_NAME) if key in record]
    return f" ({', '.join(marks)})" if marks else ""
