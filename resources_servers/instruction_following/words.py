"""Instructions about words and letters. Words are separated by white space. Every check takes time linear in the text,
except those of `PATTERNED`, whose arguments are patterns."""

import re
import unicodedata
from collections.abc import Callable
from itertools import pairwise
from typing import Annotated

from pydantic import Field

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
    satisfies,
    says_something,
    visible,
)

_WORD = re.compile(r"\w+")
_LOWER_CASE_WORD = re.compile(r"\b[a-z]+\b")
_LETTER = re.compile(r"[A-Za-z]")
_PUNCTUATION = re.compile(r"[^\w\s]")
_WITHOUT_EDGES = re.compile(r"[^\W_](?:.*[^\W_])?", re.DOTALL)
_BETWEEN_SENTENCES = re.compile(r'[.!?"“”\n]+')
_COMMAS = frozenset(",،、")
_CONSTRAINED = ("My answer is yes.", "My answer is no.", "My answer is maybe.")


def spoken_words(text: str) -> list[str]:
    """The words of a text with a letter or a digit in them: a dash between spaces is not a word."""
    return [word for word in text.split() if says_something(word)]


def bare_words(text: str) -> list[str]:
    """The words of a text in lower case, without punctuation marks in front of them and behind."""
    return [found[0].lower() for word in text.split() if (found := _WITHOUT_EDGES.search(word))]


def _plain(text: str) -> str:
    """The text with characters such as full-width letters and marks replaced by the usual ones."""
    return unicodedata.normalize("NFKC", text)


def has_keywords(text: str, /, *, keywords: Annotated[list[Pattern], Field(min_length=1)]) -> bool:
    return all(keyword.search(text) for keyword in keywords)


def has_keyword_count(text: str, /, *, keyword: StrippedPattern, frequency: Count, relation: Relation) -> bool:
    return satisfies(_matches(keyword, text), relation, frequency)


def has_keyword_once(text: str, /, *, keyword: Pattern) -> bool:
    return _matches(keyword, text) == 1


def has_keywords_once_and_twice(text: str, /, *, keyword1: Pattern, keyword2: Pattern) -> bool:
    return _matches(keyword1, text) == 1 and _matches(keyword2, text) == 2


def lacks_words(text: str, /, *, forbidden_words: Annotated[list[WholeWord], Field(min_length=1)]) -> bool:
    plain = _plain(text)
    return not any(word.search(plain) for word in forbidden_words)


def lacks_word(text: str, /, *, keyword: Spoken) -> bool:
    return not re.search(rf"(?<!\w){re.escape(keyword.strip())}(?!\w)", _plain(text), re.IGNORECASE)


def has_letter_count(text: str, /, *, letter: Letter, let_frequency: Count, let_relation: Relation) -> bool:
    return satisfies(text.lower().count(letter), let_relation, let_frequency)


def has_ascii_letter_count(text: str, /, *, N: Count, relation: Relation) -> bool:  # noqa: N803
    return satisfies(_matches(_LETTER, text), relation, N)


def has_word_count(text: str, /, *, num_words: Count, relation: Relation) -> bool:
    words = sum(map(says_something, _WORD.findall(text)))
    return satisfies(words, relation, num_words)


def has_few_lower_case_words(text: str, /, *, N: Count) -> bool:  # noqa: N803
    return _matches(_LOWER_CASE_WORD, text) <= N


def has_no_consecutive_initials(text: str, /) -> bool:
    """No word begins with the letter that comes right after the first letter of the word before it."""
    initials = [ord(word.lower()[0]) for word in text.split()]
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
    """The first word is also the last, with nothing after it."""
    words = bare_words(text)
    return len(words) > 1 and words[0] == words[-1] and says_something(text.rstrip()[-1])


def lacks_comma(text: str, /) -> bool:
    return _COMMAS.isdisjoint(_plain(text))


def lacks_full_stop(text: str, /) -> bool:
    return "." not in _plain(text)


def lacks_exclamation_mark(text: str, /) -> bool:
    return "!" not in _plain(text)


def begins_with_word(text: str, /, *, first_word: Spoken) -> bool:
    return is_word(first_word, spoken_words(text)[0])


def ends_with_word(text: str, /, *, last_word: Spoken) -> bool:
    return is_word(last_word, spoken_words(text)[-1])


def is_word(word: str, written: str) -> bool:
    """True if both are the same word, ignoring case and punctuation."""
    return _PUNCTUATION.sub("", word).lower() == _PUNCTUATION.sub("", written).lower()


def ends_with_phrase(text: str, /, *, end_phrase: Text) -> bool:
    return text.strip().strip('"').lower().endswith(end_phrase.strip().lower())


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
    return len(pattern.findall(text))


def _bare(text: str) -> str:
    return visible(text).strip().lower()


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
