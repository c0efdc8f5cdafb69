"""What two workers must have in common to make comparable rollouts: the settings and the code of their servers.

Addresses, secrets and folders to write into may differ from machine to machine, so they are left out. A setting that
names a file counts by the content of the file."""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from nemo_gym import __version__
from nemo_gym.common.paths import PARENT_DIR, search_roots
from nemo_gym.common.words import shorten
from nemo_gym.config.keys import VOLATILE_KEYS, KeyPath, ServerBlock, blocks_in, dotted, leaves, value_at
from nemo_gym.config.secrets import MASK, masked

PATH_SUFFIXES = ("path", "paths", "_file", "_dir")
"""Configuration keys that end like this name files or folders: script_fpath, prompt_path, data_dirpath."""
SKIPPED_KEYS = frozenset(("datasets", "openai_base_url", "base_url"))
SKIPPED_FOLDERS = frozenset(("tests", "data", "node_modules", "outputs", "results", "wandb", "checkpoints"))
SKIPPED_SUFFIXES = frozenset((".pyc", ".log", ".md", ".lock"))
MAX_FILES = 2000
WHOLE_BYTES = 32 * 2**20
EDGE_BYTES = 2**20
"""Of a larger file, such as model weights, only the size and both ends are hashed."""


def hash_server_files(settings: Mapping[str, Any]) -> dict[str, str]:
    """A hash for each file, by its path as users know it."""
    files: dict[str, Path] = {}
    for block in blocks_in(settings):
        folder = server_folder(block)
        named = [find_named(value, folder) for path, value in leaves(block.config) if names_path(path, value)]
        for found in (folder, *named):
            for file in [] if found is None else files_under(found):
                files[_shown(file)] = file
    return {name: hash_file(files[name]) for name in sorted(files)}


def describe_file_changes(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    """What is different, a line per file."""
    for name in sorted({*before, *now}):
        if before.get(name) != now.get(name):
            yield f"{name} was {'deleted' if name not in now else 'changed' if name in before else 'added'}"


def server_folder(block: ServerBlock) -> Path | None:
    """The folder of a server's code, if it is found."""
    return _first_existing(f"{block.server_type}/{block.implementation}", ())


def find_named(value: str, folder: Path | None) -> Path | None:
    """The file or folder that a setting of the server in `folder` names, if there is one."""
    return _first_existing(value, () if folder is None else (folder,))


def is_path_key(path: KeyPath) -> bool:
    """True if the key is named like those of files and folders."""
    keys = [key for key in path if isinstance(key, str)]
    return bool(keys) and keys[-1].endswith(PATH_SUFFIXES)


def names_path(path: KeyPath, value: object) -> bool:
    """True if the setting at `path` names a file or a folder that the server reads."""
    keys = [key for key in path if isinstance(key, str)]
    is_read = SKIPPED_KEYS.isdisjoint(keys) and not any(key.startswith("output") for key in keys)
    return isinstance(value, str) and bool(value) and is_read and is_path_key(path)


def _first_existing(path: str, roots: tuple[Path, ...]) -> Path | None:
    wanted = Path(path).expanduser()
    tried = [wanted] if wanted.is_absolute() else [root / wanted for root in (*roots, *search_roots())]
    return next((candidate.resolve() for candidate in tried if candidate.exists()), None)


def files_under(path: Path) -> Iterator[Path]:
    """The file itself, or what is in the folder without caches, tests, data and outputs."""
    if path.is_file():
        yield path
        return
    count = 0
    for folder, subfolders, names in os.walk(path):
        subfolders[:] = sorted(
            name for name in subfolders if name not in SKIPPED_FOLDERS and not name.startswith((".", "__"))
        )
        for name in sorted(names):
            file = Path(folder, name)
            if file.suffix not in SKIPPED_SUFFIXES and not name.startswith(".") and file.is_file():
                count += 1
                if count > MAX_FILES:
                    return
                yield file


def _shown(file: Path) -> str:
    for root in (Path.cwd(), PARENT_DIR):
        if file.is_relative_to(root):
            return str(file.relative_to(root))
    return str(file)


def hash_file(file: Path) -> str:
    """A hash of the content. Empty if the file cannot be read: then it cannot have been used either."""
    try:
        with file.open("rb") as opened:
            size = os.fstat(opened.fileno()).st_size
            if size <= WHOLE_BYTES:
                return hashlib.file_digest(opened, "sha256").hexdigest()[:16]
            digest = hashlib.sha256(f"{size} ".encode() + opened.read(EDGE_BYTES))
            opened.seek(-EDGE_BYTES, os.SEEK_END)
            digest.update(opened.read())
            return digest.hexdigest()[:16]
    except OSError:
        return ""


ADDRESS_SUFFIXES = ("url", "urls")
_WRITTEN_FOLDER = re.compile(r"(^|_)(logs?|cache|venv|te?mp|scratch|outputs?|results?)(_|$)")
"""Among the keys of paths, those of files and folders that a server writes."""
_MISSING = "missing"
_MAX_SHOWN = 120


class Fingerprint(BaseModel):
    """The settings and the code of servers, without secrets."""

    model_config = ConfigDict(frozen=True)

    version: str
    """Of this package."""
    servers: dict[str, dict[str, str]]
    """By server: the text of each setting, and the hash of each file."""

    def differences(self, run: "Fingerprint") -> list[str]:
        """How a worker with this fingerprint differs from its run, a line each. It may have fewer servers."""
        lines = list(_differences({"nemo_gym": self.version}, {"nemo_gym": run.version}))
        for name, own in self.servers.items():
            if name not in run.servers:
                lines.append(f"{name}: the run has no such server")
            else:
                lines += _differences(own, run.servers[name])
        return list(dict.fromkeys(lines))


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


def _differences(own: Mapping[str, str], run: Mapping[str, str]) -> Iterator[str]:
    for key in dict.fromkeys((*own, *run)):
        found, expected = own.get(key, _MISSING), run.get(key, _MISSING)
        if found != expected and MASK not in found and MASK not in expected:
            yield f"{key}: {shorten(found, _MAX_SHOWN)} in this worker, {shorten(expected, _MAX_SHOWN)} in the run"


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
