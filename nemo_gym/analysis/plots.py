"""Plots of rollouts as SVG: one file of panels that any browser shows, in its light or dark colors."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from nemo_gym.rollouts.metrics import RunningMetrics
from nemo_gym.rollouts.store import metrics_path, read_rollouts

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


def figure(panels: Sequence[Panel], *, columns: int = 2) -> str:
    """The panels side by side, as the text of an SVG file."""
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
    """How many values are in each of some equal intervals."""
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
    """A curve from 0 to 1 over values that are shown one beside the other, such as k = 1, 2, 4."""
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
    """One dot for each point."""
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
    """Horizontal bars: name, value, and the text beside it."""
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
    """Plots rewards, pass@k, reward against length and time by stage of rollouts that are added one by one.

    The caller adds the same ones to `metrics`."""

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
