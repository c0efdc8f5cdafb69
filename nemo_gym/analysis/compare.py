"""Compare two files of rollouts task by task: the paired difference of the rewards, and which tasks flipped."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

from pydantic import Field, field_validator

from nemo_gym.analysis.dataset_rows import prompt_digest
from nemo_gym.analysis.profile import Panel, draw_panels, plots_of
from nemo_gym.common.atomic_files import atomic_write, check_writable
from nemo_gym.common.paths import find
from nemo_gym.common.statistics import PASS_THRESHOLD, PairedDifference
from nemo_gym.common.words import shorten
from nemo_gym.config.types import CommandConfig
from nemo_gym.rollouts.store import StoredRolloutsError, failures_path, read_records, read_rollouts
from nemo_gym.rollouts.types import ROW_HASH_KEY_NAME, is_masked, task_index_of

Key = str | int | bytes


class CompareConfig(CommandConfig):
    """Compare two runs on the same tasks: the paired difference of the mean rewards with a 95 % interval, the tasks
    that flipped between pass and fail, and the failures of each run.

    A task is the same in both files if its row is: by the hash of the row or, without it, by its prompt.

    Examples:

    ```bash
    ng compare results/mcqa/before.jsonl results/mcqa/after.jsonl
    ```
    """

    POSITIONAL: ClassVar[tuple[str, ...]] = ("before", "after")

    before: str
    """Rollouts of the first run."""

    after: str
    """Rollouts of the second run."""

    pass_threshold: float = PASS_THRESHOLD
    """Minimum reward that counts as a pass. A task passes if at least half of its rollouts do."""

    max_flips: int = Field(default=10, ge=0)
    """Number of flipped tasks to list for each direction."""

    plots_fpath: str | None = None
    """Plot the rewards, pass@k, reward against length and time by stage of both runs into this SVG file."""

    @field_validator("plots_fpath")
    @classmethod
    def _is_svg(cls, path: str | None) -> str | None:
        if path is not None and not path.endswith(".svg"):
            raise ValueError("Plots are SVG files, which browsers show and print: choose a name that ends in .svg")
        return path


@dataclass(slots=True)
class Task:
    """The rollouts of one row in one file."""

    index: Any
    prompt: str
    rewards: list[float] = field(default_factory=list)

    @property
    def mean(self) -> float:
        return fmean(self.rewards)

    def passes(self, threshold: float) -> bool:
        return 2 * sum(reward >= threshold for reward in self.rewards) >= len(self.rewards)


@dataclass(frozen=True, slots=True)
class Flip:
    """A task that passes in one run and fails in the other."""

    task_index: Any
    before: float
    after: float
    prompt: str


@dataclass(slots=True)
class Comparison:
    """The tasks that two runs have in common, and how their rewards differ."""

    tasks: int
    only_before: int
    only_after: int
    rewards: PairedDifference
    """Difference of the mean reward of each task."""
    gained: list[Flip]
    """Tasks that pass only in the second run."""
    lost: list[Flip]
    failed_before: int
    failed_after: int

    def as_json(self) -> dict[str, Any]:
        """Return the comparison as JSON."""
        rewards, interval = self.rewards, self.rewards.difference.interval_95
        return {
            "tasks": self.tasks,
            "only_before": self.only_before,
            "only_after": self.only_after,
            "mean_before": rewards.mean_before,
            "mean_after": rewards.mean_after,
            "difference": rewards.difference.mean,
            "interval_95": None if interval is None else list(interval),
            "sign_test": rewards.sign_test,
            "tasks_up": rewards.up,
            "tasks_down": rewards.down,
            "gained": [asdict(flip) for flip in self.gained],
            "lost": [asdict(flip) for flip in self.lost],
            "failed_before": self.failed_before,
            "failed_after": self.failed_after,
        }


def compare_rollouts(config: CompareConfig) -> Comparison:
    """Compare two files of rollouts."""
    paths = [find(path, what="file of rollouts") for path in (config.before, config.after)]
    before, after = (read_tasks(path) for path in paths)
    common = [key for key in before if key in after]
    if not common:
        raise StoredRolloutsError(f"{paths[0]} and {paths[1]} have no task in common, so they cannot be compared.")
    pairs = [(before[key], after[key]) for key in common]
    return Comparison(
        tasks=len(common),
        only_before=len(before) - len(common),
        only_after=len(after) - len(common),
        rewards=PairedDifference.of([(one.mean, other.mean) for one, other in pairs]),
        gained=list(_flips(pairs, config.pass_threshold, to_pass=True)),
        lost=list(_flips(pairs, config.pass_threshold, to_pass=False)),
        failed_before=count_failures(paths[0]),
        failed_after=count_failures(paths[1]),
    )


def draw_comparison(config: CompareConfig, output: Path) -> None:
    """Write the plots of both runs as an SVG file: the first run on the left, the second on the right."""
    labels = ((config.before, " before"), (config.after, " after"))
    paths = [find(path, what="file of rollouts") for path, _ in labels]
    check_writable(output, overwrite=True, sources=tuple(paths))
    plots = [
        plots_of(path, pass_threshold=config.pass_threshold, label=label)
        for path, (_, label) in zip(paths, labels, strict=True)
    ]
    rows = zip_longest(*plots, fillvalue=Panel("", []))
    with atomic_write(output) as file:
        file.write(draw_panels([panel for row in rows for panel in row]).encode())


def read_tasks(path: Path) -> dict[Key, Task]:
    """Return the tasks of a file with the rewards of their rollouts, in the order of the file."""
    tasks: dict[Key, Task] = {}
    for stored in read_rollouts(path):
        record, reward = stored.record, stored.record.get("reward")
        if isinstance(reward, int | float) and not is_masked(record):
            key = record.get(ROW_HASH_KEY_NAME) or prompt_digest(record) or task_index_of(record)
            task = tasks.setdefault(key, Task(task_index_of(record), prompt_of(record)))
            task.rewards.append(float(reward))
    if not tasks:
        raise StoredRolloutsError(f"{path} has no scored rollout.")
    return tasks


def count_failures(path: Path) -> int:
    """Count the rollouts of a run that ended without a result and are not in its output either."""
    failed, scored = failures_path(path), set()
    if not failed.is_file():
        return 0
    for stored in read_records(path):
        scored.add(_rollout(stored.record))
    return len({_rollout(one.record) for one in read_records(failed) if one.record.get("is_final")} - scored)


def prompt_of(record: Mapping[str, Any]) -> str:
    """Return the last text of the prompt, on one line."""
    params = record.get("responses_create_params")
    asked = params.get("input") if isinstance(params, dict) else None
    last = asked[-1] if isinstance(asked, list) and asked else asked
    content = last.get("content") if isinstance(last, dict) else last
    if isinstance(content, list):
        content = " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return shorten(" ".join(str(content or "").split()), 200)


def _rollout(record: Mapping[str, Any]) -> tuple[Any, Any]:
    return task_index_of(record), record.get("_repeat_index")


def _flips(pairs: list[tuple[Task, Task]], threshold: float, *, to_pass: bool) -> Iterator[Flip]:
    for one, other in pairs:
        if one.passes(threshold) is not to_pass and other.passes(threshold) is to_pass:
            yield Flip(one.index, one.mean, other.mean, one.prompt)
