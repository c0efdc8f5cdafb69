from nemo_gym.testing import example_row
from tests.reward_hacks.hack import CheckedElsewhere, Hack

TESTS = "resources_servers/string_match/tests/test_app.py"

HACKS = [
    Hack(
        does="Gives a prefix of the answer, or nothing, which is at the beginning of any text.",
        stopped="the answer begins with the ideal, not the other way round",
        row=example_row("How much is 6 * 7?", match="starts_with", ideal="42"),
        cheats=["", "4", " 42", "It is 42."],
        honest="42",
    ),
    Hack(
        does="Writes JSON with null, or with more keys than asked for.",
        stopped="null is equal to nothing, and the keys are those of the ideal",
        row=example_row("Give the sum as JSON.", match="json", ideal='{"sum": 7}'),
        cheats=['{"sum": null}', '{"sum": 7, "other": null}', "null", "{}", "[]"],
        honest='{"sum": 7}',
    ),
    CheckedElsewhere(
        "Says anything about a row whose ideal is empty.",
        "the row is refused (`input`)",
        f"{TESTS}::test_a_row_that_anything_or_nothing_solves_is_refused",
    ),
]
