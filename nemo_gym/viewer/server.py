"""Serve the viewer until it is interrupted."""

import contextlib
import secrets
import socket
from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any, ClassVar
from urllib.parse import quote

import orjson
from pydantic import BeforeValidator, Field

from nemo_gym.client.server_client import base_url
from nemo_gym.common.paths import find
from nemo_gym.common.statistics import PASS_THRESHOLD
from nemo_gym.config.types import CommandConfig
from nemo_gym.errors import ConfigError, PortError
from nemo_gym.server.request_checks import ServerLimits, is_loopback
from nemo_gym.server.uvicorn_runner import bind, serve_until_interrupted
from nemo_gym.viewer.app import ViewerApp
from nemo_gym.viewer.files import Files

DEFAULT_PORT = 7860


def _as_list(given: Any) -> Any:
    return [given] if isinstance(given, str) else given


class ViewerConfig(CommandConfig):
    """Show rollouts, failures or datasets as a web page, or with --text in the terminal.

    Files may be compressed (.gz, .zst) and may still be written. Open two files to compare them task by task. The
    index of a large file is kept beside it as `<name>_index.sqlite`.

    Examples:

    ```bash
    ng view
    ng view rollouts.jsonl
    ng view before.jsonl after.jsonl
    ng view --text rollouts.jsonl
    ng view --text rollouts.jsonl +row=3
    ng_viewer +jsonl_fpath=rollouts.jsonl +server_port=7861
    ```
    """

    POSITIONAL: ClassVar[tuple[str, ...]] = ("jsonl_fpath",)

    jsonl_fpath: Annotated[list[str], BeforeValidator(_as_list)] = Field(default=["results"], min_length=1)
    """The file to show, or a list of files. A folder stands for the newest rollouts in it. `ng view FILE ...` is the
    same."""

    server_host: str = "127.0.0.1"
    """Address to listen on. Beyond this machine the page requires the token in the address that the command prints."""

    server_port: int | None = Field(default=None, ge=0, lt=65536)
    """Port of the page. By default 7860, or a free one if that is taken."""

    tokenizer: str | None = None
    """A `tokenizer.json`, or a folder with one. The token view shows the text of each token with it; without it, only
    where the record has it."""

    text: bool = False
    """Print to the terminal instead of serving a page."""

    row: int | None = Field(default=None, ge=0)
    """With text: print the conversation of this row."""

    where: str = ""
    """With text: a filter, such as `reward < 1 and response.usage.total_tokens > 500`."""

    sort: str = ""
    """With text: the field to sort rows by; `-reward` is descending."""

    search: str | None = None
    """With text: print the rows that contain this text."""

    limit: int = Field(default=20, ge=1)
    """With text: number of rows to print."""

    pass_threshold: float = PASS_THRESHOLD
    """With text: minimum reward that counts as a pass."""


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


async def serve_viewer(
    config: ViewerConfig, *, limits: ServerLimits, run_token: str | None, announce: Callable[[list[str]], None]
) -> None:
    """Serve the page; `announce` gets its addresses as soon as it can be opened: one for this machine and, if it
    listens on all of them, one for others."""
    token = run_token or (None if is_loopback(config.server_host) else secrets.token_urlsafe(24))
    vocabulary = None if config.tokenizer is None else read_vocabulary(config.tokenizer)
    with contextlib.closing(_bind(config)) as listening, Files(config.jsonl_fpath) as files:
        app = ViewerApp(files, token=token, allowed_hosts=limits.allowed_hosts, vocabulary=vocabulary)
        port = listening.getsockname()[1]
        fragment = f"/#token={quote(token)}" if token else "/"
        hosts = [config.server_host]
        if config.server_host in ("", "0.0.0.0", "::"):
            hosts.append(socket.gethostname())
        announce([base_url(host, port) + fragment for host in hosts])
        with contextlib.closing(app):
            await serve_until_interrupted({port: app}, [listening], limits)


def _bind(config: ViewerConfig) -> socket.socket:
    if config.server_port is not None:
        return bind(config.server_host, config.server_port)
    with contextlib.suppress(PortError):
        return bind(config.server_host, DEFAULT_PORT)
    return bind(config.server_host, 0)
