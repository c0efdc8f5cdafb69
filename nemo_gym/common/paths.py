"""Where things are. A path a user gives is looked up in the extra roots first, then in the working directory, beside
the package, and then in all of them under the folder that it is an alias of."""

import difflib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from nemo_gym.errors import MissingPathError, StartupError

PACKAGE_DIR = Path(__file__).resolve().parent.parent
PARENT_DIR = PACKAGE_DIR.parent
"""The clone, or site-packages: the folder that holds `resources_servers/` and its siblings."""

WORKING_DIR = Path(os.environ.get("PWD", ".")).absolute()
"""Where this process was started."""

CACHE_ENV_VAR = "NEMO_GYM_CACHE_DIR"
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
    """The same path under the folder that `path` is an alias of; None if it is not under an alias."""
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
    """Where we keep what can be made again."""
    default = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "nemo_gym"
    return Path(os.environ.get(CACHE_ENV_VAR, default))


def find_uv() -> str:
    """The uv program: on the path, or where `make` put it."""
    found = shutil.which("uv") or shutil.which("uv", path=str(PARENT_DIR / ".tools" / "bin"))
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
