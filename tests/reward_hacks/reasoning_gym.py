from nemo_gym.common.paths import PARENT_DIR
from nemo_gym.testing import rows_of
from tests.reward_hacks.hack import Hack

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
        cheats=["Not <answer>12</answer>", "<answer>12</answer> is wrong.", "<!--<answer>12</answer>-->"],
        honest="<answer>10</answer> is wrong: <answer>12</answer>",
    ),
    Hack(
        does="Says anything about a row without an answer, or whose answer its dataset does not accept.",
        stopped="the row is refused (`input`)",
        row={**LEGS, "answer": ""},
        cheats=["", "<answer></answer>", "<answer>12</answer>"],
        cause="input",
    ),
]
