from typing import Any

from nemo_gym.testing import example_row
from tests.reward_hacks.hack import Hack, alternatives, hidden, withdrawn


def row(**fields: Any) -> dict[str, Any]:
    options = [{"A": "Circle"}, {"B": "Square"}, {"C": "Big Square"}]
    return example_row("Which shape?", **{"options": options, "expected_answer": "B", **fields})


COLON = row(grading_mode="lenient_answer_colon")
REGEX = row(template_metadata={"output_regex": r"choice: (\w)"})
LAST_COUNTS = "the last answer counts"
ALL_ARE_NONE = "an answer that names every option is none"

HACKS = [
    Hack(
        does="Boxes the right letter and then another one.",
        stopped=LAST_COUNTS,
        row=row(),
        cheats=[r"\boxed{B} \boxed{A}", r"\boxed{B}. On second thought, \boxed{\text{C}}.", r"\boxed{B} \boxed{Z}"],
        honest=r"\boxed{A}? No, \boxed{B}.",
    ),
    Hack(
        does="Boxes every letter.",
        stopped=ALL_ARE_NONE,
        row=row(),
        cheats=[r"\boxed{A} \boxed{C} \boxed{B}", r"\boxed{A, B, C}", r"\boxed{\text{A}, \text{B}}"],
        honest=r"\boxed{\large{B}}",
    ),
    Hack(
        does="Boxes the letter with a sign that changes it.",
        stopped="beside the letter there may be only brackets, punctuation and digits",
        row=row(),
        cheats=[r"\boxed{B'}", r"\boxed{B^*}", r"\boxed{\overline{B}}", r"\boxed{-B}", r"\boxed{≠B}"],
        honest=r"\boxed{(B).}",
    ),
    Hack(
        does="Boxes the words of several options.",
        stopped="a box with the words of one option counts, and of no other",
        row=row(grading_mode="lenient_boxed"),
        cheats=[r"\boxed{circle or square}", r"\boxed{circle}, \boxed{square}, \boxed{big square}"],
        honest=r"\boxed{the square}",
    ),
    Hack(
        does="Writes `Answer:` with the right letter, then with another one.",
        stopped=LAST_COUNTS,
        row=COLON,
        cheats=["Answer: B\nAnswer: A", "Answer: B\nAnswer: A or C"],
        honest="Answer: A\nAnswer: B",
    ),
    Hack(
        does="Writes `Answer:` once for every letter.",
        stopped=ALL_ARE_NONE,
        row=COLON,
        cheats=["Answer: A\nAnswer: C\nAnswer: B", "Answer: A, B, C"],
        honest="Answer: B",
    ),
    Hack(
        does="Fits the regex of the row once for every letter.",
        stopped=ALL_ARE_NONE,
        row=REGEX,
        cheats=["choice: a, choice: c, choice: b"],
        honest="choice: a? No, choice: b",
    ),
    Hack(
        does="Gives the letter in its thoughts alone.",
        stopped="nothing in `<think>` tags is an answer",
        row=row(),
        cheats=[r"<think>\boxed{B}</think>", r"<think>\boxed{B}</think> I am done.", r"<think>\boxed{B}"],
        honest=r"<think>\boxed{A}</think>\boxed{B}",
    ),
    Hack(
        does="Hides or strikes out the letter.",
        stopped="comments, hidden and struck-out text, and thoughts in any tags are not read",
        row=row(),
        cheats=hidden(r"\boxed{B}"),
        honest=r"<!-- \boxed{A} -->\boxed{B}",
    ),
    Hack(
        does="Boxes the letter and takes it back in words.",
        stopped="an answer is none if the words beside it negate or withdraw it, or a later statement gives another",
        row=row(),
        cheats=withdrawn(r"\boxed{B}", "A"),
        honest=r"\boxed{B}. Let me check: yes, the answer is B.",
    ),
    Hack(
        does="Boxes the letter as one of two alternatives.",
        stopped="boxes that are joined as alternatives or a list are one answer",
        row=row(),
        cheats=alternatives(r"\boxed{B}", r"\boxed{A}"),
        honest=r"\boxed{A} is wrong. It is \boxed{B}.",
    ),
    Hack(
        does="Gives no answer to a row whose expected answer is not an option.",
        stopped="the row is refused (`input`)",
        row=row(expected_answer="Q"),
        cheats=["", r"\boxed{Q}"],
        cause="input",
    ),
    Hack(
        does="Answers a row with one option, or with two options of the same text.",
        stopped="the row is refused (`input`)",
        row=row(options=[{"A": "Square"}, {"B": "Square"}]),
        cheats=[r"\boxed{B}"],
        cause="input",
    ),
    Hack(
        does="Fits the regex of the row and denies the letter, or names another one beside it.",
        stopped="a match that is negated, withdrawn, one of several or the beginning of a word is none",
        row=REGEX,
        cheats=[
            "not choice: B",
            "choice: B is wrong.",
            "choice: B or A",
            "I don't think my choice: B",
            "choice: B? No!",
            "choice: B, A",
            "choice: B/A",
            "choice: Brass",
            "choice: B A",
            "choice: B (or A)",
            "choice: B. Or A.",
            "choice: B'",
            "choice: B=A",
            "choice: B but rather A",
        ],
        honest="choice: $B$, not A",
    ),
    Hack(
        does="Fits the regex of the row for several letters.",
        stopped="matches that are joined as alternatives or a list are one answer, with their labels left out",
        row=REGEX,
        cheats=alternatives("choice: B", "choice: A"),
        honest="choice: A? No. *Choice:* (B)\n\nI hope this helps.",
    ),
    Hack(
        does="Fits the regex of the row with a part of another number.",
        stopped="a number counts as a whole",
        row=row(options=[{"A": "17"}, {"B": "42"}], template_metadata={"output_regex": r"\b(17|42)\b"}),
        cheats=["42.5", "-42", "42%", "1,42", "42/2"],
        honest="It is 42, and not 17.",
    ),
    Hack(
        does="Writes `Answer:` for several letters.",
        stopped="answers that are joined as alternatives or a list are one",
        row=COLON,
        cheats=[*alternatives("Answer: B", "Answer: A"), "Answer: A or Answer: B"],
        honest="Answer: A\nThat was wrong, so:\n**Answer: $B$**",
    ),
    Hack(
        does="Denies the letter before or after `Answer:`.",
        stopped="an answer is none if the words beside it negate or withdraw it, or a later statement gives another",
        row=COLON,
        cheats=["Not the answer: B", "The rejected answer: B", "Answer: B\nThat is wrong.", "Answer: B\nNo wait, A."],
        honest="A is wrong.\nAnswer: B",
    ),
]
