"""Sentence splitting by rules, and instructions about sentences. Rewards depend on each rule and on their order."""

import re
from collections.abc import Callable

from nemo_gym.answers import says_something
from resources_servers.instruction_following.arguments import SENTENCE_ENDS, Exactly, FirstSpoken, Ordinal, Spoken
from resources_servers.instruction_following.layout import DIVIDER
from resources_servers.instruction_following.words import bare_words, is_word, spoken_words

_DOT, _BREAK = "\ufdd0", "\ufdd1"
"""A full stop that ends no sentence, and the end of a sentence. Both are noncharacters of Unicode."""

_STARTERS = r"(Mr|Mrs|Ms|Dr|Prof|Capt|Cpt|Lt|(?:He|She|It|They|Their|Our|We|But|However|That|This)\s|Wherever)"
_LETTER, _SUFFIX = "([A-Za-z])", "(Inc|Ltd|Jr|Sr|Co)"


def _protected_run(run: re.Match[str]) -> str:
    return _DOT * len(run[0]) + _BREAK


_RULES: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"(Mr|St|Mrs|Ms|Dr)\.", rf"\1{_DOT}"),
        (r"\.(com|net|org|io|gov|edu|me)", rf"{_DOT}\1"),
        (r"([0-9])\.([0-9])", rf"\1{_DOT}\2"),
        (r"\.{2,}", _protected_run),
        (r"Ph\.D\.", f"Ph{_DOT}D{_DOT}"),
        (rf"\s{_LETTER}\. ", rf" \1{_DOT} "),
        (rf"([A-Z]\.[A-Z]\.(?:[A-Z]\.)?) {_STARTERS}", rf"\1{_BREAK} \2"),
        (rf"{_LETTER}\.{_LETTER}\.{_LETTER}\.", rf"\1{_DOT}\2{_DOT}\3{_DOT}"),
        (rf"{_LETTER}\.{_LETTER}\.", rf"\1{_DOT}\2{_DOT}"),
        (rf" {_SUFFIX}\. {_STARTERS}", rf" \1{_BREAK} \2"),
        (rf" {_SUFFIX}\.", rf" \1{_DOT}"),
        (rf" {_LETTER}\.", rf" \1{_DOT}"),
        (r"\.”", "”."),
        (r'\."', '".'),
        (r'!"', '"!'),
        (r'\?"', '"?'),
        (rf"([.?!{SENTENCE_ENDS}])", rf"\1{_BREAK}"),
    )
]


def sentences(text: str) -> list[str]:
    """The sentences of a text, stripped. One between others may be blank."""
    text = f" {text}  ".replace("\n", " ")
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    found = [sentence.strip() for sentence in text.replace(_DOT, ".").split(_BREAK)]
    return found if found[-1] else found[:-1]


def has_hyphens_between_sentences(text: str, /) -> bool:
    """The pieces between hyphens, compared one by one with the sentences there would be without the hyphens."""
    pairs = zip(text.split("-"), sentences(text.replace("-", " ")), strict=False)
    return all(piece == piece.strip() == sentence for piece, sentence in pairs)


def spoken_sentences(text: str) -> list[str]:
    """The sentences with a letter or a digit in them: the `!` of `?!` is not a sentence."""
    return [sentence for sentence in sentences(text) if says_something(sentence)]


def begins_sentences_with_word(text: str, /, *, first_word: Spoken) -> bool:
    return all(is_word(first_word, spoken_words(sentence)[0]) for sentence in spoken_sentences(text))


def ends_sentences_with_word(text: str, /, *, last_word: FirstSpoken) -> bool:
    return all(is_word(last_word, spoken_words(sentence)[-1]) for sentence in spoken_sentences(text))


def is_composed(text: str, /, *, n_sent: Exactly, n_words: Exactly) -> bool:
    """Three pieces with `n_sent` sentences each, and `n_words` words in each sentence."""
    pieces = [spoken_sentences(piece) for piece in DIVIDER.split(text)]
    return len(pieces) == 3 and all(
        len(piece) == n_sent and all(len(spoken_words(sentence)) == n_words for sentence in piece) for piece in pieces
    )


def has_keyword_in_place(text: str, /, *, keyword: FirstSpoken, n: Ordinal, m: Ordinal) -> bool:
    """The keyword begins at word m of sentence n."""
    wanted = bare_words(keyword)
    return any(
        bare_words(sentence)[m - 1 : m - 1 + len(wanted)] == wanted for sentence in spoken_sentences(text)[n - 1 : n]
    )


CHECKS: dict[str, Callable[..., bool]] = {
    "detectable_format:sentence_hyphens": has_hyphens_between_sentences,
    "first_word:first_word_sent": begins_sentences_with_word,
    "last_word:last_word_sent": ends_sentences_with_word,
    "count:counting_composition": is_composed,
    "keywords:keyword_specific_position": has_keyword_in_place,
}
