"""Defects that the simulator has found, each with a seed that breaks an invariant without the repair. What the seed
would draw is fixed where the defect needs it."""

from typing import Any, NamedTuple


class Regression(NamedTuple):
    """A seed, and the part of its plan that is not drawn."""

    name: str
    seed: int
    plan: dict[str, Any]


REGRESSIONS = (
    Regression(
        "a command is stopped while it still waits for its workers: their connections stayed open",
        2,
        {"layout": "workers", "faults": ("stop collector",), "fault_every_s": 0.5, "faulty_s": 20.0, "rows": 4},
    ),
    Regression(
        "a trainer aborts rollouts, goes on with them, and is killed: calls that the journal had were made again",
        11,
        {
            "layout": "session",
            "faults": ("kill collector",),
            "fault_every_s": 20.0,
            "faulty_s": 60.0,
            "rows": 20,
            "repeats": 3,
            "journal": True,
            "is_grouped": False,
            "think_s": (0.5, 8.0),
            "rollout_timeout_s": 3600.0,
        },
    ),
)
