"""Check the tokens of stored rollouts: each turn's prompt begins with all that came before it, and every trainer view
gives back exactly the tokens that the endpoint sampled.

A trainer concatenates the turns of a segment; where a prompt was tokenized again, it would train on tokens nobody
generated.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Any, NamedTuple

import orjson

from nemo_gym.config.keys import TASK_INDEX_FIELD
from nemo_gym.participants import POLICY
from nemo_gym.rollouts.types import REPEAT_INDEX_KEY_NAME
from nemo_gym.training.samples import VIEWS, TrainerView, TrainingSample
from nemo_gym.training.token_traces import FlatTokens, TokenTrace, TokenTraceError, trace_of


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

    def add(self, place: str, found: Checked) -> None:
        self.segments += found.segments
        self.turns += found.turns
        self.faults += [f"{place}, {fault}" for fault in found.faults]
        self.breaks += [f"{place}, {each}" for each in found.breaks]


def check_tokens(lines: Iterable[bytes], *, trainer: str | None = None) -> TokenReport:
    """Check every rollout of a file, given line by line, or every sample if it was exported for a trainer."""
    report = TokenReport()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        report.rollouts += 1
        try:
            record = orjson.loads(line)
            found = check_rollout(record) if trainer is None else check_sample(record, VIEWS[trainer])
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError, ValueError) as error:
            report.faults.append(f"line {number}: no rollout with tokens in it ({error!r})")
            continue
        report.add(f"line {number}{_named(record)}", found)
    return report


def check_rollout(record: Any) -> Checked:
    """Check a record and all views of it, for every policy in it."""
    others = (record["response"].get("participants") or {}) if "response" in record else {}
    policies = {name: side for name, side in others.items() if side["is_trainable"]}
    if not policies:
        return _check_policy(record, "")
    main = record["response"].get("participant") or POLICY
    checked = [_check_policy(side, f"{name}, ") for name, side in {main: record, **policies}.items()]
    segments, turns, faults, breaks = zip(*checked, strict=True)
    return Checked(sum(segments), sum(turns), list(chain(*faults)), list(chain(*breaks)))


def _check_policy(side: Any, prefix: str) -> Checked:
    try:
        trace = trace_of(side)
    except TokenTraceError as error:
        return Checked(0, 0, [f"{prefix}{error}"], [])
    faults = [f"{prefix}{fault}" for fault in view_faults(trace)]
    return Checked(len(trace.segments), trace.num_calls, faults, [f"{prefix}{each}" for each in trace.breaks])


def check_sample(line: Any, view: TrainerView) -> Checked:
    """Check a line that `ng_export` wrote for a trainer."""
    tokens = view.read(line["sample"])
    turns = sum(now > before for before, now in pairwise([0, *tokens.loss_mask]))
    return Checked(1, turns, list(sample_faults(tokens)), [])


def view_faults(trace: TokenTrace) -> Iterator[str]:
    """Where a trainer's view of a trace differs from what the endpoint sampled."""
    for number, segment in enumerate(trace.segments, 1):
        tokens = segment.flatten()
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


def _named(record: Any) -> str:
    if not isinstance(record, dict):
        return ""
    marks = [f"{key} {record[key]}" for key in (TASK_INDEX_FIELD, REPEAT_INDEX_KEY_NAME) if key in record]
    return f" ({', '.join(marks)})" if marks else ""
