from nemo_gym.common.paths import PARENT_DIR
from nemo_gym.testing import rows_of
from tests.reward_hacks.hack import Hack, alternatives, hidden

LEGS = rows_of(PARENT_DIR / "resources_servers/reasoning_gym/data/example.jsonl")[0]
"""Two grasshoppers have 12 legs."""

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
]
