"""The text of single tokens, for the token view: from a `tokenizer.json` as Hugging Face writes it.

Only the vocabulary is read. Encoding text, or joining tokens that share a letter, is the work of a tokenizer."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import orjson

from nemo_gym.common.paths import find
from nemo_gym.errors import ConfigError

FILE_NAME = "tokenizer.json"


def read_vocabulary(path: str) -> Mapping[int, str]:
    """The text of each token id of a `tokenizer.json`, or of the one in a folder."""
    place = find(path, what="tokenizer")
    file = place / FILE_NAME if place.is_dir() else place
    try:
        found = orjson.loads(file.read_bytes())
        vocabulary = _vocabulary_of(found["model"]["vocab"])
        special = {int(token["id"]): str(token["content"]) for token in found.get("added_tokens") or ()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{file} is not a {FILE_NAME} with a vocabulary: {error!r}.") from error
    is_byte_level = any(token.startswith("Ġ") for token in vocabulary.values())
    decode = _from_bytes if is_byte_level else _from_pieces
    return {**{number: decode(token) for number, token in vocabulary.items()}, **special}


def _vocabulary_of(found: Any) -> dict[int, str]:
    """BPE and WordPiece have an object of ids, Unigram a list of tokens with scores."""
    if isinstance(found, list):
        return {number: str(token) for number, (token, _score) in enumerate(found)}
    return {int(number): str(token) for token, number in found.items()}


def _from_bytes(token: str) -> str:
    """A token of a byte-level vocabulary, in which every byte is written as a visible character."""
    table = _bytes_of_characters()
    if not all(character in table for character in token):
        return token
    return bytes(table[character] for character in token).decode(errors="replace")


def _from_pieces(token: str) -> str:
    if len(token) == 6 and token.startswith("<0x"):  # a single byte
        return bytes([int(token[3:5], 16)]).decode(errors="replace")
    return token.replace("▁", " ")


@cache
def _bytes_of_characters() -> dict[str, int]:
    """The table of GPT-2: printable Latin-1 stands for itself, other bytes for characters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {**{chr(byte): byte for byte in printable}, **{chr(0x100 + n): byte for n, byte in enumerate(others)}}
