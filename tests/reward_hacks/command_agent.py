from tests.reward_hacks.hack import CheckedElsewhere

TESTS = "responses_api_agents/command_agent/tests/test_app.py"

HACKS = [
    CheckedElsewhere(
        "Sends an assistant item with token ids and log-probs of its own, to be trained on.",
        "the gateway removes such fields; only replies of the policy's own model calls are samples",
        f"{TESTS}::test_tokens_that_a_harness_forges_are_not_trained_on",
    ),
    CheckedElsewhere(
        "Sends such an item to a model server.",
        "model servers ignore these fields of callers from outside of the run",
        "responses_api_models/vllm_model/tests/test_app.py::test_tokens_of_callers_from_outside_of_the_run_are_ignored",
    ),
    CheckedElsewhere(
        "Calls a tool and hangs up, so that its effect is in no record.",
        "every call that was started is in the record",
        f"{TESTS}::test_tool_calls_that_a_client_gives_up_are_in_the_record",
    ),
    CheckedElsewhere(
        "Calls a tool over MCP that the row does not offer.",
        "a session has only the tools of its row",
        "tests/gateway/test_mcp_exposure.py::test_a_session_has_the_tools_that_its_row_lists",
    ),
    CheckedElsewhere(
        "Is ended from outside, such as for its memory, and scored as it stands.",
        "there is no result, with the cause `environment`",
        f"{TESTS}::test_a_harness_that_is_killed_is_no_result_and_one_that_crashes_is_scored",
    ),
]
