"""Hashes of the files that decide what servers answer: the code of their folders, and the files their configuration
names. With them a changed verifier is noticed before its rewards mix with older ones."""

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nemo_gym.common.paths import PARENT_DIR, search_roots
from nemo_gym.config.blocks import blocks_in

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
    for _, server_type, implementation, config in blocks_in(settings):
        folder = _find(f"{server_type}/{implementation}", ())
        roots = () if folder is None else (folder,)
        named = [_find(path, roots) for path in _paths_in(config)]
        for found in (folder, *named):
            for file in [] if found is None else _files_under(found):
                files[_shown(file)] = file
    return {name: _hash(files[name]) for name in sorted(files)}


def describe_file_changes(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    """What is different, a line per file."""
    for name in sorted({*before, *now}):
        if before.get(name) != now.get(name):
            yield f"{name} was {'deleted' if name not in now else 'changed' if name in before else 'added'}"


def _paths_in(config: Any, key: str = "") -> Iterator[str]:
    if isinstance(config, Mapping):
        for name, value in config.items():
            if name not in SKIPPED_KEYS and not str(name).startswith("output"):
                yield from _paths_in(value, str(name))
    elif isinstance(config, list):
        for value in config:
            yield from _paths_in(value, key)
    elif isinstance(config, str) and config and key.endswith(PATH_SUFFIXES):
        yield config


def _find(path: str, roots: tuple[Path, ...]) -> Path | None:
    wanted = Path(path).expanduser()
    tried = [wanted] if wanted.is_absolute() else [root / wanted for root in (*roots, *search_roots())]
    return next((candidate.resolve() for candidate in tried if candidate.exists()), None)


def _files_under(path: Path) -> Iterator[Path]:
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


def _hash(file: Path) -> str:
    """Empty if the file cannot be read: then it cannot have been used either."""
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
