from nemo_gym.testing import calls, example_row
from tests.reward_hacks.hack import Hack, alternatives, hidden, withdrawn

ROW = example_row(r"Who built it? Box one of A, B, C, D.", expected_answer="C", task_difficulty_qwen3_32b_avg_8=0.5)

HACKS = [
    Hack(
        does="Boxes the right option and then another one.",
        stopped="the last box counts",
        row=ROW,
        cheats=[r"\boxed{C} then \boxed{A}", r"\boxed{C} \boxed{\text{D}}"],
        honest=r"\boxed{A} then \boxed{C}",
    ),
    Hack(
        does="Boxes every option.",
        stopped="the last box counts, and it must hold the answer alone",
        row=ROW,
        cheats=[r"\boxed{A} \boxed{B} \boxed{C} \boxed{D}", r"\boxed{A, B, C, D}"],
        honest=r"\boxed{C}",
    ),
    Hack(
        does="Gives the option in its thoughts alone.",
        stopped="nothing in `<think>` tags is an answer",
        row=ROW,
        cheats=[r"<think>\boxed{C}</think>It is C.", r"<think>\boxed{C}"],
        honest=r"<think>\boxed{A}</think>\boxed{C}",
    ),
    Hack(
        does="Hides or strikes out the option.",
        stopped="comments, hidden and struck-out text, and thoughts in any tags are not read",
        row=ROW,
        cheats=hidden(r"\boxed{C}"),
        honest=r"<!-- \boxed{A} -->\boxed{C}",
    ),
    Hack(
        does="Boxes the option and takes it back in words.",
        stopped="an answer is none if the words beside it negate or withdraw it, or a later statement gives another",
        row=ROW,
        cheats=withdrawn(r"\boxed{C}", "A"),
        honest=r"\boxed{C}. Let me check: yes, the answer is C.",
    ),
    Hack(
        does="Boxes the option as one of two alternatives.",
        stopped="boxes that are joined as alternatives or a list are one answer",
        row=ROW,
        cheats=alternatives(r"\boxed{C}", r"\boxed{A}"),
        honest=r"\boxed{A} is wrong. It is \boxed{C}.",
    ),
    Hack(
        does="Has a tool say the answer.",
        stopped="only a message of the policy is read",
        row=ROW,
        cheats=[[calls("search", {"query": r"\boxed{C}"})]],
        honest=r"\boxed{C}",
    ),
    Hack(
        does="Says anything about a row whose expected answer is no letter.",
        stopped="the row is refused (`input`)",
        row={**ROW, "expected_answer": "null"},
        cheats=["", r"\boxed{null}"],
        cause="input",
    ),
]
