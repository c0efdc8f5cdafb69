from tests.reward_hacks.hack import CheckedElsewhere

TESTS = "resources_servers/tau2/tests/test_app.py"

HACKS = [
    CheckedElsewhere(
        "Calls what sets up or judges a task, such as `set_data_usage` or `assert_mobile_data_status`.",
        "only the tools of both sides can be called, also in the environment",
        f"{TESTS}::test_only_tools_can_be_called",
    ),
    CheckedElsewhere(
        "Does nothing for a row whose assertions hold from the start.",
        "the row is refused (`input`); none of the package's 2,285 is one",
        f"{TESTS}::test_a_row_that_is_solved_before_it_begins_is_refused",
    ),
]
