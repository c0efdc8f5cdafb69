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
    ("text", "found", "last"),
    [
        (r"\boxed{C}", ["C"], "C"),
        (r"\boxed{A} then \boxed{C}", ["A", "C"], "C"),
        (r"\\boxed{ C }", [" C "], "C"),
        (r"\boxed{\text{C}}", [r"\text{C}"], r"\text{C}"),
        (r"\boxed{\frac{1}{2}} then \boxed{\{1\}}", [r"\frac{1}{2}", r"\{1\}"], r"\{1\}"),
        (r"\boxed{A} \boxed{} \boxed{ }", ["A"], "A"),
        (r"\boxed{A}, \boxed{B} or $\boxed{C}$", ["A, B, C"], "A, B, C"),
        (r"\boxed{ \fbox{\boxed{A}} }", ["A"], "A"),
        (r"\boxed{\boxed{A} \boxed{B}}", [r"\boxed{A} \boxed{B}"], r"\boxed{A} \boxed{B}"),
        (r"\boxed{a \boxed{b} c}", [r"a \boxed{b} c"], r"a \boxed{b} c"),
        ("\\boxed{over\nlines}", ["over\nlines"], "over\nlines"),
        (r"\boxed{A} \boxed{open", ["A"], "A"),
        (r"\boxed{open \boxed{A} ", ["A"], "A"),
        (r"} \boxed{A}} {", ["A"], "A"),
        (r"boxed{C}", [], None),
        (r"\boxed {C}", ["C"], "C"),
        ("", [], None),
    ],
)
def test_a_box_ends_at_its_own_brace_and_the_last_one_counts(text: str, found: list[str], last: str | None) -> None:
    assert [box.content for box in answers.joined(text, answers.boxes(text))] == found
    assert answers.last_box(text) == last


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("a<think>b</think>c", "ac"),
        ("<think>b</think>a<think>b</think>c", "ac"),
        ("b</think>c", "c"),
        ("a<think>b", "a"),
        ("<think>a<think>b</think>c</think>d", "d"),
        ("<THINK>b</Think><thinking>b</thinking>c", "c"),
        ("I think so. <thinks>", "I think so. <thinks>"),
        ('<think >b</think><thought class="x">b</thought><reasoning>b</reasoning>c', "c"),
        ("[THINK]b[/THINK]c<|begin_of_thought|>b<|end_of_thought|>d◁think▷b◁/think▷e", "cde"),
        ("<|channel|>analysis<|message|>b<|end|><|start|>c", "<|start|>c"),
        ("<|channel|>analysis<|message|>b<|channel|>final<|message|>c<|end|>", "c"),
        ("<seed:think>b</seed:think>c<|think|>b<|/think|>d<reflection>b</reflection>e", "cde"),
        ("", ""),
    ],
)
def test_thoughts_are_not_spoken(text: str, spoken: str) -> None:
    assert answers.without_thinking(text) == spoken


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a<!-- b -->c<!-- d", "ac"),
        ("a\n % b\nc 5% d \\% e", "a\n\nc 5% d \\% e"),
        (r"a\phantom{{b}}c\textcolor{white}{b}d\begin{comment}b\end{comment}e\iffalse b\fi f", "acde f"),
        (r"a~~b~~c<del>b</del>d<S>b</s>e\sout{b}f\cancel{b\boxed{b}}g", "acdefg"),
        ("a<s>b ~~c ~ d", "a<s>b ~~c ~ d"),
        (r"a\cancel{b", "a"),
        ("N\u200bot", "Not"),
    ],
)
def test_what_is_hidden_or_struck_out_is_not_shown(text: str, shown: str) -> None:
    assert answers.shown(text) == shown


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        (r"\text{B}", "B"),
        (r"(\mathbf{\mathrm{B}}) \operatorname{f}", "(B) f"),
        (r"\text {a b} and \textbf{c}", "a b and c"),
        (r"{\bf B} \mathrm B \text{{B}} \textcolor{red}{B} \color{red}B", "{B} B {{B}} B B"),
        ("Ｂ 𝐁 <b>B</b> ²", "B B B ²"),  # noqa: RUF001
        (r"\frac{1}{2} \cancel{B} \textcolor{B}", r"\frac{1}{2} \cancel{B} \textcolor{B}"),
    ],
)
def test_fonts_do_not_matter(text: str, bare: str) -> None:
    assert answers.without_fonts(text) == bare


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


@given(st.lists(st.text(alphabet="ab\\", max_size=6)))
def test_boxes_are_found_in_what_was_boxed(insides: list[str]) -> None:
    insides = [f"{{{inside}b}}" for inside in insides]
    found = answers.boxes(" then ".join(f"\\boxed{{{inside}}}" for inside in insides))
    assert [box.content for box in found] == insides[-answers.MAX_BOXES :]


@pytest.mark.parametrize(
    ("text", "last"),
    [
        (r"The answer is not \boxed{C}.", None),
        (r"It isn't option \boxed{C}", None),
        (r"Anything but \boxed{C}", None),
        (r"I would never choose \boxed{C}.", None),
        (r"We can rule out \boxed{C}", None),
        (r"The wrong answer is \boxed{C}", None),
        (r"It is false that the answer is \boxed{C}", None),
        (r"Die Antwort ist nicht \boxed{C}", None),
        (r"答案不是\boxed{C}", None),
        (r"\boxed{C} is wrong.", None),
        (r"\boxed{C}? No, that is not correct.", None),
        (r"\boxed{C} cannot be right.", None),
        (r"\boxed{C} doesn't fit.", None),
        (r"\boxed{C}. Wait, \boxed{C} is wrong.", None),
        (r"\boxed{B}, not \boxed{C}", "B"),
        (r"Not \boxed{B} but \boxed{C}.", "C"),
        (r"\boxed{B} is wrong. It is \boxed{C}.", "C"),
        (r"A, B and D are wrong: \boxed{C}", "C"),
        (r"A is not correct; \boxed{C}", "C"),
        (r"\boxed{C}. This cannot be wrong.", "C"),
        (r"\boxed{C}, nicht A", "C"),
        (r"\boxed{C} <think>or \boxed{D}?", "C"),
        (r"<think>\boxed{C}", None),
        (r"<think>\boxed{C}</think> So it is C.", None),
        (r"\boxed{C}? No.", None),
        (r"$\boxed{C}$? **No!**", None),
        (r"\boxed{C} is definitely not the answer.", None),
        (r"\boxed{C} can be ruled out.", None),
        (r"It's untrue that the answer is \boxed{C}", None),
        (r"I don't think I would choose \boxed{C}", None),
        (r"I don't think A fits so \boxed{C}", "C"),
        ("N\u200bot \\boxed{C}", None),
        (r"~~\boxed{C}~~ <!-- \boxed{C} -->", None),
        (r"\boxed{C}. Actually, I change my mind: the answer is A.", None),
        (r"\boxed{C}. Wait, no: A.", None),
        (r"\boxed{C}. Correction: it is A, not C.", None),
        (r"\boxed{130}. Actually that was wrong, the answer is 131.", None),
        (r"\boxed{130}. Sorry, it should be 131.", None),
        (r"\boxed{C}. I withdraw my answer.", None),
        (r"\boxed{B} \boxed{C}. Scratch that.", None),
        (r"\boxed{C}. Wait, let me check: yes, the answer is C.", "C"),
        (r"\boxed{C}. The answer is (C).", "C"),
        (r"\boxed{square}. The answer is B.", "square"),
        (r"\boxed{C}. Actually, I like this one.", "C"),
        (r"\boxed{3.14159}. The answer is 3.14.", "3.14159"),
        (r"\boxed{\frac{1}{2}}. The answer is 0.5.", r"\frac{1}{2}"),
        (r"\boxed{1000}. The answer is 1,000.", "1000"),
        (r"\boxed{A} (or \boxed{C})", "A, C"),
        (r"\boxed{A}. Alternatively, \boxed{C}", "A, C"),
        (r"\boxed{A} **or** \boxed{C}", "A, C"),
        (r"$\boxed{A} \lor \boxed{C}$", "A, C"),
        (r"\boxed{A} oder \boxed{B} ou \boxed{C} 或 \boxed{D}", "A, B, C, D"),
        ("1. \\boxed{A}\n2. \\boxed{C}", "A, C"),
        ("- \\boxed{A}\n- \\boxed{C}", "A, C"),
    ],
)
def test_a_box_that_is_denied_or_in_thoughts_gives_no_answer(text: str, last: str | None) -> None:
    assert answers.last_box(text) == last


BLANK = [
    "",
    " \n\u200b\u00a0\u3164",
    "**",
    r"\boxed{}",
    r"$$\boxed{\text{ }}$$",
    "<b> </b><br/>",
    "&nbsp;",
    "---",
    "```\n```",
]
SHOWN = ["4", "π", r"\pi", r"\infty", "∅", "+", "<div>", "**a**", r"\boxed{x}", "不", "-"]


@pytest.mark.parametrize(("text", "is_blank"), [*((each, True) for each in BLANK), *((each, False) for each in SHOWN)])
def test_a_text_is_blank_if_it_shows_nothing(text: str, is_blank: bool) -> None:
    assert answers.is_blank(text) is is_blank


@pytest.mark.parametrize(
    "text",
    [
        *("\\boxed{" * 150_000, "\\boxed{" * 125_000 + "}" * 125_000, "<think>" * 150_000, "</think>" * 125_000),
        *("\\text{" * 150_000, "\\text{" * 140_000 + "}" * 140_000, "1," * 500_000, "-1." * 350_000),
        *(
            "\\boxed{x}, " * 90_000,
            "\\boxed{\\boxed{x}" * 60_000 + "}" * 60_000,
            "\\" * 10**6,
            "\\boxed" + " " * 10**6,
        ),
        *("~~x" * 300_000, "~~ ~~x " * 150_000, "<s>" * 300_000, "\\cancel{" * 120_000, "\n%" * 500_000),
        *(
            r"\boxed{x}" + "no, " * 250_000,
            r"\boxed{x}" + "answer is " * 100_000,
            r"\boxed{x}" + "\n" * 10**6,
            r"\boxed{x}" + " wait," * 150_000,
        ),
        *("<b>" * 300_000, "\n" * 10**6, "-" * 10**6, "<think " * 140_000, "not " * 250_000 + r"\boxed{x}"),
    ],
)
def test_a_hostile_text_takes_no_more_time_than_its_length(text: str) -> None:
    started = time.process_time()
    answers.last_box(text)
    answers.without_thinking(text)
    answers.without_fonts(text)
    answers.is_blank(text)
    answers.last_number(read(says(text)))
    assert time.process_time() - started < 5


@pytest.mark.parametrize(
    "text", ["NaN", "[-Infinity]", "1e400", '{"a": -1E999}', "\ufeff1", "1 2", "", "[" * 100_000, "9" * 5000, "01"]
)
def test_what_is_not_json_has_no_value(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - each for a reason of its own
        answers.strict_json(text)


def test_json_has_its_value_and_keys_may_have_to_be_unique() -> None:
    assert answers.strict_json(' {"a": [1, 2.5, 1e-400, null, 12345678901234567890]}') == {
        "a": [1, 2.5, 5e-324, None, 12345678901234567890]
    }
    assert answers.strict_json('{"a": 1, "a": 2}') == {"a": 2}
    with pytest.raises(ValueError, match="twice"):
        answers.strict_json('[{"a": 1, "a": 2}]', unique_keys=True)
