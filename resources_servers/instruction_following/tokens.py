"""Instructions about tokens, which are words and punctuation marks as NLTK separates them, and about sentences as its
Punkt model does. Importing NLTK takes a second, so only the process that counts tokens does it."""

import re
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

from nemo_gym.answers import says_something
from resources_servers.instruction_following.arguments import SENTENCE_ENDS, Count, Relation, satisfies
from resources_servers.instruction_following.punkt import read_table

if TYPE_CHECKING:
    from nltk.tokenize import NLTKWordTokenizer  # type: ignore[import-untyped]
    from nltk.tokenize.punkt import PunktSentenceTokenizer  # type: ignore[import-untyped]

_SENTENCE_ENDS = re.compile(f"[{SENTENCE_ENDS}]")


def tokens(text: str) -> list[str]:
    """Split into words as `nltk.word_tokenize` does."""
    return [token for sentence in punkt_sentences(text) for token in _word_tokenizer().tokenize(sentence)]


def punkt_sentences(text: str) -> list[str]:
    """Split into sentences as `nltk.sent_tokenize` does."""
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
    """Counts Punkt sentences, and those of other scripts, which Punkt does not know."""
    pieces = (piece for sentence in punkt_sentences(text) for piece in _SENTENCE_ENDS.split(sentence))
    return satisfies(sum(map(says_something, pieces)), relation, num_sentences)


def has_capital_words(text: str, /, *, capital_frequency: Count, capital_relation: Relation) -> bool:
    return satisfies(sum(map(str.isupper, tokens(text))), capital_relation, capital_frequency)


CHECKS: dict[str, Callable[..., bool]] = {
    "length_constraints:number_sentences": has_sentence_count,
    "change_case:capital_word_frequency": has_capital_words,
}
