"""Every instruction: texts that follow it and texts that do not."""

import re
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.compute import LONG_TEXT
from resources_servers.instruction_following.checks import (
    CHECKS,
    PATTERNED,
    SLOW,
    followed,
    may_take_long,
    parsed_arguments,
)
from resources_servers.instruction_following.sentences import sentences
from resources_servers.instruction_following.tests.cases import AT_LEAST, BY_ID, CASES, LESS_THAN, SILENT, Case
from resources_servers.instruction_following.tokens import _sentence_tokenizer, punkt_sentences, tokens


def is_followed(name: str, arguments: dict[str, Any] | None, text: str) -> bool:
    return followed(text, [(name, arguments)])[0]


def test_there_are_54_instructions_and_each_has_its_cases() -> None:
    assert len(CHECKS) == 54
    assert set(BY_ID) == set(CHECKS)
    assert all(case.followed_by and case.broken_by for case in BY_ID.values())


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name} {case.arguments or ''}")
def test_an_instruction_distinguishes_texts(case: Case) -> None:
    assert [text for text in case.followed_by if not is_followed(case.name, case.arguments, text)] == []
    assert [text for text in case.broken_by if is_followed(case.name, case.arguments, text)] == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name} {case.arguments or ''}")
def test_a_text_that_says_nothing_follows_no_instruction(case: Case) -> None:
    assert [text for text in SILENT if is_followed(case.name, case.arguments, text)] == []


WITH_ARGUMENTS = [case for case in BY_ID.values() if case.arguments]


@pytest.mark.parametrize("case", WITH_ARGUMENTS, ids=lambda case: case.name)
def test_a_missing_argument_is_refused(case: Case) -> None:
    arguments = case.arguments or {}
    for name in arguments:
        rest = {key: value for key, value in arguments.items() if key != name}
        for incomplete in (rest, rest | {name: None}):
            with pytest.raises(ValueError, match=f"'{case.name}'.*'{name}'"):
                parsed_arguments(case.name, incomplete)
    with pytest.raises(ValueError, match=case.name):
        parsed_arguments(case.name, None)


@pytest.mark.parametrize("case", BY_ID.values(), ids=lambda case: case.name)
def test_an_unknown_argument_is_refused_but_a_null_is_none(case: Case) -> None:
    for unknown in ("unknown", "text"):
        with pytest.raises(ValueError, match=f"'{unknown}'"):
            parsed_arguments(case.name, {**(case.arguments or {}), unknown: 1})
    assert is_followed(case.name, {**(case.arguments or {}), "unknown": None}, case.followed_by[0])


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("keywords:existence", {"keywords": []}),
        ("keywords:existence", {"keywords": "sun"}),
        ("keywords:existence", {"keywords": ["("]}),
        ("keywords:existence", {"keywords": ["a{99999999999999999999}"]}),
        ("keywords:existence", {"keywords": ["(" * 10_000 + ")" * 10_000]}),
        ("keywords:existence", {"keywords": [1]}),
        ("keywords:forbidden_words", {"forbidden_words": ["("]}),
        ("keywords:forbidden_words", {"forbidden_words": [""]}),
        ("keywords:word_once", {"keyword": ""}),
        ("keywords:frequency", {"keyword": "ab", "frequency": 1, "relation": "at most"}),
        ("keywords:frequency", {"keyword": " ", "frequency": 0, "relation": AT_LEAST}),
        ("keywords:frequency", {"keyword": "ab", "frequency": -1, "relation": AT_LEAST}),
        ("keywords:frequency", {"keyword": "ab", "frequency": "1", "relation": AT_LEAST}),
        ("keywords:letter_frequency", {"letter": "ä", "let_frequency": 0, "let_relation": AT_LEAST}),
        ("keywords:letter_frequency", {"letter": "ab", "let_frequency": 0, "let_relation": AT_LEAST}),
        ("keywords:letter_frequency", {"letter": "#", "let_frequency": 0, "let_relation": AT_LEAST}),
        ("detectable_content:postscript", {"postscript_marker": "("}),
        ("keywords:keyword_specific_position", {"keyword": "a", "n": 0, "m": 1}),
        ("keywords:keyword_specific_position", {"keyword": "a", "n": 1, "m": 0}),
        ("length_constraints:nth_paragraph_first_word", {"num_paragraphs": 1, "nth_paragraph": 0, "first_word": "a"}),
        ("last_word:last_word_sent", {"last_word": []}),
        ("last_word:last_word_answer", {"last_word": ["a"]}),
        ("copy:repeat_phrase", {"phrase": "a b", "small_n": 0}),
        ("copy:copying_multiple", {"prompt_to_repeat": "a", "N": 1.5}),
        ("copy:copy", {"prompt_to_repeat": "..."}),
        ("new:copy_span_idx", {"prompt_to_repeat": "a ... b", "n_start": 1, "n_end": 6}),
        ("new:copy_span_idx", {"prompt_to_repeat": "abc", "n_start": 2, "n_end": 2}),
        ("first_word:first_word_answer", {"first_word": "!"}),
        ("language:response_language", {"language": "zh-cn"}),
        ("length_constraints:number_paragraphs", {"num_paragraphs": 0}),
        ("length_constraints:nth_paragraph_first_word", {"num_paragraphs": 1, "nth_paragraph": 2, "first_word": "a"}),
        ("new:copy_span_idx", {"prompt_to_repeat": "a", "n_start": -1, "n_end": 1}),
        ("no:such_instruction", {}),
        ("length_constraints:number_words", {"num_words": 1, "relation": LESS_THAN}),
        ("length_constraints:number_words", {"num_words": 0, "relation": AT_LEAST}),
        ("length_constraints:number_sentences", {"num_sentences": 1, "relation": LESS_THAN}),
        ("keywords:frequency", {"keyword": "a", "frequency": 0, "relation": LESS_THAN}),
        ("keywords:frequency", {"keyword": "a", "frequency": 0, "relation": AT_LEAST}),
        ("letters:letter_counting", {"N": 0, "relation": LESS_THAN}),
        ("letters:letter_counting2", {"letter": "a", "let_frequency": 0, "let_relation": AT_LEAST}),
        ("count:count_increment_word", {"keyword1": "a", "keyword2": "a"}),
        ("count:count_increment_word", {"keyword1": "cat", "keyword2": "Catalog"}),
        ("detectable_format:number_highlighted_sections", {"num_highlights": 0}),
        ("detectable_format:multiple_sections", {"section_spliter": "Part", "num_sections": 0}),
    ],
)
def test_a_bad_argument_is_refused(name: str, bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"'{name}'"):
        parsed_arguments(name, bad)


def test_a_count_may_be_written_as_a_float() -> None:
    assert is_followed("length_constraints:number_words", {"num_words": 2.0, "relation": AT_LEAST}, "a b")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        ("One two", ["One two"]),
        ("One. Two! Three?", ["One.", "Two!", "Three?"]),
        ("One.\nTwo", ["One.", "Two"]),
        (
            "Mr. Fox met Mrs. Hen, Ms. Owl, Dr. Who and St. Paul.",
            ["Mr. Fox met Mrs. Hen, Ms. Owl, Dr. Who and St. Paul."],
        ),
        ("See example.com or a.io now.", ["See example.com or a.io now."]),
        ("It is 3.14 now. Yes.", ["It is 3.14 now.", "Yes."]),
        ("Version 1.2.3 is out.", ["Version 1.2.", "3 is out."]),
        ("Wait... what? No..", ["Wait...", "what?", "No.."]),
        ("A Ph.D. thesis.", ["A Ph.D. thesis."]),
        ("Plan B. is off.", ["Plan B. is off."]),
        ("In the U.S. He left.", ["In the U.S.", "He left."]),
        ("In the U.S. Heat rose.", ["In the U.S. Heat rose."]),
        ("The U.S.A. However big.", ["The U.S.A.", "However big."]),
        ("At 5 p.m. today.", ["At 5 p.m. today."]),
        ("Acme Inc. It grew.", ["Acme Inc", "It grew."]),
        ("Acme Inc. grew.", ["Acme Inc. grew."]),
        ('He said "no." Then left.', ['He said "no".', "Then left."]),
        ('"Stop!" "Why?"', ['"Stop"!', '"Why"?']),
        ("He said “no.” Then left.", ["He said “no”.", "Then left."]),
        ("He said “no!” Then left.", ["He said “no!", "” Then left."]),
        ("What?! No", ["What?", "!", "No"]),
    ],
)
def test_sentences_by_the_rules(text: str, found: list[str]) -> None:
    assert sentences(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        ("It's done, isn't it?", ["It", "'s", "done", ",", "is", "n't", "it", "?"]),
        (
            'He paid $3.50 to Dr. Who. "Good."',
            ["He", "paid", "$", "3.50", "to", "Dr.", "Who", ".", "``", "Good", ".", "''"],
        ),
        ("a-b (c) ... x", ["a-b", "(", "c", ")", "...", "x"]),
    ],
)
def test_tokens_are_those_of_nltk(text: str, found: list[str]) -> None:
    assert tokens(text) == found


def test_no_time_limit_of_nltk_fails_a_long_text(monkeypatch: pytest.MonkeyPatch) -> None:
    redos = pytest.importorskip("nltk.redos")
    monkeypatch.setattr(redos, "DEFAULT_TIMEOUT", 1e-6)
    _sentence_tokenizer.cache_clear()
    assert len(tokens("One. Two! " * 20_000)) == 80_000


def test_sentences_of_punkt_are_not_those_of_the_rules() -> None:
    text = "Smith et al. left at 5 p.m. on Jan. 3. It rained."
    assert punkt_sentences(text) == ["Smith et al.", "left at 5 p.m. on Jan. 3.", "It rained."]
    assert sentences(text) == ["Smith et al.", "left at 5 p.m. on Jan.", "3.", "It rained."]


def test_what_may_take_long_leaves_the_loop() -> None:
    once = "keywords:word_once"
    assert not may_take_long("a", [(once, {"keyword": "New York's well-being"}), ("punctuation:no_comma", None)])
    assert may_take_long("a" * (LONG_TEXT + 1), [("punctuation:no_comma", None)])
    assert may_take_long("a", [("punctuation:no_comma", None), (once, {"keyword": "(a+)+$"})])
    assert may_take_long("a", [("keywords:forbidden_words", {"forbidden_words": ["plain", "a+"]})])
    assert may_take_long("a", [("detectable_content:postscript", {"postscript_marker": "(a+)+$"})])
    assert not may_take_long("a", [("detectable_content:postscript", {"postscript_marker": "P.S."})])
    assert all(may_take_long("", [(name, None)]) for name in SLOW)


HOSTILE = [
    *(
        "a",
        "*",
        "[",
        "<",
        "-",
        ".",
        " ",
        "\n",
        "é",
        "*a",
        "[a",
        "<<",
        "<<a>>",
        "<a",
        "<!--",
        "***",
        " ***\n",
        "p. ",
        "a.",
        "A.",
        "1.",
    ),
    *("the ", "the a ", "aa", "- \n", "\n\n", " Inc.", "My answer is ", '."', "Section ", "Section 1", "U.S. He "),
]


@pytest.mark.parametrize("name", sorted(set(CHECKS) - SLOW))
def test_what_stays_on_the_loop_is_quick_whatever_the_text(name: str) -> None:
    arguments = BY_ID[name].arguments or {}
    if name in PATTERNED:
        arguments = {key: _plain(value) for key, value in arguments.items()}
        arguments |= {"keyword1": "aaaac"} if "keyword1" in arguments else {}
    assert not may_take_long("", [(name, arguments)])
    for part in HOSTILE:
        text = part * (LONG_TEXT // len(part))
        # The first time may include a collection of all garbage, which takes half a second after many tests.
        assert any(cpu_seconds(name, arguments, text) < 0.5 for _ in range(2)), part


def cpu_seconds(name: str, arguments: dict[str, Any], text: str) -> float:
    started = time.process_time()
    is_followed(name, arguments, text)
    return time.process_time() - started


def _plain(value: Any) -> Any:
    """The same argument with each pattern as a word that is often nearly there."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return "aaaab" if isinstance(value, str) and value not in (AT_LEAST, LESS_THAN) else value


PLAIN = st.none() | st.booleans() | st.integers(-3, 5) | st.floats(allow_nan=True) | st.text("ab(*.\\ +", max_size=5)
VALUES = PLAIN | st.lists(PLAIN, max_size=2)
NAMES = sorted({name for case in CASES for name in case.arguments or {}})


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(sorted(CHECKS)),
    st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=3),
    st.text("ab AB.!?*-[]<>\"'\n{}1é” ", max_size=40),
)
def test_a_row_is_refused_or_every_text_is_checked(name: str, arguments: dict[str, Any], text: str) -> None:
    known = BY_ID[name].arguments or {}
    mixed = {**known, **{key: value for key, value in arguments.items() if key in known}}
    for given_arguments in (arguments, mixed):
        try:
            parsed_arguments(name, given_arguments)
        except ValueError:
            continue
        instruction = (name, given_arguments)
        assert followed(text, [instruction]) == followed(text, [instruction])


@given(st.text('ab.!?"” \n-AUS1', max_size=60))
def test_no_text_is_lost_between_sentences(text: str) -> None:
    letters = re.compile(r"[\s.\"”!?]")
    assert letters.sub("", "".join(sentences(text))) == letters.sub("", text)


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        ("keywords:forbidden_words", {"forbidden_words": ["very"]}, "v<!-- -->ery good"),
        ("keywords:forbidden_words", {"forbidden_words": ["very"]}, "v<b>e</b>ry good"),
        ("keywords:forbidden_words", {"forbidden_words": ["very"]}, "&#118;ery good"),
        ("keywords:forbidden_words", {"forbidden_words": ["very"]}, "very\u3164good"),
        ("keywords:existence", {"keywords": ["very"]}, "<!-- very -->good"),
        ("detectable_format:number_highlighted_sections", {"num_highlights": 2}, "2*3*4 and 5*6*7"),
        ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "-5\n-6"),
    ],
)
def test_hidden_text_and_numbers_do_not_follow_instructions(name: str, arguments: dict[str, Any], text: str) -> None:
    assert not is_followed(name, arguments, text)
