"""Rows with their right answers, as a check uses them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nemo_gym.analysis.gold import Gold
from nemo_gym.llm_api.base import JsonObject
from nemo_gym.trust.answers import Answer, answer_of
from nemo_gym.trust.scoring import Scorer
from nemo_gym.trust.wrong_answers import Rows


@dataclass(slots=True)
class CheckedRow:
    """A row, and the form of its right answer that scores best."""

    index: int
    row: JsonObject
    golds: list[Gold]
    gold: Gold | None = None
    answer: Answer | None = None
    is_trivial: bool = False
    """True if an empty output has the full reward."""
    gold_is_full: bool = False

    async def choose_gold(self, scorer: Scorer) -> None:
        """Choose the form of the right answer that scores best."""
        if not self.golds:
            return
        rewards = [
            (await scorer.score(self.row, gold.items, kind="gold", expected="right")).reward for gold in self.golds
        ]
        self.gold = self.golds[rewards.index(max(rewards))]
        self.gold_is_full = max(rewards) >= scorer.full_reward
        self.answer = answer_of(self.row, self.gold)


@dataclass(frozen=True, slots=True)
class Checked:
    """An environment to check."""

    name: str
    rows: Sequence[JsonObject]
    golds_of: Callable[[JsonObject], list[Gold]]


def others_of(row: CheckedRow, rows: Sequence[CheckedRow]) -> Rows:
    """What is known of the other rows."""
    if row.answer is None:
        return Rows([], case_matters=False)
    key, found = row.answer.key, []
    for other in rows:
        if other.answer is not None and other.gold_is_full and other.answer.key != key:
            found.append(other.answer)
    start = row.index % max(1, len(found))
    values = {each.answer.value for each in rows if each.answer is not None and each.answer.has_value}
    return Rows(found[start:] + found[:start], case_matters=len({each.lower() for each in values}) < len(values))
