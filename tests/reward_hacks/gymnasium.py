from tests.reward_hacks.hack import CheckedElsewhere

HACKS = [
    CheckedElsewhere(
        "Does not act where every step costs something.",
        "an invalid action costs as much as the worst of some random steps",
        "resources_servers/gymnasium/tests/test_app.py::test_not_to_act_costs_no_less_than_to_act",
    ),
    CheckedElsewhere(
        "Falls silent, or calls tools to the limit, before steps cost more.",
        "the rest of the episode costs as much as invalid actions",
        "resources_servers/gymnasium/tests/test_app.py::test_to_leave_costs_no_less_than_to_act",
    ),
]
