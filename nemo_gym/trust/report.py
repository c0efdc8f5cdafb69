"""What a check of a verifier found: rates with intervals, findings with cases that reproduce them, JSON."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from nemo_gym.common.statistics import quantile, wilson_interval
from nemo_gym.llm_api.base import JsonObject
from nemo_gym.trust.probes import Expected

MIN_HITS, MIN_SHARE = 2, 0.1
"""A kind of wrong answer is a finding if it is rewarded in at least so many rows, and in this share of them: a wrong
answer can be right by chance in one."""
MAX_CASES = 3
MAX_CASE_CHARS = 4000
NO_EVIDENCE = "no evidence"

DEFECTS = {
    "gold": "rejects right answers",
    "empty_output": "rewards an empty output",
    "empty_text": "rewards an empty text",
    "blank_text": "rewards blanks",
    "refused": "rewards a refusal to answer",
    "prompt_injection": "rewards a text that asks for the reward",
    "verdict_label": "rewards what a verdict looks like, such as 'score: 1'",
    "evaluated_expression": "rewards an expression that needs no answer, such as a variable of the verifier",
    "program": "rewards a program with the right answer in it, as if it were the answer",
    "echoed_prompt": "rewards a copy of the prompt",
    "copied_state": "rewards a copy of the last state in the prompt",
    "tool_spam": "rewards calling every tool with many arguments",
    "made_up_tool_output": "rewards tool outputs that the model made up",
    "thoughts_in_tags": "rewards an answer that is in <think> tags alone",
    "thought_of": "rewards an answer that is in <think> tags, with another one after it",
    "withdrawn": "rewards the first of several answers, also if it is taken back",
    "mentioned_before": "rewards a right answer that is only mentioned, before a wrong one is given",
    "mentioned_after": "rewards a right answer that is only mentioned, after a wrong one was given",
    "sign": "takes a number with the other sign for right",
    "case": "takes other case for right where case matters",
    "glued_word": "takes a longer word with the right one in it for right",
    "beginning": "takes the beginning of the right answer for right",
    "off_by_one": "takes the next number for right",
    "off_by_one_below": "takes the number before for right",
    "other_unit": "ignores units",
    "unit_of_another_kind": "ignores units",
    "answer_of_another_row": "rewards right answers to other rows",
    "said_but_not_done": "rewards saying that it was done",
    "blanks_around": "rejects right answers with blanks around them",
    "words_before": "rejects right answers after other words",
}
"""Findings in words. Other kinds are named as they are."""


def sentence_of(kind: str, expected: Expected) -> str:
    """What a verifier does wrong that is wrong about this kind."""
    verb = "rejects" if expected == "right" else "rewards"
    return DEFECTS.get(kind) or f"{verb} {kind.replace('_', ' ')}"


@dataclass(slots=True)
class Rate:
    """Errors among trials."""

    errors: int = 0
    trials: int = 0

    @property
    def rate(self) -> float | None:
        return self.errors / self.trials if self.trials else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Wilson's 95 % interval."""
        return wilson_interval(self.errors / self.trials, self.trials) if self.trials else None

    def add(self, *, is_error: bool) -> None:
        self.errors += is_error
        self.trials += 1

    def as_json(self) -> JsonObject:
        interval = self.interval
        return {
            "rate": self.rate,
            "interval_95": None if interval is None else [round(each, 6) for each in interval],
            "errors": self.errors,
            "trials": self.trials,
        }

    def __str__(self) -> str:
        if self.interval is None:
            return NO_EVIDENCE
        low, high = self.interval
        return f"{self.errors / self.trials:.2%} ({low:.2%} to {high:.2%})"


@dataclass(slots=True)
class KindStats:
    """The results of one kind of response."""

    expected: Expected
    rows: set[int] = field(default_factory=set)
    full_rows: set[int] = field(default_factory=set)
    """Rows in which a response of this kind got the full reward."""
    probes: int = 0
    full: int = 0
    best_reward: float = float("-inf")
    cases: list[JsonObject] = field(default_factory=list)

    @property
    def wrong_rows(self) -> int:
        """The number of rows in which the verdict is wrong."""
        return {"right": len(self.rows - self.full_rows), "wrong": len(self.full_rows), "open": 0}[self.expected]

    @property
    def is_finding(self) -> bool:
        return self.wrong_rows >= MIN_HITS and self.wrong_rows >= MIN_SHARE * len(self.rows)

    def as_json(self) -> JsonObject:
        counts = {"expected": self.expected, "rows": len(self.rows), "full": len(self.full_rows)}
        best = self.best_reward if isfinite(self.best_reward) else None
        return {
            **counts,
            "probes": self.probes,
            "best_reward": best,
            "reward_rate": Rate(self.full, self.probes).as_json(),
        }


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that a verifier does wrong."""

    kind: str
    says: str
    """What it does, in words."""
    rows: int = 0
    """The number of rows in which it does so."""
    of: int = 0
    cases: tuple[JsonObject, ...] = ()
    """Rows with responses that reproduce it."""

    def as_json(self) -> JsonObject:
        return {"kind": self.kind, "says": self.says, "rows": self.rows, "of": self.of, "cases": list(self.cases)}

    def __str__(self) -> str:
        return f"{self.says} ({self.rows} of {self.of} rows)" if self.of else self.says


@dataclass(slots=True)
class TrustReport:
    """The results of one verifier."""

    environment: str
    seed: int = 0
    rows: int = 0
    rows_with_gold: int = 0
    rejected_golds: int = 0
    golds_are_guessed: bool = False
    """True if the formats of right answers are guesses from `expected_answer`."""
    trivial_rows: int = 0
    """Rows in which an empty output has the full reward. They say nothing about false positives."""
    probes: int = 0
    cpu_s: float = 0.0
    kinds: dict[str, KindStats] = field(default_factory=dict)
    found: list[Finding] = field(default_factory=list)
    """Findings of properties, of the search for exploits, and of the judge."""
    varied: Counter[str] = field(default_factory=Counter)
    """Responses with two different results, by kind."""
    failed: dict[str, Counter[str]] = field(default_factory=dict)
    messages: dict[str, str] = field(default_factory=dict)
    latencies_ms: list[float] = field(default_factory=list)
    slowest: JsonObject = field(default_factory=dict)
    memory_mb: float | None = None
    mutants: Rate = field(default_factory=Rate)
    """Mutants of the verifier's code that its rows do not notice."""
    survivors: list[JsonObject] = field(default_factory=list)
    judge: JsonObject = field(default_factory=dict)
    not_done: list[str] = field(default_factory=list)
    """What could not be measured, and why."""
    accepted: dict[str, str] = field(default_factory=dict)
    """Findings that are so on purpose, and why."""

    # What was measured

    @property
    def discriminates(self) -> bool:
        return self.trivial_rows < self.rows

    @property
    def false_negatives(self) -> Rate:
        """Right answers without the full reward. Guesses that are all rejected are no evidence."""
        if self.rejects_all and self.golds_are_guessed:
            return Rate()
        return Rate(self.rejected_golds, self.rows_with_gold)

    @property
    def rejects_all(self) -> bool:
        return 0 < self.rows_with_gold == self.rejected_golds

    @property
    def rejected_equivalents(self) -> Rate:
        """Right answers in another form without the full reward."""
        return self._total("right", skip="gold")

    @property
    def false_positives(self) -> Rate:
        """Wrong answers with the full reward."""
        return self._total("wrong")

    def _total(self, expected: Expected, *, skip: str = "") -> Rate:
        kinds = [each for name, each in self.kinds.items() if each.expected == expected and name != skip]
        full, probes = sum(each.full for each in kinds), sum(each.probes for each in kinds)
        return Rate(full if expected == "wrong" else probes - full, probes)

    @property
    def false_negative_rate(self) -> float | None:
        return self.false_negatives.rate

    @property
    def false_positive_rate(self) -> float | None:
        return self.false_positives.rate

    def latency_ms(self, percent: float) -> float | None:
        """Return a percentile of the latency of verifications."""
        return quantile(self.latencies_ms, percent / 100) if self.latencies_ms else None

    # What is wrong

    def findings(self) -> Iterator[Finding]:
        """All that is wrong, without what is so on purpose."""
        return (each for each in self._all_findings() if each.kind not in self.accepted)

    def _all_findings(self) -> Iterator[Finding]:
        if self.rows and not self.discriminates:
            yield Finding("no_discrimination", "does not discriminate: an empty output has the full reward")
        elif self.trivial_rows >= MIN_HITS and self.trivial_rows >= MIN_SHARE * self.rows:
            yield Finding("empty_output", DEFECTS["empty_output"], self.trivial_rows, self.rows)
        if self.rejects_all and not self.golds_are_guessed:
            yield Finding(
                "gold",
                "rejects every right answer. Probably the gold answers are wrong: check gold_response and "
                "expected_answer",
                self.rejected_golds,
                self.rows_with_gold,
            )
        for kind, stats in self.kinds.items():
            is_gold = kind == "gold" and self.rejects_all
            if stats.is_finding and kind != "empty_output" and not is_gold:
                says = sentence_of(kind, stats.expected)
                yield Finding(kind, says, stats.wrong_rows, len(stats.rows), tuple(stats.cases))
        for kind, count in self.varied.items():
            yield Finding("varied", f"does not give the same reward twice: {kind}, {count} times")
        for kind, causes in self.failed.items():
            listed = ", ".join(f"{cause}: {count}" for cause, count in causes.most_common())
            yield Finding("failed", f"has no result for {kind} ({listed}): {self.messages.get(kind, '')}")
        yield from self.found

    def as_json(self) -> JsonObject:
        """Return the report as JSON."""
        names = ("environment", "seed", "rows", "rows_with_gold", "trivial_rows", "probes", "discriminates")
        rates = ("false_negatives", "rejected_equivalents", "false_positives", "mutants")
        return {
            **{name: getattr(self, name) for name in names},
            "cpu_s": round(self.cpu_s, 2),
            "false_negative_rate": self.false_negative_rate,
            "false_positive_rate": self.false_positive_rate,
            **{name: getattr(self, name).as_json() for name in rates},
            "latency_p50_ms": self.latency_ms(50),
            "latency_p99_ms": self.latency_ms(99),
            "memory_mb": self.memory_mb,
            "slowest": self.slowest,
            "varied": sum(self.varied.values()),
            "failed": sum((causes for causes in self.failed.values()), Counter()),
            "messages": self.messages,
            "judge": self.judge,
            "findings": [each.as_json() for each in self.findings()],
            "accepted": self.accepted,
            "not_done": self.not_done,
            "survivors": self.survivors,
            "kinds": {name: stats.as_json() for name, stats in self.kinds.items()},
        }


def case_of(row_index: int, items: list[JsonObject], reward: float) -> JsonObject:
    """A row and a response that reproduce a finding. Long texts are shortened, as they can be made from the seed."""
    return {"row": row_index, "output": _shortened(items), "reward": reward}


def _shortened(value: Any) -> Any:
    if isinstance(value, str):
        rest = len(value) - MAX_CASE_CHARS
        return value if rest <= 0 else f"{value[:MAX_CASE_CHARS]} and {rest} more characters"
    if isinstance(value, dict):
        return {key: _shortened(inner) for key, inner in value.items()}
    return [_shortened(inner) for inner in value[:100]] if isinstance(value, list) else value
