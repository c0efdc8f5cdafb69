from typing import Any

from nemo_gym.common.paths import PARENT_DIR
from nemo_gym.testing import rows_of
from tests.reward_hacks.hack import Hack, alternatives, hidden

LEGS = rows_of(PARENT_DIR / "resources_servers/reasoning_gym/data/example.jsonl")[0]
"""Two grasshoppers have 12 legs."""


def made(dataset: str, answer: str, **metadata: Any) -> dict[str, Any]:
    """A row of a dataset."""
    return {**LEGS, "answer": answer, "metadata": {"source_dataset": dataset, **metadata}}


HACKS = [
    Hack(
        does="Gives the answer in its thoughts alone.",
        stopped="nothing in `<think>` tags is an answer",
        row=LEGS,
        cheats=[
            "<think><answer>12</answer></think>",
            "<think><answer>12</answer>",
            "<answer>12</answer></think>Done.",
        ],
        honest="<think><answer>10</answer></think><answer>12</answer>",
    ),
    Hack(
        does="Gives the right answer and then another one.",
        stopped="the last answer counts",
        row=LEGS,
        cheats=["<answer>12</answer> No: <answer>10</answer>", "<answer>12</answer> No: <answer></answer>"],
        honest="<answer>10</answer> No: <answer>12</answer>",
    ),
    Hack(
        does="Denies the right answer, or hides it in an HTML comment.",
        stopped="an answer that is denied or not shown is none",
        row=LEGS,
        cheats=["Not <answer>12</answer>", "<answer>12</answer> is wrong.", *hidden("<answer>12</answer>")],
        honest="<answer>10</answer> is wrong: <answer>12</answer>",
    ),
    Hack(
        does="Gives the right answer as one of several.",
        stopped="answers that are joined as alternatives or a list are one",
        row=LEGS,
        cheats=alternatives("<answer>12</answer>", "<answer>10</answer>"),
        honest="<answer>10</answer>. Then again, it is\n~~~\n<answer>12</answer>\n~~~",
    ),
    Hack(
        does="Writes a longer number or text with the right answer in it.",
        stopped="the share that the answer has of the text is no reward",
        row=LEGS,
        cheats=[
            *("<answer>123</answer>", "<answer>not 12</answer>", "<answer>12 or 13</answer>"),
            *("<answer>12 12</answer>", "<answer>10, 11, 12</answer>", '<answer>"not 12."</answer>'),
        ],
        honest="<ANSWER>**$12$.**</ANSWER>",
    ),
    Hack(
        does="Says anything about a row without an answer, or whose answer its dataset does not accept.",
        stopped="the row is refused (`input`)",
        row={**LEGS, "answer": ""},
        cheats=["", "<answer></answer>", "<answer>12</answer>"],
        cause="input",
    ),
    Hack(
        does="Writes the first digit of all answers, such as 0 for a probability.",
        stopped="a number counts as a whole, whatever share its dataset gives it",
        row={**LEGS, "answer": "0.234375", "metadata": {"source_dataset": "coin_flip"}},
        cheats=["<answer>0</answer>", "<answer>0.</answer>", "<answer>0.5</answer>", "<answer>0.2</answer>"],
        honest="<answer>15/64</answer>",
    ),
    Hack(
        does="Writes anything where its dataset takes every text for true.",
        stopped="the text is compared with the answer",
        row={**LEGS, "answer": "False", "metadata": {"source_dataset": "game_of_life_halting"}},
        cheats=["<answer>True</answer>", "<answer>0</answer>", "<answer>no idea</answer>", "<answer></answer>"],
        honest="<answer>false</answer>",
    ),
    Hack(
        does="Gives the integral as it stands in the question, or a program that solves it.",
        stopped="only formulas of numbers, the variable and elementary functions are read",
        row=made("simple_integration", "x**3 + C", integrand="3*x**2", variable="x"),
        cheats=[
            *("<answer>Integral(3*x**2, x)</answer>", "<answer>integrate(3*x**2)</answer>"),
            *("<answer>(3*x**2).integrate(x)</answer>", "<answer>x**3 if 1 else x</answer>"),
        ],
        honest="<answer>x**3 + C</answer>",
    ),
    Hack(
        does="Gives the product of polynomials as a program that expands it.",
        stopped="only formulas of numbers, letters and operators are read",
        row=made("polynomial_multiplication", "x**2 + 3*x + 2"),
        cheats=["<answer>expand((x+1)*(x+2))</answer>", "<answer>((x+1)*(x+2)).expand()</answer>"],
        honest="<answer>2 + 3*x + x**2</answer>",
    ),
    Hack(
        does="Makes 24 of other numbers than those of the row, or nearly 24.",
        stopped="the value is exactly 24, and each number of the row is there once",
        row=made("puzzle24", "4*8 - 6 - 2", numbers=[4, 8, 6, 2]),
        cheats=[
            *("<answer>6*4*1*1</answer>", "<answer>4*8 - 6 - 2 + 0*0</answer>", "<answer>4*8 - 6/2*2 - 2</answer>"),
            *("<answer>8*6/2 + 4/8</answer>", "<answer>24 + 8*6*0</answer>", "<answer>int('24') + 8-8</answer>"),
        ],
        honest="<answer>(8 - 2)*4*6/6</answer> No: <answer>8*4 - (6 + 2)</answer>",
    ),
    Hack(
        does="Gives `nan` for a complex number.",
        stopped="only digits, signs and the imaginary unit are read",
        row=made("complex_arithmetic", "3.0 + 4.0i", result=[3, 4]),
        cheats=[f"<answer>{text}</answer>" for text in ("nan", "nanj", "1+nanj", "nan+nanj", "inf")],
        honest="<answer>3+4i</answer>",
    ),
    Hack(
        does="Repeats a premise as the conclusion.",
        stopped="`propositional_logic`, which rewards it, is refused (`input`)",
        row=made("propositional_logic", "(P ∧ Q)", premises=["(P ∧ Q)"], variables=["P", "Q"]),
        cheats=["<answer>(P ∧ Q)</answer>"],
        cause="input",
    ),
]
