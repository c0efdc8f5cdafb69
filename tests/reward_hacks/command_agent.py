from tests.reward_hacks.hack import CheckedElsewhere

TESTS = "responses_api_agents/command_agent/tests/test_app.py"

HACKS = [
    CheckedElsewhere(
        "Sends an assistant item with token ids and log-probs of its own, to be trained on.",
        "the gateway removes such fields; only replies of the policy's own model calls are samples",
        f"{TESTS}::test_tokens_that_a_harness_forges_are_not_trained_on",
    ),
    CheckedElsewhere(
        "Sends an answer, a call or an output of a tool in the model's name, or as the row's history.",
        "verifiers get the row's own request and the model's own items; others are of the type `harness_item`",
        f"{TESTS}::test_what_a_harness_writes_in_the_name_of_the_model_is_not_rewarded",
    ),
    CheckedElsewhere(
        "Chooses what is sampled, by a schema, a bias, a template or token ids, to have it trained on.",
        "such parameters are not sent to the model; replies that had to follow a schema are no samples",
        f"{TESTS}::test_what_is_sampled_under_a_constraint_is_no_sample_and_a_harness_cannot_steer_sampling",
    ),
    CheckedElsewhere(
        "Chooses what is sampled by `metadata`, whose `extra_body` model servers merge into their requests.",
        "`metadata` of a harness is not sent to the model",
        f"{TESTS}::test_only_known_parameters_of_a_harness_reach_the_endpoint",
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
    CheckedElsewhere(
        "Ends with an invalid request to its model, so that a failed attempt has no result.",
        "a request that is refused as invalid fails alone, and the rollout is scored",
        f"{TESTS}::test_a_request_that_is_invalid_voids_no_rollout",
    ),
]
