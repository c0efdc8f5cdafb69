from typing import Any

import pytest

from nemo_gym import NeMoGymResponse
from nemo_gym.answers import last_text
from nemo_gym.testing import calls, message, response_of, says
from resources_servers.equivalence_llm_judge.engine import extract
from resources_servers.equivalence_llm_judge.rows import EquivalenceVerifyRequest

BOLD = r"\*\*(.*?)\*\*"


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        (BOLD, "**one** and **two**", "two"),
        (BOLD, "** one\n** and more", "one"),
        (r"^Answer: (.*?)$", "Answer: one\nAnswer: two\nend", "two"),
        (r"(a)|(b)", "a b", "b"),
        (r"(\s*)(x)", "  x", "x"),
        (r"(\s*)x", "  x", "x"),
        (r"is\s+\d+ ", "it is 4 ", "is 4"),
        (r"(one)|two", "one two", "two"),
        ("(", "(", None),
        ("a{99999999999}", "a", None),
        ("zzz", "a", None),
        ("(?:)", "a", ""),
    ],
)
def test_the_first_group_that_is_not_blank_of_the_last_match_counts(
    pattern: str, text: str, found: str | None
) -> None:
    assert extract(pattern, text) == found


PARTS = [{"type": "output_text", "text": text, "annotations": []} for text in (" one", "two ")]  # type: ignore[var-annotated]
REFUSAL = {"type": "refusal", "refusal": "no"}


@pytest.mark.parametrize(
    ("response", "text"),
    [
        (says("one", "two"), "two"),
        (says("one", ""), ""),
        (response_of({**message(""), "content": PARTS}), "one\ntwo"),
        (response_of({**message(""), "content": [*PARTS, REFUSAL]}), "one\ntwo"),
        (response_of(message("one"), calls("tool")), "one"),
        (response_of(message("one"), {**message(""), "content": [REFUSAL]}), ""),
        (response_of(message("one"), {"type": "message", "role": "assistant", "content": "two"}), ""),
        (response_of(message("one"), {"type": "message", "role": "user", "content": "two"}), "one"),
        (response_of({"type": "message", "role": "assistant", "content": PARTS}), "one\ntwo"),
        (response_of(), ""),
    ],
)
def test_the_texts_of_the_last_message_are_the_reply(response: dict[str, Any], text: str) -> None:
    assert last_text(NeMoGymResponse.model_validate(response)) == text


USER, LIST = (
    {"role": "user", "content": " Which? "},
    {"role": "user", "content": [{"type": "input_text", "text": "L"}]},
)


@pytest.mark.parametrize(
    ("prompt", "question"),
    [
        ([USER], "Which?"),
        ([USER, {"role": "user", "content": "And?"}], "And?"),
        ([USER, {"role": "assistant", "content": "Hm."}, {"role": "developer", "content": "Go."}], "Which?"),
        ([USER, LIST], "L"),
        ([LIST], "L"),
        ([], ""),
        ("Which?", "Which?"),
    ],
)
def test_the_question_is_the_text_of_the_last_user_message(prompt: Any, question: str) -> None:
    row = {"responses_create_params": {"input": prompt}, "response": says("")}
    assert EquivalenceVerifyRequest.model_validate(row).question() == question
