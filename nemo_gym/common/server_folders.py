"""Folders of servers as packages: `<server_type>.<implementation>.<module>` is imported from the folder's root."""

import importlib
import re
import sys
from pathlib import Path

from nemo_gym.common.paths import FOLDER_ALIASES, PARENT_DIR, SERVER_FOLDERS, search_roots
from nemo_gym.common.plugins import plugin

_folders: dict[str, Path] = {}
"""The folders made importable, by package."""


def make_importable(server_type: str, folder: Path) -> None:
    """Let the modules of a folder be imported. A folder of the public NeMo Gym gets imports of its own, since its
    modules import each other by their bare names."""
    package, folder = package_of(server_type, folder), folder.resolve()
    root = str(folder.parents[package.count(".")])
    for known in (root, *(str(path) for path in search_roots())):
        if known not in sys.path:
            sys.path.append(known)
    importlib.invalidate_caches()
    _folders[package] = folder
    if not is_ours(folder) or _imports_by_bare_name(folder):
        plugin("folder_imports")(package, folder)


def package_of(server_type: str, folder: Path) -> str:
    """The dotted name of a server's folder. One whose implementation is `a/b` is two folders deep."""
    outer = [parent.name for parent in folder.parents]
    depth = outer.index(server_type) if server_type in outer else 0
    return ".".join([server_type, *reversed(outer[:depth]), folder.name])


def folder_of(module: str) -> Path | None:
    """The loaded folder that a module is from, if it is from one."""
    parts = module.split(".")
    return _folders.get(".".join(parts[:3])) or _folders.get(".".join(parts[:2]))


def is_ours(folder: Path) -> bool:
    """True for a server that comes with this package."""
    return any(folder.is_relative_to(PARENT_DIR / kind) for kind in SERVER_FOLDERS)


def modules_in(folder: Path) -> set[str]:
    """The names of the modules and packages directly in a folder."""
    return {file.stem for file in folder.glob("*.py")} | {file.parent.name for file in folder.glob("*/__init__.py")}


def _imports_by_bare_name(folder: Path) -> bool:
    """True if a module imports another one as `helpers`, not `<server_type>.<implementation>.helpers`, or a folder by
    its alias. Such a folder may have been copied beside ours."""
    names = map(re.escape, (*modules_in(folder), *(alias.replace("/", ".") for alias in FOLDER_ALIASES)))
    bare = re.compile(rf"^\s*(?:from|import(?:\s+[\w.]+\s*,)*)\s+(?:{'|'.join(names)})\b", re.MULTILINE)
    files = (*folder.glob("*.py"), *folder.glob("[!.]*/*.py"))
    return any(bare.search(file.read_text(errors="replace")) for file in files)
