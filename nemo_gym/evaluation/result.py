"""The result of an evaluation: statistics, rollouts, failures, a DataFrame, and HTML for notebooks."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nemo_gym.common.statistics import PASS_THRESHOLD, pass_at_k
from nemo_gym.common.words import count_of, shorten
from nemo_gym.errors import Cause, ConfigError, MissingExtraError
from nemo_gym.evaluation.html import TableRow, conversation_html, result_html
from nemo_gym.llm_api.base import JsonObject, content_text
from nemo_gym.rollouts.metrics import FailureMessages, RunningMetrics
from nemo_gym.rollouts.store import read_rollouts
from nemo_gym.rollouts.types import METADATA_FIELDS, Outcome, is_cut_off, rollout_key

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]

NOT_COLUMNS = METADATA_FIELDS | {"responses_create_params", "response", "agent_ref", "_ng_task_index"}
MAX_SHOWN_MESSAGES = 3


class Turn(NamedTuple):
    """A line of a conversation."""

    who: str
    """`user`, `system`, `model`, `tool call`, `tool` or `reasoning`."""
    text: str


def conversation(record: Mapping[str, Any]) -> Iterator[Turn]:
    """The conversation of a record: what its row gave, then everything since."""
    given = record.get("responses_create_params", {}).get("input") or []
    said = record.get("response", {}).get("output") or []
    yield from (Turn("user", given),) if isinstance(given, str) else map(_turn, given)
    yield from map(_turn, said)


def _turn(item: Mapping[str, Any]) -> Turn:
    match item.get("type") or "message":
        case "function_call":
            return Turn("tool call", f"{item.get('name')}({item.get('arguments')})")
        case "function_call_output":
            return Turn("tool", content_text(item.get("output")))
        case "reasoning":
            return Turn("reasoning", "\n".join(str(each.get("text", "")) for each in item.get("summary") or ()))
        case "message":
            role = str(item.get("role"))
            return Turn("model" if role == "assistant" else role, content_text(item.get("content")))
        case other:
            return Turn(str(other), str(dict(item)))


class Rollout(Mapping[str, Any]):
    """A scored rollout: a mapping of its record's fields, such as `rollout["word"]`."""

    def __init__(self, record: JsonObject) -> None:
        self.record = record
        """The whole record, as it is in the output."""

    def __getitem__(self, name: str) -> Any:
        return self.record[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.record)

    def __len__(self) -> int:
        return len(self.record)

    @property
    def reward(self) -> float:
        return float(self.record["reward"])

    @property
    def task(self) -> int:
        """The index of its row."""
        return rollout_key(self.record)[0]

    @property
    def repeat(self) -> int:
        """Index of the rollout among those of its row."""
        return rollout_key(self.record)[1]

    @property
    def conversation(self) -> list[Turn]:
        return list(conversation(self.record))

    @property
    def prompt(self) -> str:
        """The last message of the user in the row."""
        given = self.record.get("responses_create_params", {}).get("input") or ""
        turns = [given] if isinstance(given, str) else [turn.text for turn in map(_turn, given) if turn.who == "user"]
        return turns[-1] if turns else ""

    @property
    def answer(self) -> str:
        """The last text of the model; empty if it said nothing."""
        said = [_turn(item) for item in self.record.get("response", {}).get("output") or ()]
        return next((turn.text for turn in reversed(said) if turn.who == "model"), "")

    @property
    def is_cut_off(self) -> bool:
        """True if a token or step limit ended it."""
        return is_cut_off(self.record.get("response"))

    def columns(self) -> JsonObject:
        """The row of the rollout in a DataFrame."""
        fields = {name: value for name, value in self.record.items() if name not in NOT_COLUMNS}
        fields = {name: value for name, value in fields.items() if not name.startswith("_ng_")}
        usage = self.record.get("response", {}).get("usage") or {}
        ends = {"answer": self.answer, "seconds": self.record.get("_seconds"), "tokens": usage.get("total_tokens")}
        start = {"task": self.task, "repeat": self.repeat, "reward": self.reward, "prompt": self.prompt}
        return {**start, **{name: value for name, value in fields.items() if name not in start}, **ends}

    def __repr__(self) -> str:
        return f"Rollout(task={self.task}, repeat={self.repeat}, reward={self.reward:g}, answer={self.answer!r:.60})"

    def __str__(self) -> str:
        lines = [f"{turn.who:>9}  {turn.text}" for turn in self.conversation]
        return "\n".join([*lines, f"{'reward':>9}  {self.reward:g}"])

    def _repr_html_(self) -> str:
        return conversation_html(self.conversation, self.reward)


@dataclass(frozen=True)
class Failure:
    """A rollout without a result."""

    task: int
    repeat: int
    cause: Cause
    message: str
    code: str | None
    attempts: int

    @classmethod
    def of(cls, outcome: Outcome) -> "Failure":
        error, row = outcome.error, outcome.row
        if error is None:
            raise AssertionError("the rollout has a result")
        return cls(row.task_index, row.repeat_index, error.cause, str(error), error.code, row.attempt)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The result of an evaluation."""

    name: str
    """Name of the environment."""
    metrics: RunningMetrics = field(repr=False)
    failures: list[Failure] = field(repr=False)
    """The rollouts without a result, of this call."""
    messages: FailureMessages = field(repr=False)
    output: Path
    """The file of the scored rollouts."""
    folder: Any = field(default=None, repr=False)
    """Keeps a temporary output until the evaluation is gone."""

    @cached_property
    def summary(self) -> JsonObject:
        """All metrics, as `ng_collect_rollouts` writes them."""
        return self.metrics.summary()

    @property
    def mean(self) -> float | None:
        """The mean reward. None if no rollout was scored."""
        mean: float | None = self._reward("mean")
        return mean

    @property
    def standard_error(self) -> float | None:
        error: float | None = self._reward("standard_error")
        return error

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % confidence interval of the mean. None if it is unknown."""
        found = self._reward("interval_95")
        return None if found is None else (found[0], found[1])

    def _reward(self, name: str) -> Any:
        return (self.summary["reward"] or {}).get(name)

    def pass_at(self, k: int) -> float:
        """The chance that at least one of `k` rollouts of a row passes."""
        known = self.summary.get(f"pass@{k}")
        if known is not None:
            return float(known["mean"])
        passed = defaultdict[int, list[bool]](list)
        for rollout in self.rollouts:
            passed[rollout.task].append(rollout.reward >= PASS_THRESHOLD)
        chances = [pass_at_k(len(each), sum(each), k) for each in passed.values() if k and len(each) >= k]
        if not chances:
            most = max(map(len, passed.values()), default=0)
            raise ConfigError(f"pass_at({k}) needs {k} scored rollouts of a row; there are {most}. Pass repeats={k}.")
        return sum(chances) / len(chances)

    @cached_property
    def rollouts(self) -> Sequence[Rollout]:
        """The scored rollouts by row and repeat, read from the output at first use."""
        found = [Rollout(line.record) for line in read_rollouts(self.output)] if self.output.exists() else []
        return sorted(found, key=lambda rollout: (rollout.task, rollout.repeat))

    def to_pandas(self) -> "pandas.DataFrame":
        """A DataFrame with a row for each scored rollout."""
        try:
            import pandas
        except ImportError as error:
            raise MissingExtraError("A DataFrame", "pandas") from error
        return pandas.DataFrame([rollout.columns() for rollout in self.rollouts])

    def __len__(self) -> int:
        return self.metrics.scored

    def __bool__(self) -> bool:
        return True

    def __str__(self) -> str:
        return "\n".join([f"{self.name}: {self.metrics.table()}", *self._failure_lines()])

    def __repr__(self) -> str:
        mean = "None" if self.mean is None else f"{self.mean:.4g}"
        return (
            f"<Evaluation of {self.name}: mean {mean}, {count_of(len(self), 'rollout')}, {len(self.failures)} failed>"
        )

    def _failure_lines(self) -> list[str]:
        return [f"  {count}× {shorten(text, 300)}" for text, count in self.messages.most_common(MAX_SHOWN_MESSAGES)]

    def _repr_html_(self) -> str:
        rows = (
            TableRow(each.task, each.reward, each.prompt, each.answer, each.conversation) for each in self.rollouts
        )
        return result_html(repr(self).strip("<>"), rows, len(self.rollouts), self._failure_lines())
