"""The texts of token ids: from a `tokenizer.json`, a GGUF file, or the tokenizer of the model that made a run."""

import contextlib
import struct
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import IO, Any

import orjson

from nemo_gym.common.paths import find
from nemo_gym.config.keys import ServerBlock, blocks_in
from nemo_gym.errors import ConfigError, GymError
from nemo_gym.rollouts.resume import read_manifest
from nemo_gym.runtime.class_loader import load_server_class

FILE_NAME = "tokenizer.json"


def read_vocabulary(path: str) -> Mapping[int, str]:
    """Read the text of each token id from a GGUF file, a `tokenizer.json`, or a folder with one."""
    place = find(path, what="tokenizer")
    file = place / FILE_NAME if place.is_dir() else place
    try:
        vocabulary, special = _read_gguf(file) if file.suffix == ".gguf" else _read_json(file)
    except (OSError, ValueError, KeyError, TypeError, struct.error) as error:
        raise ConfigError(f"{file} is neither a {FILE_NAME} nor a GGUF file with a vocabulary: {error!r}.") from error
    is_byte_level = any(token.startswith("Ġ") for token in vocabulary.values())
    decode = _from_bytes if is_byte_level else _from_pieces
    return {**{number: decode(token) for number, token in vocabulary.items()}, **special}


def _read_json(file: Path) -> tuple[dict[int, str], dict[int, str]]:
    """Return the tokens and the special tokens of a `tokenizer.json`."""
    found = orjson.loads(file.read_bytes())
    vocabulary = _vocabulary_of(found["model"]["vocab"])
    return vocabulary, {int(token["id"]): str(token["content"]) for token in found.get("added_tokens") or ()}


_SIZES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""The numbers of GGUF, by their type, in the codes of `struct`."""
_TEXT, _ARRAY = 8, 9
TOKENS_KEY = "tokenizer.ggml.tokens"


def _read_gguf(file: Path) -> tuple[dict[int, str], dict[int, str]]:
    """Return the tokens in the header of a GGUF file, and that none is special: they are not in an encoding."""
    with file.open("rb") as data:
        magic, _version, _tensors, count = struct.unpack("<4sIQQ", data.read(24))
        if magic != b"GGUF":
            raise ValueError("it does not start with GGUF")
        for _ in range(count):
            name = _gguf_value(data, _TEXT)
            (kind,) = struct.unpack("<I", data.read(4))
            value = _gguf_value(data, kind)
            if name == TOKENS_KEY:
                return dict(enumerate(value)), {}
    raise KeyError(TOKENS_KEY)


def _gguf_value(data: IO[bytes], kind: int) -> Any:
    if kind == _TEXT:
        (length,) = struct.unpack("<Q", data.read(8))
        return data.read(length).decode(errors="replace")
    if kind == _ARRAY:
        of_kind, length = struct.unpack("<IQ", data.read(12))
        return [_gguf_value(data, of_kind) for _ in range(length)]
    code = _SIZES[kind]
    return struct.unpack(f"<{code}", data.read(struct.calcsize(f"<{code}")))[0]


def vocabulary_of_run(output: Path) -> Mapping[int, str]:
    """Return the text of each token id of the model that made these rollouts, if its tokenizer is on this machine."""
    with contextlib.suppress(GymError, OSError):
        manifest = read_manifest(output)
        for block in blocks_in(manifest.servers if manifest else {}):
            if block.server_type == "responses_api_models":
                return _vocabulary_of_model(block)
    return {}


def _vocabulary_of_model(block: ServerBlock) -> Mapping[int, str]:
    folder = find(f"{block.server_type}/{block.implementation}", what="model")
    kind: Any = load_server_class(block.server_type, folder, str(block.config.get("entrypoint", "app.py")))
    file = kind.tokenizer_file(block.config)
    return {} if file is None else read_vocabulary(str(file))


def _vocabulary_of(found: Any) -> dict[int, str]:
    """Convert a vocabulary: BPE and WordPiece have an object of ids, Unigram a list of tokens with scores."""
    if isinstance(found, list):
        return {number: str(token) for number, (token, _score) in enumerate(found)}
    return {int(number): str(token) for token, number in found.items()}


def _from_bytes(token: str) -> str:
    """Decode a token of a byte-level vocabulary, in which every byte is a visible character."""
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
    """Return GPT-2's table: printable Latin-1 characters are themselves, other bytes are characters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {**{chr(byte): byte for byte in printable}, **{chr(0x100 + n): byte for n, byte in enumerate(others)}}
