"""One response, many ways to read it; rewards hang on the differences."""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym import answers
from nemo_gym.llm_api.responses import NeMoGymResponse
from nemo_gym.testing import calls, message, response_of, says, tool_output


def read(response: dict[str, Any]) -> NeMoGymResponse:
    return NeMoGymResponse.model_validate(response)


def parts(*texts: str | None, role: str = "assistant", **fields: Any) -> dict[str, Any]:
    """A message of several parts; None is a refusal."""
    content = [
        {"type": "refusal", "refusal": "No."} if text is None else {"type": "output_text", "text": text}
        for text in texts
    ]
    return {"type": "message", "id": "msg_test", "role": role, "status": "completed", "content": content, **fields}


TWO_MESSAGES = response_of(parts(" a ", "b"), calls("look"), tool_output("seen"), parts(" c ", "d "))
REASONING = {"type": "reasoning", "id": "rs_test", "summary": [], "content": [{"type": "reasoning_text", "text": "x"}]}


def test_each_way_reads_its_own_part_of_a_response() -> None:
    response = read(TWO_MESSAGES)
    assert answers.message_texts(response) == [[" a ", "b"], [" c ", "d "]]
    assert answers.last_text(response) == "c \nd"
    assert answers.all_text(response) == "a \nb\n c \nd"
    assert answers.joined_text(response) == " a b c d "
    assert answers.first_part_of_last_item(response) == " c "
    assert answers.text_of_last_item(response) == " c \nd "


@pytest.mark.parametrize(
    "output",
    [
        [],
        [parts()],
        [parts(None)],
        [{"type": "message", "role": "assistant", "content": "a plain text"}],
        [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a user"}]}],
        [parts("a user", role="user")],
        [calls("look")],
        [tool_output("seen")],
        [REASONING],
    ],
)
def test_what_the_model_did_not_say_is_no_text(output: list[dict[str, Any]]) -> None:
    response = read(response_of(*output))
    of_last_item = (answers.first_part_of_last_item, answers.text_of_last_item)
    for way in (answers.last_text, answers.all_text, answers.joined_text, *of_last_item):
        assert way(response) == ""
    assert answers.last_number(response) is None


def test_a_message_without_an_id_counts() -> None:
    written_by_a_harness = parts("hello")
    del written_by_a_harness["id"]
    assert answers.all_text(read(response_of(written_by_a_harness))) == "hello"


def test_a_refusal_in_the_last_message_hides_the_message_before_it() -> None:
    response = read(response_of(message("first"), parts(None)))
    assert (answers.last_text(response), answers.all_text(response)) == ("", "first")


@pytest.mark.parametrize(("last", "text"), [(parts(None, "b"), ""), (parts("a", None), "a"), (calls("look"), "")])
def test_only_the_first_part_of_the_last_item_is_read(last: dict[str, Any], text: str) -> None:
    assert answers.first_part_of_last_item(read(response_of(message("before"), last))) == text


@pytest.mark.parametrize(("last", "text"), [(parts(None, "b"), "b"), (parts("a", "b"), "a\nb"), (calls("look"), "")])
def test_all_parts_of_the_last_item_are_read(last: dict[str, Any], text: str) -> None:
    assert answers.text_of_last_item(read(response_of(message("before"), last))) == text


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (r"\boxed{C}", ["C"]),
        (r"\boxed{A} then \boxed{C}", ["A", "C"]),
        (r"\\boxed{ C }", [" C "]),
        (r"\boxed{\text{C}}", [r"\text{C"]),
        (r"\boxed{}", [""]),
        (r"\boxed{a \boxed{b} c}", [r"a \boxed{b"]),
        ("\\boxed{over\nlines}", ["over\nlines"]),
        (r"\boxed{open", []),
        (r"boxed{C} \boxed {C}", []),
        ("", []),
    ],
)
def test_a_box_ends_at_the_first_brace(text: str, found: list[str]) -> None:
    assert list(answers.boxes(text)) == found
    assert answers.first_box(text) == (found[0] if found else None)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("There are 3.", 3),
        ("2, no: 3", 3),
        ("It is -4", -4),
        ("between 5-7", 7),
        ("COVID-19", 19),
        ("1,234,567.5 in all", 1234567.5),
        ("1,2", 2),
        ("No idea.", None),
        ("", None),
    ],
)
def test_the_last_number_of_the_last_message(text: str, number: float | None) -> None:
    assert answers.last_number(read(says("Maybe 99.", text))) == number


@given(st.lists(st.text(alphabet="ab\\{}", max_size=6)))
def test_boxes_are_found_in_what_was_boxed(insides: list[str]) -> None:
    insides = [inside.replace("}", "").replace("\\", "") for inside in insides]
    assert list(answers.boxes(" and ".join(f"\\boxed{{{inside}}}" for inside in insides))) == insides


@pytest.mark.parametrize(
    "text", ["\\boxed{" * 150_000, "1," * 500_000, "-1." * 350_000], ids=["boxes", "thousands", "minus"]
)
def test_a_hostile_text_takes_no_more_time_than_its_length(text: str) -> None:
    started = time.process_time()
    list(answers.boxes(text))
    answers.last_number(read(says(text)))
    assert time.process_time() - started < 5
