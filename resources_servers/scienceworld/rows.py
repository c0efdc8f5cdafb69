"""Rows of ScienceWorld: the variations of a split, as the package lists them."""

from collections.abc import Iterator
from typing import Any

from nemo_gym.data.hubs.pypi import Members, chosen_categories
from resources_servers.scienceworld.game import end_game, new_game

SYSTEM = (
    "You are in a world of text. Say one action at a time and nothing else, such as: look around; open door to "
    "kitchen; go to kitchen; pick up thermometer; move metal pot to stove; activate stove; use thermometer on water; "
    "focus on water; wait; inventory. `task` repeats what to do. Focus only on what the task names: "
    "other things end it."
)
HEAP_MB = 512


def rows(members: Members, category: str | None = None, split: str = "test") -> Iterator[dict[str, Any]]:
    """One row for each variation of each task."""
    game = new_game(HEAP_MB)
    try:
        for task in chosen_categories(game.get_task_names(), category):
            game.load(task, 0, "")
            for variation in getattr(game, f"get_variations_{split}")():
                yield row_of(task, variation)
    finally:
        end_game(game)


def row_of(task: str, variation: int) -> dict[str, Any]:
    return {
        "responses_create_params": {"input": [{"role": "system", "content": SYSTEM}]},
        "id": f"{task}/{variation}",
        "category": task,
        "task": task,
        "variation": variation,
    }
