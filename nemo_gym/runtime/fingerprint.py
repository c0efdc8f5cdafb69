"""Fingerprints of workers: two that make comparable rollouts have the same settings and code of servers.

Addresses, secrets and folders to write into may differ from machine to machine, so they are left out. A setting that
names a file counts by the content of the file."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from nemo_gym import __version__
from nemo_gym.common.words import shorten
from nemo_gym.config.keys import VOLATILE_KEYS, KeyPath, ServerBlock, blocks_in, changes, dotted, leaves, value_at
from nemo_gym.config.secrets import MASK, masked
from nemo_gym.config.server_files import files_under, find_named, hash_file, is_path_key, names_path, server_folder

ADDRESS_SUFFIXES = ("url", "urls")
_WRITTEN_FOLDER = re.compile(r"(^|_)(logs?|cache|venv|te?mp|scratch|outputs?|results?)(_|$)")
"""Matches the keys of files and folders that a server writes."""
_MAX_SHOWN = 120


class Fingerprint(BaseModel):
    """The settings and the code of servers, without secrets."""

    model_config = ConfigDict(frozen=True)

    version: str
    """The version of this package."""
    servers: dict[str, dict[str, str]]
    """The text of each setting and the hash of each file, by server."""

    def differences(self, run: "Fingerprint") -> list[str]:
        """Describe how a worker with this fingerprint differs from its run, a line each. It may have fewer servers."""
        unknown = [f"{name}: the run has no such server" for name in self.servers if name not in run.servers]
        shared = [name for name in self.servers if name in run.servers]
        own, expected = ({name: each.servers[name] for name in shared} for each in (self, run))
        found = [*changes({"nemo_gym": self.version}, {"nemo_gym": run.version}), *changes(own, expected)]
        lines = [
            f"{change.path[-1]}: {_shortened(change.before)} in this worker, {_shortened(change.now)} in the run"
            for change in found
            if MASK not in str(change.before) and MASK not in str(change.now)
        ]
        return list(dict.fromkeys([*lines, *unknown]))


def make_fingerprint(settings: Mapping[str, Any]) -> Fingerprint:
    """The fingerprint of the servers in resolved settings. Slow if their files are large."""
    shown = masked(settings)
    servers: dict[str, dict[str, str]] = {}
    for block in blocks_in(settings):
        folder = server_folder(block)
        own = servers.setdefault(block.name, {})
        own.update(() if folder is None else _code(block, folder))
        own.update(_settings(block, folder, shown))
    return Fingerprint(version=__version__, servers=servers)


def _shortened(text: str | None) -> str:
    return "missing" if text is None else shorten(text, _MAX_SHOWN)


def _code(block: ServerBlock, folder: Path) -> Iterator[tuple[str, str]]:
    for file in files_under(folder):
        yield f"{block.server_type}/{block.implementation}/{file.relative_to(folder)}", _content(file)


def _settings(block: ServerBlock, folder: Path | None, shown: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for path, value in leaves(block.config):
        if value is None or _is_of_this_machine(path):
            continue
        full_path = (block.name, block.server_type, block.implementation, *path)
        file = find_named(value, folder) if names_path(path, value) else None
        text = json.dumps(value_at(shown, full_path), default=str) if file is None else _content(file)
        yield dotted(full_path), text


def _is_of_this_machine(path: KeyPath) -> bool:
    """True for addresses, and for files and folders that a server writes."""
    keys = [key for key in path if isinstance(key, str)]
    is_address = any(key.endswith(ADDRESS_SUFFIXES) for key in keys)
    is_written = is_path_key(path) and any(_WRITTEN_FOLDER.search(key) for key in keys)
    return is_address or is_written or not VOLATILE_KEYS.isdisjoint(keys)


def _content(path: Path) -> str:
    """A hash of a file, or of all files in a folder."""
    files = [path] if path.is_file() else files_under(path)
    hashes = [(str(file.relative_to(path)), hash_file(file)) for file in files]
    return f"content {hashlib.sha256(json.dumps(hashes).encode()).hexdigest()[:16]}"
