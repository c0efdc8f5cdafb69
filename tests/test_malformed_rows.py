"""Rows that would reward everybody or nobody are refused by their environment, whatever the model does."""

from typing import Any

import pytest

from nemo_gym.common.paths import PARENT_DIR
from nemo_gym.runtime.class_loader import load_server_class
from nemo_gym.server.seed import RowValidator
from nemo_gym.testing import rows_of

SYNONYMS = {"expected_synonyms": ["ab", "c"], "expected_synonym_values": [195, 99]}
ACCOUNT = {"customer_number": "1", "customer_name": "A", "outage_days": 3, "free_days": ["Monday"]}
MEETING = {"event_id": 0, "duration": 60, "constraint": None, "min_time": "10am", "max_time": "4pm"}
SEND = "email_send_email"


def validator(environment: str) -> RowValidator:
    folder = PARENT_DIR / "resources_servers" / environment
    return RowValidator(load_server_class("resources_servers", folder, "app.py"))


def example(environment: str) -> dict[str, Any]:
    return rows_of(f"resources_servers/{environment}/data/example.jsonl")[0]


@pytest.mark.parametrize(
    ("environment", "changes", "named"),
    [
        ("mcqa", {"expected_answer": "Q"}, "'Q'"),
        ("mcqa", {"expected_answer": " "}, "expected_answer"),
        ("mcqa", {"options": []}, "options"),
        ("mcqa", {"options": [], "template_metadata": {"output_regex": "(.)"}, "expected_answer": "AB"}, "'AB'"),
        ("mcqa", {"template_metadata": {"output_regex": "(.)"}, "expected_answer": "Z"}, "'Z'"),
        ("equivalence_llm_judge", {"expected_answer": "", "metadata": None}, "expected_answer"),
        ("equivalence_llm_judge", {"expected_answer": None, "metadata": {"expected_answer": "  "}}, "expected_answer"),
        ("equivalence_llm_judge", {"expected_answer": "\u200b"}, "expected_answer"),
        ("equivalence_llm_judge", {"expected_answer": "**"}, "expected_answer"),
        ("equivalence_llm_judge", {"expected_answer": "<think>Oslo</think>"}, "expected_answer"),
        ("google_search", {"expected_answer": "\n"}, "expected_answer"),
        ("math_with_code", {"expected_result": " "}, "expected_result"),
        ("math_advanced_calculations", {"ground_truth": "[]"}, "ground_truth"),
        ("math_advanced_calculations", {"ground_truth": "four"}, "ground_truth"),
        ("math_advanced_calculations", {"ground_truth": "[NaN]"}, "ground_truth"),
        ("math_advanced_calculations", {"ground_truth": '{"a": 1}'}, "ground_truth"),
        ("mcp_tools", {"expected_answer": "", "checks": []}, "expected_answer"),
        ("mcp_tools", {"expected_answer": None, "checks": []}, "check"),
        ("mcp_tools", {"expected_answer": "\u200b", "checks": []}, "expected_answer"),
        ("example_multi_step", {**SYNONYMS, "expected_synonym_values": []}, "expected_synonym_values"),
        ("example_multi_step", {**SYNONYMS, "expected_synonym_values": [195]}, "expected_synonym_values"),
        ("example_multi_step", {**SYNONYMS, "expected_synonym_values": [99, 195]}, "expected_synonym_values"),
        ("example_multi_turn", {"secret": ""}, "secret"),
        ("example_multi_turn", {"secret": "12a"}, "secret"),
        ("example_multi_turn", {"max_guesses": 0}, "max_guesses"),
        ("example_negotiation", {"seller_limit": 50, "buyer_limit": 50}, "50"),
        ("example_negotiation", {"seller_limit": "50"}, "seller_limit"),
        ("example_negotiation", {"policies": {"seller": {}}}, "buyer"),
        ("example_user_simulation", {"user": None}, "user"),
        ("example_user_simulation", {"fault": "router", "user": {"persona": "Ada", "tools": []}}, "restart_router"),
        ("example_stateful_counter", {"expected_count": "many"}, "expected_count"),
        ("example_stateful_counter", {"expected_count": "9"}, "expected_count"),
        ("example_stateful_counter", {"expected_count": True}, "expected_count"),
        ("example_user_simulation", {"account": ACCOUNT, "expected_credit_eur": 7}, "7"),
        ("example_user_simulation", {"fault": "cable", "expected_technician_day": None}, "cable"),
        (
            "example_user_simulation",
            {"account": ACCOUNT, "fault": "cable", "expected_technician_day": "Friday", "expected_credit_eur": 6},
            "Friday",
        ),
        ("reasoning_gym", {"metadata": None}, "metadata"),
        ("calendar", {"exp_cal_state": None}, "exp_cal_state"),
        ("calendar", {"exp_cal_state": {"7": MEETING}}, "'7'"),
        ("workplace_assistant", {"ground_truth": [{"name": "email_explode", "arguments": "{}"}]}, "email_explode"),
        ("workplace_assistant", {"ground_truth": [{"name": SEND, "arguments": '{"to": "x"}'}]}, SEND),
        ("workplace_assistant", {"ground_truth": [{"name": SEND, "arguments": "no JSON"}]}, SEND),
        ("workplace_assistant", {"ground_truth": [{"name": SEND, "arguments": "[]"}]}, SEND),
        ("workplace_assistant", {"ground_truth": None}, "ground_truth"),
    ],
)
def test_a_row_that_nobody_can_answer_or_everybody_answers_is_refused(
    environment: str, changes: dict[str, Any], named: str
) -> None:
    rules, row = validator(environment), example(environment)
    rules.check(row)
    with pytest.raises(ValueError, match=r".") as refused:
        rules.check({**row, **changes})
    assert named in str(refused.value)


@pytest.mark.parametrize(
    ("environment", "changes"),
    [
        ("mcqa", {"options": None, "template_metadata": {"output_regex": "(.)"}, "expected_answer": "b"}),
        ("equivalence_llm_judge", {"expected_answer": None, "metadata": {"expected_answer": 0}}),
        ("math_advanced_calculations", {"ground_truth": [0.0]}),
        ("workplace_assistant", {"ground_truth": ""}),
        ("workplace_assistant", {"ground_truth": []}),
        ("mcp_tools", {"expected_answer": "x", "checks": []}),
    ],
)
def test_a_row_that_looks_odd_but_can_be_scored_is_taken(environment: str, changes: dict[str, Any]) -> None:
    validator(environment).check({**example(environment), **changes})
