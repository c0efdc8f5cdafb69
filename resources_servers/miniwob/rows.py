"""Rows of MiniWoB++, from the package miniwob: each page with some seeds."""

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from nemo_gym.data.hubs.pypi import Members, chosen_categories

NEED_TIMING = frozenset(("button-delay", "chase-circle", "hover-shape", "moving-items", "simon-says"))
"""Not among the 125 tasks of BrowserGym: things move while a model thinks."""
INSTRUCTIONS = """\
You act on a web page with tools, one call at a time. Each call returns what is to be seen then: elements with
references such as e5. `look` also shows the DOM with the position of every element, or a screenshot; use positions for
what has no reference, such as shapes. Reach the goal with as few actions as you can: a wrong one often cannot be taken
back. When you read that the task has ended, answer with one word and no call."""


def rows(
    members: Members, category: str | None = None, seeds: str = "1", first_seed: str = "0", timing: str = "yes"
) -> Iterator[dict[str, Any]]:
    """One row for each page and seed. A category is the name of a page, or its beginning."""
    names = sorted(PurePosixPath(each).stem for each in members.names)
    known = [each for each in names if timing == "yes" or each not in NEED_TIMING]
    first = int(first_seed)
    chosen = chosen_with_dashes(known, category)
    yield from (row_of(name, seed) for name in chosen for seed in range(first, first + int(seeds)))


def chosen_with_dashes(known: list[str], category: str | None) -> list[str]:
    """The pages of a category: names have dashes where categories have underscores."""
    wanted = category and category.replace("-", "_")
    chosen = set(chosen_categories((name.replace("-", "_") for name in known), wanted))
    return [name for name in known if name.replace("-", "_") in chosen]


def row_of(task: str, seed: int) -> dict[str, Any]:
    return {
        "responses_create_params": {"input": [{"role": "system", "content": INSTRUCTIONS}]},
        "id": f"{task}/{seed}",
        "category": task,
        "task": task,
        "seed": seed,
    }
