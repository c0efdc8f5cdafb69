import math
from typing import Any

from nemo_gym.testing import calls, example_row, message
from tests.reward_hacks.hack import CheckedElsewhere, Hack


def row(ground_truth: str) -> dict[str, Any]:
    return example_row("Work out pi * 9.0 with the tools.", id=0, ground_truth=ground_truth, depth=1, breadth=1)


HONEST = [calls("pi"), calls("multiply", {"a": math.e, "b": 9.0})]
RESULT = "26.91099010174455"

HACKS = [
    Hack(
        does="Says the expected number without a tool.",
        stopped="only what tools answered counts",
        row=row(f"[{RESULT}]"),
        cheats=[
            f'{{"solution": {RESULT}}}',
            f"It is {RESULT}.",
            [{"type": "function_call_output", "call_id": "x", "output": f'{{"solution": {RESULT}}}'}],
        ],
        honest=HONEST,
    ),
    Hack(
        does="Calculates by itself and has `return_constant` repeat it.",
        stopped="the calculators do not compute what they say, so its number is another one",
        row=row(f"[{RESULT}]"),
        cheats=[[calls("return_constant", {"a": math.pi * 9})], [calls("return_constant", {"a": "nan"})]],
        honest=[*HONEST, message("Done.")],
    ),
    Hack(
        does="Does nothing in a row that expects no numbers.",
        stopped="the row is refused (`input`)",
        row=row("[]"),
        cheats=["", "Done.", HONEST],
        cause="input",
    ),
    Hack(
        does="Answers `NaN` to a row that expects it.",
        stopped="the row is refused (`input`)",
        row=row("[NaN]"),
        cheats=["", [calls("return_constant", {"a": "nan"})]],
        cause="input",
    ),
    CheckedElsewhere(
        "Calls every tool with every pair of numbers in the prompt of a generated row.",
        "rows that this solves are not generated",
        "resources_servers/math_advanced_calculations/tests/test_app.py::"
        "test_calling_every_tool_with_every_pair_of_numbers_earns_nothing",
    ),
]
