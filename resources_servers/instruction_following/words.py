"""Instructions about words and letters. Words are separated by white space. Every check takes time linear in the text,
except those of `PATTERNED`, whose arguments are patterns."""

import html
import re
import unicodedata
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Annotated

from pydantic import Field

from nemo_gym.answers import TO_LATIN, says_something
from resources_servers.instruction_following.arguments import (
    Count,
    Exactly,
    Index,
    Letter,
    Pattern,
    Relation,
    Spoken,
    StrippedPattern,
    Text,
    WholeWord,
    as_shown,
    plain,
    satisfies,
)

_WORD = re.compile(r"[^\W_]+")
_LOWER_CASE_WORD = re.compile(r"\b[a-z]+\b")
_LETTER = re.compile(r"[A-Za-z]")
_PUNCTUATION = re.compile(r"[^\w\s]|_")
_TAG = re.compile(r"</?[A-Za-z][^<>]{0,200}>")
_MARKDOWN = "*_`~"
_EMPHASIS = re.compile(f"[{_MARKDOWN}]+")
_WITHOUT_EDGES = re.compile(r"[^\W_](?:.*[^\W_])?", re.DOTALL)
_BETWEEN_SENTENCES = re.compile(r'[.!?"“”\n]+')
_COMMAS = frozenset(",،、\u055d፣\u07f8\u1802\u1808\ua4fe\ua60d\ua6f5\u2e32\u2e34\u2e41\u2e4c\u2e4e\u201a\ua4f9")
_FULL_STOPS = frozenset(".。।॥\u06d4\u0589።\u1803\u1809\u104b\u17d4\u0f0d\u0701\u0702\u2e3c\ua4ff\ua60e\ua6f3\ua4f8")
_EXCLAMATION_MARKS = frozenset("!\u00a1\u055c\u07f9\u1944\u2755\u2757\u01c3")
"""Punctuation marks of all scripts, and what looks the same."""
_CONSTRAINED = ("My answer is yes.", "My answer is no.", "My answer is maybe.")


def spoken_words(text: str) -> list[str]:
    """The words of a text with a letter or a digit in them: a dash between spaces is not a word."""
    return [word for word in text.split() if says_something(word)]


def bare_words(text: str) -> list[str]:
    """The words of a text in lower case, without punctuation marks in front of them and behind."""
    return [found[0].lower() for word in plain(text).split() if (found := _WITHOUT_EDGES.search(word))]


def _readings(text: str) -> Iterator[str]:
    """The text as it can be read: with usual characters, without tags and entities of HTML, and with Markdown marks
    dropped or as spaces."""
    usual = " ".join(map(_in_one_script, plain(text).split()))
    if "<" in usual or "&" in usual:
        yield _TAG.sub("", html.unescape(usual))
    yield usual
    yield _EMPHASIS.sub("", usual)
    yield _EMPHASIS.sub(" ", usual)


def _in_one_script(word: str) -> str:
    """A word that mixes Latin letters with others that look the same, in Latin letters alone."""
    return word.lower().translate(TO_LATIN) if not word.isascii() and _LETTER.search(word) else word


def has_keywords(text: str, /, *, keywords: Annotated[list[Pattern], Field(min_length=1)]) -> bool:
    return all(_matches(keyword, text) for keyword in keywords)


def has_keyword_count(text: str, /, *, keyword: StrippedPattern, frequency: Count, relation: Relation) -> bool:
    return satisfies(_matches(keyword, text), relation, frequency)


def has_keyword_once(text: str, /, *, keyword: Pattern) -> bool:
    return _matches(keyword, text) == 1


def has_keywords_once_and_twice(text: str, /, *, keyword1: Pattern, keyword2: Pattern) -> bool:
    return _matches(keyword1, text) == 1 and _matches(keyword2, text) == 2


def lacks_words(text: str, /, *, forbidden_words: Annotated[list[WholeWord], Field(min_length=1)]) -> bool:
    return not any(word.search(reading) for reading in _readings(text) for word in forbidden_words)


def lacks_word(text: str, /, *, keyword: Spoken) -> bool:
    word = re.compile(rf"(?<!\w){re.escape(keyword.strip())}(?!\w)", re.IGNORECASE)
    return not any(map(word.search, _readings(text)))


def has_letter_count(text: str, /, *, letter: Letter, let_frequency: Count, let_relation: Relation) -> bool:
    return satisfies(plain(text).lower().count(letter), let_relation, let_frequency)


def has_ascii_letter_count(text: str, /, *, N: Count, relation: Relation) -> bool:  # noqa: N803
    return satisfies(_matches(_LETTER, text), relation, N)


def has_word_count(text: str, /, *, num_words: Count, relation: Relation) -> bool:
    return satisfies(_matches(_WORD, text), relation, num_words)


def has_few_lower_case_words(text: str, /, *, N: Count) -> bool:  # noqa: N803
    return _matches(_LOWER_CASE_WORD, text.replace("_", " ")) <= N


def has_no_consecutive_initials(text: str, /) -> bool:
    """No word begins with the letter that comes right after the first letter of the word before it."""
    initials = [ord(word[0]) for word in bare_words(text)]
    return all(second - first != 1 for first, second in pairwise(initials))


def has_palindrome(text: str, /) -> bool:
    """Some word, or all between two sentence marks, quotation marks or line breaks, reads the same in reverse."""
    return any(map(_is_palindrome, (*text.split(), *_BETWEEN_SENTENCES.split(text))))


def _is_palindrome(text: str) -> bool:
    """True for three characters or more that are not all the same."""
    letters = [letter for letter in text.lower() if letter.isalnum()]
    return len(letters) > 2 and len(set(letters)) > 1 and letters == letters[::-1]


def has_unique_words(text: str, /) -> bool:
    words = bare_words(text)
    return len(words) == len(set(words))


def ends_as_it_starts(text: str, /) -> bool:
    """The first word is also the last, with nothing after it but the end of emphasis."""
    words = bare_words(text)
    return len(words) > 1 and words[0] == words[-1] and says_something(text.rstrip().rstrip(_MARKDOWN)[-1])


def lacks_comma(text: str, /) -> bool:
    return _COMMAS.isdisjoint(plain(html.unescape(text)))


def lacks_full_stop(text: str, /) -> bool:
    return _FULL_STOPS.isdisjoint(plain(html.unescape(text)))


def lacks_exclamation_mark(text: str, /) -> bool:
    return _EXCLAMATION_MARKS.isdisjoint(plain(html.unescape(text)))


def begins_with_word(text: str, /, *, first_word: Spoken) -> bool:
    return is_word(first_word, spoken_words(text)[0])


def ends_with_word(text: str, /, *, last_word: Spoken) -> bool:
    return is_word(last_word, spoken_words(text)[-1])


def is_word(word: str, written: str) -> bool:
    """True if both are the same word, ignoring case and punctuation."""
    return _PUNCTUATION.sub("", plain(word)).lower() == _PUNCTUATION.sub("", plain(written)).lower()


def ends_with_phrase(text: str, /, *, end_phrase: Text) -> bool:
    """In quotation marks or emphasized, or not."""
    written, phrase = text.strip().lower(), end_phrase.strip().lower()
    return any(written.strip(marks).endswith(phrase) for marks in ('"', f'"“”{_MARKDOWN}'))


def is_quoted(text: str, /) -> bool:
    bare = text.strip()
    return len(bare) > 1 and bare.startswith('"') and bare.endswith('"')


def has_words_in_brackets(text: str, /) -> bool:
    return all(word.startswith("[") and word.endswith("]") for word in text.split())


def has_wrapped_bigrams(text: str, /) -> bool:
    """One pair of words or more, each in `<<` and `>>`; an odd last word is ignored."""
    words = text.split()
    pairs = list(zip(words[::2], words[1::2], strict=False))
    return bool(pairs) and all(
        first.startswith("<<") and second.endswith(">>") and says_something(first + second) for first, second in pairs
    )


def is_constrained(text: str, /) -> bool:
    """One of the answers, not several to choose from."""
    return sum(option in text for option in _CONSTRAINED) == 1


def begins_with_prompt(text: str, /, *, prompt_to_repeat: Spoken) -> bool:
    """The prompt, and an answer after it."""
    bare, prompt = _bare(text), _bare(prompt_to_repeat)
    return bare.startswith(prompt) and says_something(bare[len(prompt) :])


def is_copy(text: str, /, *, prompt_to_repeat: Spoken) -> bool:
    return _bare(text) == _bare(prompt_to_repeat)


def is_copy_of_span(text: str, /, *, prompt_to_repeat: Spoken, n_start: Index, n_end: Index) -> bool:
    return _bare(text) == _bare(prompt_to_repeat[n_start:n_end])


def has_copies(text: str, /, *, prompt_to_repeat: Spoken, N: Exactly) -> bool:  # noqa: N803
    pieces = text.split("******")
    return len(pieces) == N and all(_bare(piece) == _bare(prompt_to_repeat) for piece in pieces)


def repeats_phrase_with_a_change(text: str, /, *, phrase: Text, small_n: Exactly) -> bool:
    """The phrase `small_n` times, each with at most one word changed, and the last with exactly one."""
    wanted = phrase.split()
    found = _stretches(text, wanted[0], wanted[-1]) if wanted else []
    if not found or len(found) != small_n or any(len(words) != len(wanted) for words in found):
        return False
    changes = [sum(one != other for one, other in zip(words, wanted, strict=True)) for words in found]
    return max(changes) <= 1 and changes[-1] == 1


def _stretches(text: str, first: str, last: str) -> list[list[str]]:
    """The words of each shortest stretch from one word to another on one line."""
    found = []
    for line in text.split("\n"):
        start = line.find(f"{first} ")
        while start != -1 and (end := line.find(f" {last}", start + len(first) + 1)) != -1:
            end += len(last) + 1
            found.append(line[start:end].split())
            start = line.find(f"{first} ", end)
    return found


def _matches(pattern: re.Pattern[str], text: str) -> int:
    """The number of matches, in the text with usual characters unless the pattern itself has others."""
    usual = unicodedata.is_normalized("NFKC", pattern.pattern)
    return len(pattern.findall(plain(text) if usual else text))


def _bare(text: str) -> str:
    return as_shown(text).strip().lower()


CHECKS: dict[str, Callable[..., bool]] = {
    "keywords:existence": has_keywords,
    "keywords:frequency": has_keyword_count,
    "keywords:forbidden_words": lacks_words,
    "keywords:letter_frequency": has_letter_count,
    "keywords:no_adjacent_consecutive": has_no_consecutive_initials,
    "keywords:word_once": has_keyword_once,
    "keywords:word_count_different_numbers": has_keyword_count,
    "keywords:exclude_word_harder": lacks_word,
    "keywords:palindrome": has_palindrome,
    "keywords:start_end": ends_as_it_starts,
    "count:count_increment_word": has_keywords_once_and_twice,
    "count:count_unique": has_unique_words,
    "count:lowercase_counting": has_few_lower_case_words,
    "letters:letter_counting": has_ascii_letter_count,
    "letters:letter_counting2": has_letter_count,
    "length_constraints:number_words": has_word_count,
    "punctuation:no_comma": lacks_comma,
    "punctuation:punctuation_dot": lacks_full_stop,
    "punctuation:punctuation_exclamation": lacks_exclamation_mark,
    "first_word:first_word_answer": begins_with_word,
    "last_word:last_word_answer": ends_with_word,
    "startend:end_checker": ends_with_phrase,
    "startend:quotation": is_quoted,
    "detectable_format:constrained_response": is_constrained,
    "detectable_format:square_brackets": has_words_in_brackets,
    "detectable_format:bigram_wrapping": has_wrapped_bigrams,
    "combination:repeat_prompt": begins_with_prompt,
    "copy:copy": is_copy,
    "copy:copying_simple": is_copy,
    "copy:copying_multiple": has_copies,
    "copy:repeat_phrase": repeats_phrase_with_a_change,
    "new:copy_span_idx": is_copy_of_span,
}
PATTERNED = frozenset(
    (
        "keywords:existence",
        "keywords:frequency",
        "keywords:forbidden_words",
        "keywords:word_once",
        "keywords:word_count_different_numbers",
        "count:count_increment_word",
    )
)
