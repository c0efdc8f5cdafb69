"""The files that make up a server: those in its folder, and those that its settings name; and hashes of them."""

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nemo_gym.common.paths import PARENT_DIR, search_roots
from nemo_gym.config.keys import KeyPath, ServerBlock, blocks_in, leaves

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
