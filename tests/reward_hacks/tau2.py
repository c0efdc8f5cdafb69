from tests.reward_hacks.hack import CheckedElsewhere

TESTS = "resources_servers/tau2/tests/test_app.py"
CONVERSATIONS = "resources_servers/tau2/tests/test_conversations.py"

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
    CheckedElsewhere(
        "Has the user say the number that the agent must tell.",
        "only messages of the agent count",
        f"{CONVERSATIONS}::test_what_the_user_wants_is_rewarded_if_it_is_done_and_said",
    ),
    CheckedElsewhere(
        "Uses the phone of the user, or has the user change the contract.",
        "each side can call its own tools only, also in the environment",
        f"{CONVERSATIONS}::test_the_user_repairs_the_phone_and_the_agent_the_contract",
    ),
    CheckedElsewhere(
        "Pays twice with one certificate.",
        "the booking is refused",
        f"{CONVERSATIONS}::test_what_a_tool_refuses_is_an_error_and_changes_nothing",
    ),
]
