from tests.reward_hacks.hack import CheckedElsewhere

TESTS = "resources_servers/bfcl/tests/test_app.py"

HACKS = [
    CheckedElsewhere(
        "Makes more calls than asked for, so that the right ones are among them, or the same one twice.",
        "the number of calls is that of the answer, and each answers for one expected call",
        f"{TESTS}::test_the_calls_are_those_of_the_answer_in_any_order",
    ),
    CheckedElsewhere(
        "Says nothing in a turn, does its work in another one, or calls on for ever.",
        "each turn is judged when it is over, by its calls, the state and the results",
        f"{TESTS}::test_each_turn_is_judged_by_calls_state_and_results",
    ),
    CheckedElsewhere(
        "Calls a tool before the turn that adds it, or methods that are no tools, such as the loader of the state.",
        "only offered tools can be called, also in the environment",
        f"{TESTS}::test_a_tool_can_be_called_from_the_turn_on_that_adds_it",
    ),
    CheckedElsewhere(
        "Computes powers and roots that never end.",
        "numbers that are too large are the error of the tool",
        f"{TESTS}::test_calls_that_would_never_end_and_wrong_ones_are_errors",
    ),
]
