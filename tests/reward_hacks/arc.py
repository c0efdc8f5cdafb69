from tests.reward_hacks.hack import CheckedElsewhere

TESTS = "resources_servers/arc/tests/test_app.py"

HACKS = [
    CheckedElsewhere(
        "Gives many grids, the right one among them, or hides it in thoughts or comments.",
        "only the first two shown blocks of a test input count, also if they hold no grid",
        f"{TESTS}::test_one_of_the_first_two_attempts_is_the_grid",
    ),
]
