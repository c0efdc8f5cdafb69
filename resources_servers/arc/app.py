"""ARC-AGI: find the rule of a few pairs of grids and apply it, with two attempts for each test input."""

import re
from collections.abc import Iterator
from typing import Annotated, NamedTuple

from pydantic import Field

from nemo_gym import JsonObject
from nemo_gym.answers import joined_text, shown
from nemo_gym.base_resources_server import BaseVerifyRequest, Score, SimpleResourcesServer

MAX_SIDE = 30
ATTEMPTS = 2
FENCE = "```"
_LABEL = re.compile(r"test\s{0,3}([0-9]{1,2})\s*", re.IGNORECASE)
_ROW = re.compile(r"[0-9](?:[ ,]{0,2}[0-9]){0,29}")

Cell = Annotated[int, Field(ge=0, le=9, strict=True)]
Grid = list[Annotated[list[Cell], Field(min_length=1, max_length=MAX_SIDE)]]


class ArcVerifyRequest(BaseVerifyRequest):
    answers: list[Annotated[Grid, Field(min_length=1, max_length=MAX_SIDE)]] = Field(min_length=1)
    """The right grid for each test input."""


class Attempt(NamedTuple):
    test: int
    """Which test input, from 0."""
    grid: Grid | None
    """None if the block holds none."""


class ArcResourcesServer(SimpleResourcesServer):
    async def verify(self, body: ArcVerifyRequest) -> Score:
        """1 if every test input has an attempt with the right grid. `cells` is the share of right cells."""
        attempts = list(attempts_in(shown(joined_text(body.response)), len(body.answers)))
        tried = [[each.grid for each in attempts if each.test == test] for test in range(len(body.answers))]
        shares = [
            max((share_of_cells(grid, answer) for grid in grids[:ATTEMPTS] if grid), default=0.0)
            for grids, answer in zip(tried, body.answers, strict=True)
        ]
        return Score(float(min(shares) == 1.0), cells=sum(shares) / len(shares), attempts=len(attempts))

    @classmethod
    def gold_response(cls, row: JsonObject) -> str:
        return "\n".join(
            f"{FENCE}test {test}\n{text_of(grid)}\n{FENCE}" for test, grid in enumerate(row["answers"], 1)
        )


def text_of(grid: Grid) -> str:
    """A grid as lines of digits."""
    return "\n".join(" ".join(map(str, line)) for line in grid)


def attempts_in(text: str, tests: int) -> Iterator[Attempt]:
    """The grids in fenced blocks, in order. Blocks are labelled `test 1`, `test 2`; with one test input they need no
    label. A labelled block without a grid is an attempt, too."""
    for label, lines in _blocks(text):
        named = _LABEL.fullmatch(label)
        grid = grid_in(lines)
        if named is not None:
            yield Attempt(int(named[1]) - 1, grid)
        elif tests == 1 and grid is not None:
            yield Attempt(0, grid)


def _blocks(text: str) -> Iterator[tuple[str, list[str]]]:
    """The label and the lines of each fenced block that is closed."""
    label: str | None = None
    lines: list[str] = []
    for line in text.splitlines():
        if not line.lstrip().startswith(FENCE):
            lines.append(line)
        elif label is None:
            label, lines = line.strip().removeprefix(FENCE).strip(), []
        else:
            yield label, lines
            label = None


def grid_in(lines: list[str]) -> Grid | None:
    """A grid as lines of digits, with or without spaces or commas, or as JSON."""
    lines = [line for line in map(str.strip, lines) if line]
    if lines and lines[0].startswith("["):
        joined = re.sub(r"\s+", "", "".join(lines))
        if not (joined.startswith("[[") and joined.endswith("]]")):
            return None
        lines = joined[2:-2].split("],[")
    if not 1 <= len(lines) <= MAX_SIDE or not all(map(_ROW.fullmatch, lines)):
        return None
    rows = [[int(cell) for cell in line if cell not in " ,"] for line in lines]
    return rows if len({len(row) for row in rows}) == 1 else None


def share_of_cells(grid: Grid, answer: Grid) -> float:
    """The share of equal cells; 0 if the grids differ in shape."""
    if [len(row) for row in grid] != [len(row) for row in answer]:
        return 0.0
    pairs = [pair for row, wanted in zip(grid, answer, strict=True) for pair in zip(row, wanted, strict=True)]
    return sum(cell == wanted for cell, wanted in pairs) / len(pairs)


if __name__ == "__main__":
    ArcResourcesServer.run_webserver()
