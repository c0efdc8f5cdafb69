from tests.reward_hacks.hack import CheckedElsewhere

OWN = "tests/test_reward_hacks.py"

HACKS = [
    CheckedElsewhere(
        "Gives one of the responses in the first table of this page.",
        "no example row of an environment rewards it",
        f"{OWN}::test_no_verifier_is_worse_than_recorded_and_no_non_answer_earns_anything",
    ),
    CheckedElsewhere(
        "Calls `verify`, `seed_session` or another endpoint as if it were a tool.",
        "only tools of the row are called",
        f"{OWN}::test_no_environment_lets_a_policy_score_itself",
    ),
    CheckedElsewhere(
        "Starts with earlier calls of a stateful tool in its `input`.",
        "the environment says if they are replayed, ignored or refused",
        "tests/server/test_seed.py::test_an_environment_with_state_says_what_earlier_calls_mean",
    ),
    CheckedElsewhere(
        "Uses a session token of its own.",
        "forged tokens are refused",
        "tests/server/test_app.py::test_a_forged_session_token_is_refused",
    ),
    CheckedElsewhere(
        "Has a session scored in which the environment failed.",
        "the session has ended",
        "tests/server/test_app.py::test_a_session_in_which_the_environment_failed_cannot_be_scored",
    ),
    CheckedElsewhere(
        "Says a value of `env.yaml`, so that a mask in its place is scored.",
        "records have what the model said, without masks",
        "tests/test_verbatim_records.py::test_every_command_reads_what_the_model_said",
    ),
]
