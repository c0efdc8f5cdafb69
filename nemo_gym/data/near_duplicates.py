"""Keys that nearly equal prompts share: a MinHash of their word triples, in bands.

All hashes are of one function, spread over as many bins as the MinHash has values (one-permutation hashing). With two
bins a band, prompts whose sets of triples have a Jaccard similarity of 0.9 share a key with a probability of 99.9 %,
at 0.3 with one of 53 %; `similarity` then tells how alike they are.
"""

import re
import zlib
from itertools import islice

from nemo_gym.data.digests import digest

BINS = 16
BINS_A_BAND = 4
_WORDS = re.compile(rb"[a-z0-9\x80-\xff]+")


def sketch(text: bytes) -> list[bytes]:
    """The keys of a prompt, one digest a band. Case and punctuation do not count. Without words there is none."""
    triples = hashes_of_triples(text)
    if not triples:
        return []
    least = {value % BINS: value for value in sorted(triples, reverse=True)}
    values = [least.get(number, -1) for number in range(BINS)]
    bands = (values[start : start + BINS_A_BAND] for start in range(0, BINS, BINS_A_BAND))
    return [digest(b"%d %a" % (number, band)) for number, band in enumerate(bands)]


def hashes_of_triples(text: bytes) -> set[int]:
    """A hash of every three words in a row; of all words, if there are fewer."""
    words = [zlib.crc32(word) for word in _WORDS.findall(text.lower())]
    if len(words) < 3:
        return {hash(tuple(words))} if words else set()
    threes = zip(words, islice(words, 1, None), islice(words, 2, None), strict=False)
    return set(map(hash, threes))


def similarity(one: bytes, other: bytes) -> float:
    """The share of word triples that two prompts have in common (Jaccard)."""
    first, second = hashes_of_triples(one), hashes_of_triples(other)
    return len(first & second) / len(first | second) if first or second else 0.0
