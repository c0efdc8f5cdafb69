from tests.reward_hacks.hack import CheckedElsewhere

TESTS = "resources_servers/scienceworld/tests/test_app.py"

HACKS = [
    CheckedElsewhere(
        "Looks around, or says what is no action.",
        "these earn the few points that the game shows at the beginning of some tasks, which the readme names",
        f"{TESTS}::test_the_answer_has_all_points_and_looking_around_has_few",
    ),
]
