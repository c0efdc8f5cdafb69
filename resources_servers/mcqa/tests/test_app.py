"""The rules of the letter, line by line; and what hostile rows and answers cost."""

import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nemo_gym import PARENT_DIR
from nemo_gym.testing import client_for, example_row, message, response_of, rows_of, running_servers, says, server_spec
from resources_servers.mcqa.app import McqaResourcesServer
from resources_servers.mcqa.extraction import GradingMode, extracted, lettered
from tests.stacks import verified_by

PUBLIC_ROWS = PARENT_DIR.parent / "shared/data/mcqa"
OWN_ROWS = PARENT_DIR / "resources_servers/mcqa/data"
STRICT: GradingMode = "strict_single_letter_boxed"
BOXED: GradingMode = "lenient_boxed"
COLON: GradingMode = "lenient_answer_colon"
OPTIONS = [{"A": "Circle"}, {"B": "Square"}, {"C": "Big Square"}]
CATASTROPHIC = r"(a+)+$"


verified = partial(verified_by, McqaResourcesServer)


def row(*texts: str, **fields: Any) -> dict[str, Any]:
    return example_row(response=says(*texts), **{"options": OPTIONS, "expected_answer": "B", **fields})


def letter_in(text: str, mode: GradingMode = STRICT, options: Any = OPTIONS, regex: str | None = None) -> str | None:
    return extracted([text], mode, lettered(options), regex)


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        (r"\boxed{B}", "B"),
        (r"\boxed{ [B] }", "B"),
        (r"\boxed{(B)}", "B"),
        (r"\boxed{B.}", "B"),
        (r"\boxed{1 B 2}", "B"),
        (r"\boxed{$B$}", "B"),
        ("\\boxed{\n B \n}", "B"),
        (r"\boxed{**B**}", "B"),
        (r"\boxed{\text{B}}", "B"),
        (r"\boxed{\mathrm{B}.}", "B"),
        (r"\boxed{(\textbf{\text{ B }})}", "B"),
        (r"\boxed{b}", None),
        (r"\boxed{\text{b}}", None),
        (r"\boxed{\cancel{B}}", None),
        (r"\boxed{1} = {B}", None),
        (r"\boxed{B: Square}", None),
        (r"\boxed{A, B}", None),
        (r"\boxed{\text{A}, \text{B}}", None),
        (r"\boxed{A \boxed{B}}", None),
        (r"\boxed {B}", None),
        (r"\boxed{B", None),
        (r"\boxed{ÄB}", None),
        ("B", None),
        ("", None),
        (r"\boxed{A} \boxed{B}", "B"),
        (r"\boxed{B} \boxed{A}", "A"),
        (r"\boxed{foo} \boxed{B}", "B"),
        (r"\boxed{Z} \boxed{B}", "B"),
        (r"\boxed{B} \boxed{Z}", None),
        (r"\boxed{B} \boxed{a}", None),
        (r"\boxed{B} \boxed{A or C}", None),
        (r"\boxed{B} is what goes in \boxed{}", "B"),
        (r"\boxed{A} \boxed{C} \boxed{B}", None),
        (r"<think>\boxed{A}</think>\boxed{B}", "B"),
        (r"\boxed{A}</think>\boxed{B}", "B"),
        (r"<think>\boxed{B}</think>", None),
        (r"<think>\boxed{B}", None),
        (r"\boxed{B} <think>or \boxed{A}?", "B"),
        (r"\boxed{\boxed{B}}", "B"),
        (r"\boxed{A}, then \boxed {B}", None),
        (r"\boxed{\bf B}", "B"),
        (r"\boxed{<b>B</b>}", "B"),
        (r"\boxed{Ｂ}", "B"),  # noqa: RUF001
        (r"\boxed{В}", None),  # noqa: RUF001 - a Cyrillic letter
        (r"\boxed{\large{B}}", "B"),
        (r"\boxed{\Huge B}", "B"),
        (r"\boxed{B'}", None),
        (r"\boxed{B^*}", None),
        (r"\boxed{B \text{ (wrong)}}", None),
        (r"\boxed{\overline{B}}", None),
        (r"\boxed{≠B}", None),
        (r"\boxed{¬ B}", None),
        (r"\boxed{!B}", None),
        (r"\boxed{~~B~~}", None),
        (r"\boxed{B❌}", None),
        ("\\boxed{B\u0338}", None),
        (r"\boxed{不是B}", None),
        (r"It is not \boxed{B}.", None),
        (r"\boxed{B} is wrong.", None),
        (r"Not \boxed{A} but \boxed{B}.", "B"),
        (r"\boxed{B}, not \boxed{A}.", "B"),
        (r"\boxed{A} or \boxed{B}", None),
        (r"\boxed{A}, maybe \boxed{B}", None),
        (r"\boxed{A} (or \boxed{B})", None),
        (r"\boxed{B?}", None),
        (r"\boxed{~B}", None),
        (r"\boxed{-B}", None),
        (r"\boxed{0\% B}", None),
        (r"~~\boxed{B}~~", None),
        (r"<!-- \boxed{B} -->", None),
        (r"\boxed{B}. Wait, no: A.", None),
        (r"\boxed{B}. I change my mind: the answer is A.", None),
    ],
)
def test_strict_takes_the_letter_of_the_last_box(text: str, letter: str | None) -> None:
    assert letter_in(text) == letter


def test_of_two_options_both_may_be_boxed() -> None:
    assert letter_in(r"\boxed{A}? No, \boxed{B}", options=OPTIONS[:2]) == "B"


async def test_a_box_may_be_opened_in_one_message_and_closed_in_the_next() -> None:
    record = await verified(row(r"It is \boxed{", "B}"))
    assert (record["extracted_answer"], record["reward"]) == ("B", 1.0)


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        (r"\boxed{B}", "B"),
        (r"\boxed{square}", "B"),
        (r"\boxed{the  SQUARE.}", "B"),
        (r"\boxed{the SQUARE, of course}", None),
        (r"\boxed{\text{square}}", "B"),
        (r"\boxed{big square}", None),
        (r"\boxed{\mathrm{the square}}", "B"),
        (r"\boxed{foo} \boxed{circle}", "A"),
        (r"\boxed{square} \boxed{foo}", None),
        (r"\boxed{B} \boxed{circle}", "A"),
        (r"\boxed{circle} \boxed{B}", "B"),
        (r"\boxed{\text{circle}}, \boxed{B} or \boxed{C}", None),
        (r"<think>\boxed{square}</think>", None),
        (r"\boxed{circle or square}", None),
        (r"\boxed{square", None),
        ("square", None),
        (r"\boxed{B: Square}", "B"),
        (r"\boxed{(C) big square.}", "C"),
        (r"\boxed{A: Square}", None),
        (r"\boxed{not Square}", None),
        (r"\boxed{!square}", None),
        (r"\boxed{≠B}", None),
        (r"\boxed{squares}", None),
        (r"\boxed{square is wrong}", None),
        (r"It cannot be \boxed{square}.", None),
    ],
)
def test_lenient_boxed_takes_the_whole_text_of_an_option(text: str, letter: str | None) -> None:
    assert letter_in(text, BOXED) == letter


@pytest.mark.parametrize(
    ("text", "letter"), [(r"\boxed{345}", "B"), (r"\boxed{3}", "A"), (r"\boxed{34}", None), (r"\boxed{-3}", "C")]
)
def test_a_number_is_not_part_of_another_one(text: str, letter: str | None) -> None:
    assert letter_in(text, BOXED, options=[{"A": "3"}, {"B": "345"}, {"C": "-3"}]) == letter


async def test_thoughts_end_with_their_message() -> None:
    assert (await verified(row("<think>Let me see.", r"\boxed{B}")))["reward"] == 1.0


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("Answer: b", "B"),
        ("Answer:\nB", "B"),
        (r"Answer: \text{B}", "B"),
        (r"Answer: \text{\text{ b }}", "B"),
        ("ANSWER : big   SQUARE", "C"),
        ("Answer: B.", None),
        ("**Answer:** B", None),
        ("Answer: B because", None),
        ("Answer: Z", None),
        ("Answer:", None),
        ("Answer: A\nAnswer: B", "B"),
        ("Answer: B\nAnswer: A", "A"),
        ("Answer: B\nAnswer: A or C", None),
        ("The answer: my answer: B", "B"),
        (r"Answer: \mathbf{B}", "B"),
        ("Answer: A\nAnswer: B\nAnswer: C", None),
        ("<think>Answer: A</think>Answer: B", "B"),
        ("<think>Answer: B", None),
        ("Answer: B\n<think>Or A?", "B"),
        ("Answer\uff1aＢ", "B"),  # noqa: RUF001
        ("Answer: not B", None),
        ("The wrong answer: B", None),
        ("This is not the answer: B", None),
        ("Not the answer: B", None),
        ("The rejected answer: B", None),
        ("Answer: B\nThat is wrong.", None),
        ("Answer: B\nNo wait, A.", None),
        ("Answer: (B)", "B"),
        ("Answer: **B**", "B"),
        ("Answer: B) Square", "B"),
        ("Answer: B) Circle", None),
        (r"Answer: \boxed{B}", "B"),
        ("A is wrong.\nAnswer: B", "B"),
        (r"\boxed{B}", None),
    ],
)
def test_lenient_answer_colon_reads_the_line_after_the_last_colon(text: str, letter: str | None) -> None:
    assert letter_in(text, COLON) == letter


@pytest.mark.parametrize(
    ("options", "letter"),
    [
        (OPTIONS, "B"),
        ([{"b": "lower"}], "B"),
        ([{"A": "x", "B": "only the first key counts"}], None),
        ([{"BB": "not one letter"}], None),
        ([{}], None),
        ([], None),
        (None, None),
    ],
)
async def test_only_letters_of_options_are_allowed(options: Any, letter: str | None) -> None:
    assert (await verified(row(r"\boxed{B}", options=options)))["extracted_answer"] == letter


@pytest.mark.parametrize(
    ("regex", "text", "letter"),
    [
        (r"choice: (\w)", "Choice: a. No, choice: b.", "B"),
        (r"choice: (\w)", "choice: z", "Z"),
        (r"choice: \w+", r"choice: b \boxed{A}", "A"),
        (r"choice: (.*)", "choice:  Big \t square ", "C"),
        (r"choice: (.*)", "choice: B\nchoice: nothing known \\boxed{A}", "A"),
        (r"<a>(.*)</a>", "<a>\nB\n</a> \\boxed{A}", "A"),
        (r"(?s)<a>(.*)</a>", "<a>\nB\n</a> \\boxed{A}", "B"),
        (r"\b[ab]\b", "a or b", None),
        (r"choice: (\w)", "choice: C, B", None),
        (r"choice: (\w)", "choice: C/B", None),
        (r"choice: (\w)", "choice: c/b", None),
        (r"choice: (\w)", "choice: C and also B", None),
        (r"choice: (\w)", "choice: Cobalt", None),
        (r"choice: (\w)", "choice: C, since B is round", "C"),
        (r"choice: (\w)", "choice: C. B is wrong.", "C"),
        (r"choice: (\w)", "choice: b, a square", "B"),
        (r"choice: (\w)", "choice: $C$", "C"),
        (r"choice: (\w)", "choice: **C**", "C"),
        (r"choice: (\w)", r"choice: \(C\)", "C"),
        (r"choice: (\w)", r"choice: {\large C}", None),
        (r"(x)|choice: (\w)", "choice: b", "B"),
        (r"(\w)-(\w)", "a-b", "A"),
        (r"\\boxed\{([A-Z])\}", r"\boxed{B} \boxed{\text{A}}", "A"),
        (r"choice: (\w)", "choice: a, choice: b, choice: c", None),
        (r"choice: (\w)", "<think>choice: a</think>", None),
        (r"\b(circle|square)\b", "It is a square, not a circle.", "B"),
        (r"\b(circle|square)\b", "It is not a square.", None),
        (r"\b(circle|square)\b", "Square is wrong.", None),
        (r"(x)?B\d", r"B1 \boxed{A}", "A"),
        (r"\\boxed\{\s*([A-Z])\s*\}", r"It is not \boxed{B}", None),
        (r"<answer>\s*(.+?)\s*</answer>", "<answer>B</answer> is wrong", None),
        (r"<answer>\s*(.+?)\s*</answer>", "<answer>(B)</answer>", "B"),
        (r"<answer>\s*(.+?)\s*</answer>", "<answer>B.</answer>", "B"),
        (r"<answer>\s*(.+?)\s*</answer>", "<answer>**B**</answer>", "B"),
        (r"choice: (\w)", "choice: B or A", None),
        (r"choice: (\w)", "choice: B. Wait, no: A.", None),
        (r"I choose\s+([A-Z])\b", "I don't think I choose B", None),
        (r"ANSWER IS\s*([A-Z])\b", "ANSWER IS B? No!", None),
        (r"(unclosed", r"\boxed{A}", "A"),
        (r"a{99999999999999999999}", r"\boxed{A}", "A"),
    ],
)
def test_the_regex_of_a_row_goes_first(regex: str, text: str, letter: str | None) -> None:
    assert letter_in(text, regex=regex) == letter


@pytest.mark.parametrize(
    ("metadata", "letter"),
    [
        ({"output_regex": r"choice: (\w)"}, "B"),
        ({"output_regex": ""}, "A"),
        ({"output_regex": None}, "A"),
        ({"output_regex": 7}, "A"),
        ({}, "A"),
        (None, "A"),
    ],
)
async def test_a_row_brings_its_regex_in_its_template_metadata(metadata: Any, letter: str) -> None:
    record = await verified(row(r"choice: b \boxed{A}", template_metadata=metadata))
    assert record["extracted_answer"] == letter


@pytest.mark.parametrize(
    ("expected", "recorded", "reward"),
    [("B", "B", 1.0), (" b ", "B", 1.0), ("A", "A", 0.0), ("", "", 0.0), (None, "", 0.0), ("Square", "SQUARE", 0.0)],
)
async def test_the_reward_is_one_for_the_right_letter_alone(
    expected: str | None, recorded: str, reward: float
) -> None:
    record = await verified(row(r"\boxed{B}", expected_answer=expected))
    assert (record["reward"], record["expected_answer"], record["timed_out"]) == (reward, recorded, False)


@pytest.mark.parametrize(
    "options",
    [
        [{"A": "Circle"}, {"B": "Square"}, {"B": "Line"}],
        [{"b": "Square"}, {"B": "Line"}],
        [{"B": "Square"}],
        [{"A": "square "}, {"B": "Square"}],
    ],
)
def test_options_that_leave_no_clear_choice_are_refused(options: list[dict[str, str]]) -> None:
    with pytest.raises(ValueError, match="options has"):
        McqaResourcesServer.check_row({"options": options, "expected_answer": "B"})


async def test_no_answer_equals_no_expectation() -> None:
    record = await verified(row("no box", expected_answer=None))
    assert (record["reward"], record["extracted_answer"]) == (0.0, None)


async def test_the_record_holds_what_is_declared_and_no_more() -> None:
    record = await verified(row(r"\boxed{B}", uuid="u", reward_profiles=[1], metadata={"x": 1}, template_metadata={}))
    assert set(record) == {
        *("responses_create_params", "response", "reward", "expected_answer", "extracted_answer", "timed_out")
    }


REFUSAL = {**message(""), "content": [{"type": "refusal", "refusal": "No."}]}


@pytest.mark.parametrize(
    "item",
    [
        REFUSAL,
        {"type": "message", "role": "assistant", "content": r"\boxed{B}"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": r"\boxed{B}"}]},
    ],
)
async def test_what_the_model_did_not_say_scores_nothing(item: dict[str, Any]) -> None:
    record = await verified(row() | {"response": response_of(item)})
    assert (record["reward"], record["extracted_answer"]) == (0.0, None)


@pytest.mark.parametrize("bad", [{"uuid": 7}, {"grading_mode": "loose"}, {"options": "A"}, {"template_metadata": []}])
async def test_a_row_that_does_not_fit_is_refused(bad: dict[str, Any]) -> None:
    async with client_for(McqaResourcesServer) as environment:
        assert (await environment.post("/verify", json=row("B", **bad))).status == 422


async def test_a_catastrophic_regex_ends_on_time_and_the_next_row_is_not_delayed() -> None:
    hostile = row("a" * 50 + "b", template_metadata={"output_regex": CATASTROPHIC})
    async with client_for(McqaResourcesServer, check_timeout_s=0.5) as environment:
        record = (await environment.post("/verify", json=hostile)).json()
        assert (record["reward"], record["extracted_answer"], record["timed_out"]) == (0.0, None, True)
        good = row("choice: b", template_metadata={"output_regex": r"choice: (\w)"})
        assert (await environment.post("/verify", json=good)).json()["reward"] == 1.0


@pytest.mark.parametrize("mode", [STRICT, BOXED, COLON])
@pytest.mark.parametrize(
    "part", ["\\boxed{", "\\boxed{1", "answer  ", "answer:", "\\text{", "}B", " ", "answer: x\n", "\\boxed{x}"]
)
def test_no_text_takes_more_time_than_its_length(mode: GradingMode, part: str) -> None:
    started = time.process_time()
    assert letter_in(part * (1_000_000 // len(part)), mode) is None
    assert time.process_time() - started < 2


@pytest.mark.parametrize("mode", [STRICT, BOXED, COLON])
async def test_an_answer_of_five_megabytes_is_scored_off_the_loop(mode: GradingMode) -> None:
    server = server_spec("mcqa", "resources_servers", "mcqa", domain="knowledge")
    text = "x" * 5_000_000 + r"answer: \boxed{B}"
    async with running_servers([server]) as client:
        answer = await client.post("mcqa", "/verify", json=row(text, grading_mode=mode))
    record = await answer.json()
    assert (record["extracted_answer"], record["timed_out"]) == ("B", False)


def existing(folder: Path) -> Path:
    if not folder.is_dir():
        pytest.skip("the public rows are not on this machine")
    return folder


@pytest.mark.parametrize("file", ["example.jsonl", "example_with_template_metadata.jsonl"])
@pytest.mark.parametrize("folder", [OWN_ROWS, PUBLIC_ROWS], ids=["own", "public"])
async def test_the_example_rows_reward_the_right_letter(folder: Path, file: str) -> None:
    rows = rows_of(existing(folder) / file)
    assert len(rows) >= 5
    replies = {
        STRICT: r"\boxed{%s}",
        BOXED: r"\boxed{%s}",
        COLON: "Answer: %s",
        r"Option Selected:\s*([A-Za-z])\s*": "Option Selected: %s",
        r"Answer\s*:\s*(?!Answer)\s*([A-Za-z])\s*": "Answer: %s",
        r"Final Choice:\s*([A-Za-z])\s*": "Final Choice: %s",
        r"Final choice:\s*([A-Za-z])\b": "Final choice: %s",
        r"ANSWER IS\s*([A-Za-z])\s*": "ANSWER IS %s",
        r"ANSWER IS\s*([A-Za-z])\b": "ANSWER IS %s",
        r"<answer>\s*(.+?)\s*</answer>": "<answer>%s</answer>",
        r"\\boxed\{\s*([A-Za-z])\s*\}": r"\boxed{%s}",
        r"I choose\s+([A-Za-z])\b|my option is\s+([A-Za-z])\b": "my option is %s",
    }
    async with client_for(McqaResourcesServer) as environment:
        for one in rows:
            way = one["template_metadata"]["output_regex"] if "template_metadata" in one else one["grading_mode"]
            right, wrong = one["expected_answer"], "A" if one["expected_answer"] != "A" else "B"
            for letter, reward in ((right, 1.0), (wrong, 0.0)):
                answer = await environment.post("/verify", json={**one, "response": says(replies[way] % letter)})
                assert answer.json()["reward"] == reward, one
