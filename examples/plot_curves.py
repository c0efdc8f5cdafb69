"""Learning curves as SVG, without a plotting library.

`python -m examples.plot_curves seed0.jsonl seed1.jsonl curves.svg` draws what `examples.train_grpo --output` wrote.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 720, 320, 50, 40, 36, 110
COLORS = ("#76b900", "#1f77b4", "#d62728", "#9467bd", "#ff7f0e")


def plot(curves: Mapping[str, Sequence[float]], *, title: str, smooth: int = 10) -> str:
    """Curves of values from 0 to 1. Thin lines are the values, thick ones their mean over the last `smooth` steps."""
    steps = max(map(len, curves.values()))
    parts = [_text(WIDTH / 2, 20, title, anchor="middle"), *_axes(steps)]
    for number, (name, values) in enumerate(curves.items()):
        color = COLORS[number % len(COLORS)]
        means = [sum(values[max(0, at + 1 - smooth) : at + 1]) / min(at + 1, smooth) for at in range(len(values))]
        parts += [_line(values, steps, color, 0.6, 0.35), _line(means, steps, color, 2.0, 1.0)]
        parts.append(_text(WIDTH - RIGHT + 10, TOP + 16 + 18 * number, name, color=color))
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        f'font-size="12">\n<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>\n{body}\n</svg>\n'
    )


def _x(step: float, steps: int) -> float:
    return LEFT + step / max(1, steps) * (WIDTH - LEFT - RIGHT)


def _y(value: float) -> float:
    return HEIGHT - BOTTOM - value * (HEIGHT - BOTTOM - TOP)


def _axes(steps: int) -> list[str]:
    parts = []
    for value in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = _y(value)
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(_text(LEFT - 8, y + 4, f"{value:g}", anchor="end"))
    for step in range(0, steps + 1, max(1, steps // 5)):
        parts.append(_text(_x(step, steps), HEIGHT - BOTTOM + 18, str(step), anchor="middle"))
    return [*parts, _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, "step", anchor="middle")]


def _line(values: Sequence[float], steps: int, color: str, width: float, opacity: float) -> str:
    points = " ".join(f"{_x(at + 1, steps):.1f},{_y(value):.1f}" for at, value in enumerate(values))
    return (
        f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="{width}" stroke-opacity="{opacity}"/>'
    )


def _text(x: float, y: float, text: str, *, anchor: str = "start", color: str = "#333") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}">{escape(text)}</text>'


def main() -> None:
    *sources, target = map(Path, sys.argv[1:])
    curves = {}
    for source in sources:
        points = [json.loads(line) for line in source.read_text().splitlines()]
        curves[f"seed {points[0]['seed']}"] = [point["reward"] for point in points]
    target.write_text(plot(curves, title="Mean reward of a step, training the tiny policy with GRPO"))


if __name__ == "__main__":
    main()
