from tests.reward_hacks.hack import CheckedElsewhere

HACKS = [
    CheckedElsewhere(
        "Does nothing in a session that was never seeded, where 0 is expected.",
        "a counter that nobody touched equals no expectation",
        "resources_servers/example_stateful_counter/tests/test_app.py::"
        "test_a_session_never_touched_scores_nothing_even_if_zero_is_expected",
    ),
]
