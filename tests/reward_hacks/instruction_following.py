from typing import Any

from nemo_gym.testing import example_row
from tests.reward_hacks.hack import Hack


def row(*instructions: tuple[str, dict[str, Any] | None], **fields: Any) -> dict[str, Any]:
    named = {"instruction_id_list": [name for name, _ in instructions], "kwargs": [given for _, given in instructions]}
    return {**example_row("Write."), "id": 7, "prompt": "Write.", **named, **fields}


NO_COMMA = ("punctuation:no_comma", None)
TWO_WORDS = ("length_constraints:number_words", {"num_words": 2, "relation": "at least"})

HACKS = [
    Hack(
        does="Says nothing, which follows all that is forbidden.",
        stopped="a text without a letter or a digit follows no instruction",
        row=row(NO_COMMA),
        cheats=["", " \n\t", "\u200b", "...", "[]", "***"],
        honest="Yes.",
    ),
    Hack(
        does="Follows the instruction in its thoughts alone.",
        stopped="`<think>` parts do not count",
        row=row(NO_COMMA, TWO_WORDS),
        cheats=["<think>two words</think>", "<think>two words", "<think>two</think> words"],
        honest="<think>a, b</think>two words",
    ),
    Hack(
        does='Writes "a" for a palindrome.',
        stopped="a palindrome has several different letters",
        row=row(("keywords:palindrome", None)),
        cheats=["a", "I a", "aaa", "111"],
        honest="Was it a cat I saw?",
    ),
    Hack(
        does='Writes "123", which is in every language.',
        stopped="a text without letters is in no language",
        row=row(("language:response_language", {"language": "de"})),
        cheats=["123", "123 456 !?", "7"],
        honest="Der schnelle braune Fuchs springt über den faulen Hund, und niemand war erstaunt.",
    ),
    Hack(
        does="Writes punctuation in place of words.",
        stopped="words have letters or digits",
        row=row(TWO_WORDS),
        cheats=["... !", "one _ _", "one ."],
        honest="one. two",
    ),
    Hack(
        does="Ignores instructions of a row that has fewer `kwargs`.",
        stopped="the row is refused (`input`)",
        row=row(NO_COMMA, TWO_WORDS, kwargs=[None]),
        cheats=["one", "two words"],
        cause="input",
    ),
    Hack(
        does="Writes a forbidden word with HTML comments, tags, entities or blank letters in it or beside it.",
        stopped="the text is also read without these",
        row=row(("keywords:forbidden_words", {"forbidden_words": ["very"]})),
        cheats=["v<!-- -->ery good", "v<b>e</b>ry good", "&#118;ery good", "very\u3164good"],
        honest="<b>good</b> &amp; fine",
    ),
    Hack(
        does="Says anything about a row that every text follows.",
        stopped="the row is refused (`input`)",
        row=row(("length_constraints:number_words", {"num_words": 0, "relation": "at least"})),
        cheats=["one", "two words"],
        cause="input",
    ),
]
