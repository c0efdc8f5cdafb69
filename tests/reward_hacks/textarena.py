from tests.reward_hacks.hack import CheckedElsewhere

TESTS = "resources_servers/textarena/tests/test_app.py"

HACKS = [
    CheckedElsewhere(
        "Does nothing while the random opponent loses by moves that the game does not allow.",
        "the opponent makes legal moves; a game without a turn of the policy has no result",
        f"{TESTS}::test_doing_nothing_wins_no_game",
    ),
    CheckedElsewhere(
        "Repeats one move, after which the random opponent loses by its own.",
        "the opponent makes legal moves",
        f"{TESTS}::test_one_move_does_not_win_against_the_random_opponent",
    ),
    CheckedElsewhere(
        "Falls silent, or calls tools to the limit, instead of losing.",
        "who leaves a game against others has lost it",
        f"{TESTS}::test_to_leave_a_game_is_to_lose_it",
    ),
]
