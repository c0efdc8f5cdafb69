"""Instructions about tokens, which are words and punctuation marks as NLTK separates them, and about sentences as its
Punkt model does. Importing NLTK takes a second, so only the process that counts tokens does it."""

from collections import defaultdict
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

from resources_servers.instruction_following.arguments import Count, FirstText, Ordinal, Relation, satisfies
from resources_servers.instruction_following.layout import DIVIDER
from resources_servers.instruction_following.punkt import read_table
from resources_servers.instruction_following.sentences import sentences

if TYPE_CHECKING:
    from nltk.tokenize import NLTKWordTokenizer  # type: ignore[import-untyped]
    from nltk.tokenize.punkt import PunktSentenceTokenizer  # type: ignore[import-untyped]


def tokens(text: str) -> list[str]:
    """As `nltk.word_tokenize` gives them."""
    return [token for sentence in punkt_sentences(text) for token in _word_tokenizer().tokenize(sentence)]


def punkt_sentences(text: str) -> list[str]:
    """As `nltk.sent_tokenize` gives them."""
    found: list[str] = _sentence_tokenizer().tokenize(text)
    return found


@cache
def _word_tokenizer() -> "NLTKWordTokenizer":
    from nltk.tokenize import NLTKWordTokenizer

    return NLTKWordTokenizer()


@cache
def _sentence_tokenizer() -> "PunktSentenceTokenizer":
    """Made from the tables directly: NLTK's own loader refuses files by their permissions."""
    from nltk.tokenize.punkt import PunktParameters, PunktSentenceTokenizer

    _remove_time_limit()
    parameters = PunktParameters()
    parameters.abbrev_types = {word for (word,) in read_table("abbrev_types.txt")}
    parameters.sent_starters = {word for (word,) in read_table("sent_starters.txt")}
    parameters.collocations = {(first, second) for first, second in read_table("collocations.tab")}
    contexts = {word: int(context) for word, context in read_table("ortho_context.tab")}
    parameters.ortho_context = defaultdict(int, contexts)
    return PunktSentenceTokenizer(parameters)


def _remove_time_limit() -> None:
    """NLTK 3.10 limits the wall-clock time of each match, which fails on long texts or busy machines. The CPU time of
    the whole check is limited already."""
    try:
        from nltk import redos  # type: ignore[import-untyped]
    except ImportError:
        return
    redos.DEFAULT_TIMEOUT = None


def has_sentence_count(text: str, /, *, num_sentences: Count, relation: Relation) -> bool:
    return satisfies(len(punkt_sentences(text)), relation, num_sentences)


def has_capital_words(text: str, /, *, capital_frequency: Count, capital_relation: Relation) -> bool:
    return satisfies(sum(map(str.isupper, tokens(text))), capital_relation, capital_frequency)


def is_composed(text: str, /, *, n_sent: Count, n_words: Count) -> bool:
    """Three pieces with `n_sent` sentences each, and `n_words` tokens in each sentence."""
    pieces = [sentences(piece) for piece in DIVIDER.split(text)]
    return len(pieces) == 3 and all(
        len(piece) == n_sent and all(len(tokens(sentence)) == n_words for sentence in piece) for piece in pieces
    )


def has_unique_tokens(text: str, /) -> bool:
    found = tokens(text)
    return len(found) == len(set(found))


def has_keyword_in_place(text: str, /, *, keyword: FirstText, n: Ordinal, m: Ordinal) -> bool:
    """Token m of sentence n is the keyword."""
    return any(tokens(sentence)[m - 1 : m] == [keyword] for sentence in sentences(text)[n - 1 : n])


def ends_as_it_starts(text: str, /) -> bool:
    found = tokens(text)
    return len(found) > 1 and found[0].lower() == found[-1].lower()


CHECKS: dict[str, Callable[..., bool]] = {
    "length_constraints:number_sentences": has_sentence_count,
    "change_case:capital_word_frequency": has_capital_words,
    "count:counting_composition": is_composed,
    "count:count_unique": has_unique_tokens,
    "keywords:keyword_specific_position": has_keyword_in_place,
    "keywords:start_end": ends_as_it_starts,
}
