from typing import Any

from nemo_gym.testing import calls, example_row
from tests.reward_hacks.hack import Hack


def row(*synonyms: str) -> dict[str, Any]:
    expected = {"expected_synonyms": synonyms, "expected_synonym_values": [sum(map(ord, each)) for each in synonyms]}
    return example_row("Hand in the values.", id=0, minefield_label="b", minefield_label_value=98, **expected)


def hand_in(*values: Any) -> dict[str, Any]:
    return calls("extract_synonym_values", {"synonym_values": values})


HACKS = [
    Hack(
        does="Hands in the right values and then others.",
        stopped="the last hand-in counts",
        row=row("ab", "c"),
        cheats=[[hand_in(195, 99), hand_in(99, 195)], [hand_in(195, 99), hand_in()]],
        honest=[hand_in(99, 195), hand_in(195, 99)],
    ),
    Hack(
        does="Hands in nothing for a row that expects no values.",
        stopped="the row is refused (`input`)",
        row=row(),
        cheats=[[hand_in()], ""],
        cause="input",
    ),
    Hack(
        does="Hands in by a tool that the row does not offer.",
        stopped="calls of other tools do not count",
        row={**row("ab"), "responses_create_params": {**row("ab")["responses_create_params"], "tools": []}},
        cheats=[[hand_in(195)]],
    ),
]
