"""Find files and folders. A path that a user gives is looked up in the extra roots first, then in the working
directory, beside the package, and then in all of them under the folder that it is an alias of.

A server's folder is a package: `<server_type>.<implementation>.<module>` is imported from the folder's root."""

import contextlib
import difflib
import importlib
import os
import re
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from nemo_gym.common.plugins import plugin
from nemo_gym.errors import MissingPathError, StartupError

PACKAGE_DIR = Path(__file__).resolve().parent.parent
PARENT_DIR = PACKAGE_DIR.parent
"""The clone, or site-packages: the folder that holds `resources_servers/` and its siblings."""

WORKING_DIR = Path(os.environ.get("PWD", ".")).absolute()
"""The folder in which this process was started."""

CACHE_ENV_VAR = "NEMO_GYM_CACHE_DIR"
STATE_ENV_VAR = "NEMO_GYM_STATE_DIR"
EXTRA_ROOTS_ENV_VAR = "NEMO_GYM_EXTRA_ROOTS"
"""Folders to look in before the working directory, separated as in PATH."""

FOLDER_ALIASES = {
    "resources_servers/example_session_state_mgmt": "resources_servers/example_stateful_counter",
    "resources_servers/example_single_tool_call": "resources_servers/example_simple_weather",
    "resources_servers/multineedle": "resources_servers/example_multi_step",
}
"""Server folders with an older or newer name. A path under the alias is found in the folder itself; only a config with
other server names needs its own file there."""

SERVER_FOLDERS = ("resources_servers", "responses_api_agents", "responses_api_models")
PUBLIC_FOLDERS = (*SERVER_FOLDERS, "environment_servers")
"""Also the folder of environment servers, which only the public NeMo Gym has."""


def search_roots() -> list[Path]:
    """The folders in which relative paths are looked up, in order."""
    extra = filter(None, os.environ.get(EXTRA_ROOTS_ENV_VAR, "").split(os.pathsep))
    return list(dict.fromkeys((*(Path(path).expanduser() for path in extra), Path.cwd(), PARENT_DIR)))


def find(path: str | Path, *, what: str = "file") -> Path:
    """The existing file or folder that `path` means, or an error that names what is nearest to it."""
    wanted = Path(path).expanduser()
    tried = [wanted] if wanted.is_absolute() else [root / wanted for root in search_roots()]
    for candidate in (*tried, *filter(None, map(_alias_target, tried))):
        if candidate.exists() and not _is_only_output(candidate):
            return candidate
    places = " nor ".join(str(candidate) for candidate in tried)
    absent = f"there is neither {places}" if len(tried) > 1 else f"{places} does not exist"
    raise MissingPathError(f"No {what} '{path}': {absent}.{_nearest_sibling(tried)}")


def _alias_target(path: Path) -> Path | None:
    """Return the path under the folder that `path` is an alias of; None if it is not under an alias."""
    for root in search_roots():
        parts = path.relative_to(root).parts if path.is_relative_to(root) else ()
        target = FOLDER_ALIASES.get("/".join(parts[:2]))
        if target is not None:
            return root.joinpath(target, *parts[2:])
    return None


def _is_only_output(path: Path) -> bool:
    """True if an alias folder exists only because a command wrote its output there."""
    return "/".join(path.parts[-2:]) in FOLDER_ALIASES and path.is_dir() and not any(path.glob("*.py"))


def nearest(name: str, valid: Iterable[str], *, cutoff: float = 0.5) -> str:
    """A closing sentence that names the valid word closest to `name`, or nothing."""
    close = difflib.get_close_matches(name, list(valid), n=1, cutoff=cutoff)
    return f" Did you mean '{close[0]}'?" if close else ""


def cache_dir() -> Path:
    """Return the folder for files that can be made again."""
    default = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "nemo_gym"
    return Path(os.environ.get(CACHE_ENV_VAR, default))


def state_dir() -> Path:
    """Return the folder for what commands remember of earlier ones."""
    default = Path(os.environ.get("XDG_STATE_HOME", "~/.local/state")).expanduser() / "nemo_gym"
    return Path(os.environ.get(STATE_ENV_VAR, default))


def checked_out_commit(folder: Path) -> str | None:
    """Return the commit that is checked out in the git repository of a folder. None if it is in none."""
    for place in (folder, *folder.parents):
        if (place / ".git").exists():
            with contextlib.suppress(OSError, ValueError):
                return _commit_of(place / ".git")
            return None
    return None


def _commit_of(git: Path) -> str | None:
    """Read the commit from git's files: starting git takes longer than the rest of a command's start."""
    if git.is_file():  # of a worktree
        git = git.parent / git.read_text().removeprefix("gitdir:").strip()
    head = (git / "HEAD").read_text().strip()
    if not head.startswith("ref: "):
        return head or None
    name = head.removeprefix("ref: ")
    common = git / (git / "commondir").read_text().strip() if (git / "commondir").exists() else git
    for place in (git / name, common / name):
        if place.is_file():
            return place.read_text().strip()
    packed = (common / "packed-refs").read_text().splitlines()
    return next((line.split()[0] for line in packed if line.endswith(f" {name}")), None)


UV_FOLDER = PARENT_DIR / ".tools" / "bin"
"""The uv that `make setup` installs."""


def find_uv() -> str:
    """The uv program: on the path, or where `make` put it."""
    found = shutil.which("uv") or shutil.which("uv", path=str(UV_FOLDER))
    if found is None:
        raise StartupError(
            "A server has requirements that this interpreter does not meet, and the virtualenv for it is made with "
            "uv, which is not installed. Either install uv (pip install uv), or install the requirements here."
        )
    return found


def _nearest_sibling(tried: list[Path]) -> str:
    for candidate in tried:
        if candidate.parent.is_dir():
            names = [entry.name for entry in candidate.parent.iterdir()]
            stems = difflib.get_close_matches(candidate.stem, {Path(name).stem for name in names}, n=3, cutoff=0.6)
            alike = [name for name in names if Path(name).stem in stems]  # a common suffix alone says nothing
            close = difflib.get_close_matches(candidate.name, alike, n=1, cutoff=0.5)
            if close:
                return f" Did you mean '{candidate.with_name(close[0])}'?"
    return ""


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
