"""Metrics and plots of stored rollouts: how hard each row of a dataset is for a model, and the files that public tools
read.

Plots are SVG: one file of panels that any browser shows, in its light or dark colors."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import orjson
from pydantic import BaseModel

from nemo_gym.analysis.dataset_rows import Dataset, RowNotFoundError
from nemo_gym.common.atomic_files import atomic_write, check_writable, read_jsonl, write_json
from nemo_gym.common.paths import find
from nemo_gym.common.statistics import PASS_THRESHOLD, Moments
from nemo_gym.config.keys import AGENT_REF_KEY_NAME, ROLLOUT_INDEX_KEY_NAME, TASK_INDEX_FIELD, TASK_INDEX_KEY_NAME
from nemo_gym.config.types import CommandConfig
from nemo_gym.errors import ConfigError
from nemo_gym.llm_api.base import JsonObject
from nemo_gym.rollouts.metrics import RunningMetrics, strip_record
from nemo_gym.rollouts.store import (
    StoredLine,
    StoredRolloutsError,
    metrics_path,
    plots_path,
    read_rollouts,
    sibling_path,
)
from nemo_gym.rollouts.types import agent_of, is_masked, results_of, rollout_key
from nemo_gym.server.aggregate_metrics import compute_aggregate_metrics

WIDTH, HEIGHT = 420, 250
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 34, 34
BINS = 20
MAX_POINTS = 2000

_STYLE = """
text { font: 11px system-ui, sans-serif; fill: #555 } .title { font-weight: 600; font-size: 13px; fill: #111 }
.frame { fill: #fff } .bar, .dot { fill: #76b900 } .line { fill: none; stroke: #76b900; stroke-width: 2 }
.point { fill: #0b62c4; opacity: .4 } .axis { stroke: #888 } .grid { stroke: #ddd }
@media (prefers-color-scheme: dark) {
.frame { fill: #14171b } text { fill: #98a3b3 } .title { fill: #e4e8ee } .grid { stroke: #323943 }
.point { fill: #7ab7ff } }
"""

Point = tuple[float, float]
Stages = dict[str, dict[str, float]]


class Panel(NamedTuple):
    """One plot: a title and the elements below it, in a box of WIDTH by HEIGHT."""

    title: str
    elements: list[str]


class Sample:
    """Points evenly spread over a stream of unknown length, in bounded memory."""

    def __init__(self, most: int = MAX_POINTS) -> None:
        self.points: list[Point] = []
        self._most, self._step, self._seen = most, 1, 0

    def add(self, x: float, y: float) -> None:
        if self._seen % self._step == 0:
            self.points.append((x, y))
            if len(self.points) == self._most:
                self.points, self._step = self.points[::2], self._step * 2
        self._seen += 1


def draw_panels(panels: Sequence[Panel], *, columns: int = 2) -> str:
    """Return the panels in a grid, as the text of an SVG file."""
    rows = -(-len(panels) // columns)
    parts = []
    for number, panel in enumerate(panels):
        x, y = number % columns * WIDTH, number // columns * HEIGHT
        title = _text(LEFT, 20, panel.title, kind="title")
        parts.append(f'<g transform="translate({x} {y})">{title}{"".join(panel.elements)}</g>')
    width, height = WIDTH * min(columns, max(1, len(panels))), HEIGHT * rows
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
    frame = f'<rect class="frame" width="{width}" height="{height}"/>'
    return f"{head}<style>{_STYLE}</style>{frame}{''.join(parts)}</svg>\n"


def histogram(title: str, values: Sequence[float]) -> Panel:
    """Plot how many values fall into each of `BINS` equal intervals."""
    low, high = min(values), max(values)
    if 0 <= low <= high <= 1:
        low, high = 0.0, 1.0
    width = (high - low) / BINS or 1.0
    counts = [0] * BINS
    for value in values:
        counts[min(BINS - 1, int((value - low) / width))] += 1
    most = max(counts)
    step = (WIDTH - LEFT - RIGHT) / BINS
    bars = []
    for number, count in enumerate(counts):
        tall = count / most * (HEIGHT - TOP - BOTTOM)
        note = f"<title>{low + number * width:.3g} to {low + (number + 1) * width:.3g}: {count}</title>"
        place = f'x="{LEFT + number * step:.1f}" y="{HEIGHT - BOTTOM - tall:.1f}"'
        bars.append(f'<rect class="bar" {place} width="{step - 1:.1f}" height="{tall:.1f}">{note}</rect>')
    return Panel(title, [*bars, *_axes((low, high), (0, most))])


def curve(title: str, points: Sequence[Point]) -> Panel:
    """Plot a curve from 0 to 1 over equally spaced labels, such as k = 1, 2, 4."""
    step = (WIDTH - LEFT - RIGHT - 20) / max(1, len(points) - 1)
    placed = [(LEFT + 10 + number * step, _up(value, 0, 1)) for number, (_, value) in enumerate(points)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
    dots = []
    for (x, y), (k, value) in zip(placed, points, strict=True):
        dots.append(
            f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="3.5"><title>{k:g}: {value:.4g}</title></circle>'
        )
        beside = y + 16 if y < TOP + 10 else y - 8  # not in the title
        dots += [_text(x, HEIGHT - 14, f"{k:g}", anchor="middle"), _text(x, beside, f"{value:.2f}", anchor="middle")]
    return Panel(title, [*_axes(None, (0, 1)), f'<polyline class="line" points="{path}"/>', *dots])


def scatter(title: str, points: Sequence[Point], *, unit: str) -> Panel:
    """Plot one dot for each point."""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    x_range, y_range = (min(xs), max(xs)), (min(0.0, *ys), max(1.0, *ys))
    across = WIDTH - LEFT - RIGHT - 8
    if x_range[0] == x_range[1]:
        x_range = (x_range[0] - 1, x_range[1] + 1)
    dots = []
    for x, y in points:
        left = LEFT + 4 + (x - x_range[0]) / (x_range[1] - x_range[0]) * across
        dots.append(f'<circle class="point" cx="{left:.1f}" cy="{_up(y, *y_range):.1f}" r="2.5"/>')
    return Panel(title, [*_axes(x_range, y_range, unit=unit), *dots])


def bars(title: str, rows: Sequence[tuple[str, float, str]]) -> Panel:
    """Plot horizontal bars, each with a name, a value and a label."""
    most = max((value for _, value, _ in rows), default=0) or 1
    elements = []
    for number, (name, value, note) in enumerate(rows):
        y, long = TOP + 14 + number * 30, value / most * (WIDTH - 250)
        elements.append(_text(84, y + 13, name, anchor="end"))
        elements.append(f'<rect class="bar" x="92" y="{y}" width="{max(1, long):.1f}" height="18"/>')
        elements.append(_text(98 + long, y + 13, note))
    return Panel(title, elements)


def _up(value: float, low: float, high: float) -> float:
    return HEIGHT - BOTTOM - (value - low) / ((high - low) or 1) * (HEIGHT - TOP - BOTTOM)


def _axes(x_range: Point | None, y_range: Point, *, unit: str = "") -> list[str]:
    base, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    found = [f'<line class="axis" x1="{LEFT}" x2="{right}" y1="{base}" y2="{base}"/>']
    for value in y_range:
        y = _up(value, *y_range)
        found.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        found.append(_text(LEFT - 6, y + 4, f"{value:.4g}", anchor="end"))
    if x_range is not None:
        found.append(_text(LEFT, HEIGHT - 14, f"{x_range[0]:.4g}"))
        found.append(_text(right, HEIGHT - 14, f"{x_range[1]:.4g} {unit}".strip(), anchor="end"))
    return found


def _text(x: float, y: float, text: str, *, kind: str = "", anchor: str = "start") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{named}>{escape(text)}</text>'


class RolloutPlots:
    """Collects rollouts one by one and plots rewards, pass@k, reward against length, and time by stage.

    The caller adds the same rollouts to `metrics`."""

    def __init__(self, metrics: RunningMetrics) -> None:
        self._metrics = metrics
        self._rewards: list[float] = []
        self._lengths = Sample()

    def add(self, record: Mapping[str, Any]) -> None:
        self._rewards.append(record["reward"])
        tokens = _output_tokens(record)
        if tokens is not None:
            self._lengths.add(tokens, record["reward"])

    def panels(self, stages: Stages, *, label: str = "") -> list[Panel]:
        """Return the plots that the records allow. `label` follows each title."""
        entries = self._metrics.summary().items()
        passes = [(float(name.removeprefix("pass@")), entry["mean"]) for name, entry in entries if "pass@" in name]
        found = [histogram(f"Rewards{label}", self._rewards), curve(f"pass@k{label}", passes)]
        if self._lengths.points:
            found.append(scatter(f"Reward against length{label}", self._lengths.points, unit="tokens"))
        if stages:
            found.append(bars(f"Time by stage{label}", [_stage_bar(name, stage) for name, stage in stages.items()]))
        return found


def plots_of(path: Path, *, pass_threshold: float, label: str) -> list[Panel]:
    """Return the plots of a file of rollouts."""
    metrics = RunningMetrics(pass_threshold=pass_threshold)
    plots = RolloutPlots(metrics)
    for stored in read_rollouts(path, warn=False):
        if isinstance(stored.record.get("reward"), int | float):
            metrics.add(stored.record)
            if not is_masked(stored.record):
                plots.add(stored.record)
    return plots.panels(stages_of(path), label=label)


def stages_of(rollouts: Path) -> Stages:
    """Return the time by stage in the metrics beside a file of rollouts, if its collection has written it."""
    try:
        found = orjson.loads(metrics_path(rollouts).read_bytes())["stages"]
        stages = {
            str(name): {key: float(stage[key]) for key in ("seconds", "requests")} for name, stage in found.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    return {name: stage for name, stage in stages.items() if name != "rollout"}


def _stage_bar(name: str, stage: Mapping[str, float]) -> tuple[str, float, str]:
    return name, stage["seconds"], f"{stage['seconds']:.3g} s, {stage['requests']:g}x"


def _output_tokens(record: Mapping[str, Any]) -> int | None:
    response = record.get("response")
    usage = response.get("usage") if isinstance(response, dict) else None
    tokens = usage.get("output_tokens") if isinstance(usage, dict) else None
    return tokens if isinstance(tokens, int) else None


SHOWN_ROWS = 5


class ProfileConfig(CommandConfig):
    """Write each row of a dataset with the metrics of its rollouts, and print the metrics of all rollouts.

    Rows without a rollout are omitted. The metrics of all rollouts are also written to `<output>_metrics.json`, and
    plots of them to `<output>_plots.svg`.
    """

    input_jsonl_fpath: str
    """The dataset that the rollouts were collected from."""

    rollouts_jsonl_fpath: str
    """The output of `ng_collect_rollouts`."""

    output_jsonl_fpath: str
    """Output file for the rows with their metrics. An existing file is overwritten."""

    pass_threshold: float | None = None
    """Minimum reward that counts as a pass. If not set, rows have no pass rate, and pass@k counts rewards of 1."""

    allow_changed_rows: bool = False
    """Leave out the rollouts of rows that were changed or removed since they were collected, instead of stopping."""


class RewardProfilingMetrics(BaseModel):
    """The metrics of one row. The pass rate is there if a threshold was given."""

    avg_reward: float
    std_reward: float
    """Population standard deviation."""
    min_reward: float
    max_reward: float
    total_samples: int
    pass_rate: float | None = None
    pass_rate_total: int | None = None
    pass_rate_passed: int | None = None
    pass_threshold: float | None = None


def profile_rewards(rewards: Sequence[float], *, pass_threshold: float | None = None) -> RewardProfilingMetrics:
    """Return the metrics of one row from the rewards of its rollouts."""
    found = Moments.of(rewards)
    metrics = RewardProfilingMetrics(
        avg_reward=found.mean,
        std_reward=found.deviation(of_population=True),
        min_reward=found.min,
        max_reward=found.max,
        total_samples=found.total,
    )
    if pass_threshold is None:
        return metrics
    passed = sum(reward >= pass_threshold for reward in rewards)
    rate = {"pass_rate": passed / len(rewards), "pass_rate_total": len(rewards), "pass_rate_passed": passed}
    return metrics.model_copy(update={**rate, "pass_threshold": pass_threshold})


class ProfiledRow(NamedTuple):
    """One row of the dataset, and the metrics of its rollouts."""

    row_index: int
    metrics: RewardProfilingMetrics


class Profiled(NamedTuple):
    """The metrics of all rollouts, and how many records and rows could not be used."""

    metrics: RunningMetrics
    metrics_path: Path
    plots_path: Path
    hardest: list[ProfiledRow]
    """The rows with the lowest mean reward."""
    most_uncertain: list[ProfiledRow]
    """The rows whose rewards differ most between repeats."""
    rows: int
    rows_without_rollouts: int
    records_without_reward: int
    records_without_row: int
    """Records whose row was changed or removed."""
    matched_by_prompt: int


def _index_of(stored: StoredLine, dataset: Dataset, config: ProfileConfig) -> int | None:
    """Return the row of a record; None if it may be left out because its row is not in the dataset."""
    try:
        return dataset.index_of(stored)
    except RowNotFoundError:
        if config.allow_changed_rows:
            return None
        raise


def profile_rollouts(config: ProfileConfig) -> Profiled:
    """Write the rows with their metrics. Raises StoredRolloutsError if no row has a scored rollout."""
    output, rollouts = Path(config.output_jsonl_fpath), find(config.rollouts_jsonl_fpath, what="file of rollouts")
    threshold = config.pass_threshold
    metrics = RunningMetrics(pass_threshold=PASS_THRESHOLD if threshold is None else threshold)
    rewards: dict[int, list[float]] = {}
    plotted = RolloutPlots(metrics)
    unrewarded = without_row = 0
    with Dataset(config.input_jsonl_fpath) as dataset:
        check_writable(output, overwrite=True, sources=(dataset.path, rollouts))
        for stored in read_rollouts(rollouts):
            index, reward = _index_of(stored, dataset, config), stored.record.get("reward")
            if index is None:
                without_row += 1
                continue
            if not isinstance(reward, int | float):
                unrewarded += 1
                continue
            metrics.add({**stored.record, TASK_INDEX_FIELD: index})
            if is_masked(stored.record):
                continue
            rewards.setdefault(index, []).append(reward)
            plotted.add(stored.record)
        if not rewards:
            raise StoredRolloutsError(
                f"{rollouts} holds no scored rollout of a row of {dataset.path}; {unrewarded} records have no reward, "
                f"{without_row} are of other rows."
            )
        rows = [
            ProfiledRow(index, profile_rewards(rewards[index], pass_threshold=threshold)) for index in sorted(rewards)
        ]
        with atomic_write(output) as file:
            for row in rows:
                profile = row.metrics.model_dump(exclude_none=True)
                file.write(orjson.dumps({**dataset.row(row.row_index), **profile}) + b"\n")
        write_json(metrics_path(output), metrics.summary())
        with atomic_write(plots_path(output)) as file:
            file.write(draw_panels(plotted.panels(stages_of(rollouts))).encode())
        return Profiled(
            metrics,
            metrics_path(output),
            plots_path(output),
            sorted(rows, key=lambda row: row.metrics.avg_reward)[:SHOWN_ROWS],
            sorted((row for row in rows if row.metrics.std_reward), key=lambda row: -row.metrics.std_reward)[
                :SHOWN_ROWS
            ],
            len(rows),
            len(dataset) - len(rows),
            unrewarded,
            without_row,
            dataset.matched_by_prompt,
        )


# The files of public tools


class RewardProfileConfig(CommandConfig):
    """Write the metrics of stored rollouts, by task to `<rollouts>_reward_profiling.jsonl` and by agent to
    `<rollouts>_agent_metrics.json`.

    `ng_profile` writes the rows of a dataset with their pass rates, and estimates with errors.
    """

    input_jsonl_fpath: str
    """The rows as they were sent: the `_materialized_inputs` file of `ng_collect_rollouts
    +materialize_inputs=true`."""

    rollouts_jsonl_fpath: str
    """The output of `ng_collect_rollouts`."""

    allow_partial_rollouts: bool = False
    """Do not stop if rows have no rollout."""


class RewardProfiler:
    """Joins rows as they were sent with their records, and writes metrics in the form that public tools read."""

    def rollout_info_from_result(self, result: JsonObject) -> JsonObject:
        """Return the metrics in a record, with its indices."""
        stripped = strip_record(results_of(result))
        indices = (TASK_INDEX_KEY_NAME, ROLLOUT_INDEX_KEY_NAME)
        return {
            name: value
            for name, value in stripped.items()
            if isinstance(value, int | float) and (name in indices or not name.startswith("_ng_"))
        }

    def align_rows_and_results(
        self, rows: Sequence[JsonObject], results: Sequence[JsonObject], allow_partial_rollouts: bool = False
    ) -> list[tuple[JsonObject, JsonObject]]:
        """Return each row with its record, in the order of the rows. Rows without one may be left out."""
        known = _by_key(results, "record")
        wanted = _by_key(rows, "materialized input row")
        missing = [key for key in wanted if key not in known]
        if missing and not allow_partial_rollouts:
            raise ValueError(f"{len(missing)} of {len(wanted)} rows have no rollout, first {missing[0]}")
        return [(row, known[key]) for key, row in wanted.items() if key in known]

    def profile_from_data(
        self, rows: Sequence[JsonObject], results: Sequence[JsonObject], allow_partial_rollouts: bool = False
    ) -> tuple[list[JsonObject], list[JsonObject]]:
        """Return the metrics of each task and of each agent."""
        pairs = self.align_rows_and_results(rows, results, allow_partial_rollouts)
        expected = Counter(rollout_key(row)[0] for row in rows)
        by_agent: dict[str, list[tuple[JsonObject, JsonObject]]] = defaultdict(list)
        for row, record in pairs:
            by_agent[agent_of(row) or agent_of(record) or ""].append((row, record))
        groups: list[JsonObject] = []
        agents: list[JsonObject] = []
        for agent, found in by_agent.items():
            samples = {rollout_key(row)[0]: row for row, _ in reversed(found)}
            metrics = compute_aggregate_metrics([strip_record(results_of(record)) for _, record in found])
            for group in metrics.group_level_metrics:
                task = group[TASK_INDEX_KEY_NAME]
                groups.append({**group, "sample": samples[task], **_completion(group["num_rollouts"], expected[task])})
            agents.append({AGENT_REF_KEY_NAME: {"name": agent}, **metrics.agent_metrics})
        return groups, agents

    def profile_completion_summary(self, group_level: Sequence[JsonObject]) -> JsonObject:
        """Return how many of the expected rollouts there are, over all tasks."""
        have = sum(group["num_rollouts"] for group in group_level)
        return {
            "num_rollouts": have,
            **_completion(have, sum(group["expected_num_rollouts"] for group in group_level)),
        }

    def prepare_for_serialization(self, metrics: Sequence[JsonObject]) -> list[JsonObject]:
        """Return the metrics without histograms, which are not JSON."""
        return [{name: value for name, value in each.items() if not name.startswith("histogram")} for each in metrics]

    def write_to_disk(
        self, group_level: Sequence[JsonObject], agent_level: Sequence[JsonObject], base_path: str | Path
    ) -> tuple[Path, Path]:
        """Write the metrics to two files beside `base_path`, and return their paths."""
        groups = sibling_path(Path(base_path), "reward_profiling", ".jsonl")
        agents = sibling_path(Path(base_path), "agent_metrics", ".json")
        with atomic_write(groups) as file:
            file.writelines(orjson.dumps(each) + b"\n" for each in self.prepare_for_serialization(group_level))
        write_json(agents, self.prepare_for_serialization(agent_level))
        return groups, agents


def _by_key(records: Sequence[JsonObject], what: str) -> dict[tuple[int, int], JsonObject]:
    found: dict[tuple[int, int], JsonObject] = {}
    for record in records:
        key = rollout_key(record)
        if key in found:
            raise ValueError(f"Duplicate {what} for rollout key {key}")
        found[key] = record
    return found


def _completion(have: int, expected: int) -> JsonObject:
    return {
        "expected_num_rollouts": expected,
        "missing_num_rollouts": expected - have,
        "reward_profile_completion_pct": 100 * have / expected if expected else 100.0,
    }


def profile_files(config: RewardProfileConfig) -> tuple[JsonObject, tuple[Path, Path]]:
    """Profile stored files. Return how complete they are, and the files that were written."""
    profiler = RewardProfiler()
    rollouts = find(config.rollouts_jsonl_fpath, what="file of rollouts")
    rows, records = read_jsonl(find(config.input_jsonl_fpath, what="file of rows")), read_jsonl(rollouts)
    try:
        groups, agents = profiler.profile_from_data(rows, records, config.allow_partial_rollouts)
    except ValueError as error:
        hint = " To profile those that there are: +allow_partial_rollouts=true." if "no rollout" in str(error) else ""
        raise ConfigError(f"{config.input_jsonl_fpath} and {rollouts} do not fit: {error}.{hint}") from error
    return profiler.profile_completion_summary(groups), profiler.write_to_disk(groups, agents, rollouts)
