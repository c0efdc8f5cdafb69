"""Apply a patch to a repository, and put back what decides how its tests run."""

import re
import shlex
import sys
import tempfile
from collections.abc import Collection, Iterable
from pathlib import Path, PurePosixPath

from nemo_gym.sandbox import AsyncSandbox, SandboxError

WORKDIR = "/testbed"
COMMAND_TIMEOUT_S = 120.0
PATCH, PATHS = ".git/nemo-gym.patch", ".git/nemo-gym-paths"

_PATCHED_FILE = re.compile(r"^diff --git a/\S+ b/(\S+)$", re.MULTILINE)
_METADATA = re.compile(r"(^|/)[^/]*\.(egg|dist)-info(/|$)", re.IGNORECASE)
_METADATA_GLOBS = ("*.[eE][gG][gG]-[iI][nN][fF][oO]/*", "*.[dD][iI][sS][tT]-[iI][nN][fF][oO]/*")
"""Files that make a module a plugin of pytest. Images have their own, which git does not track."""

SETTINGS = frozenset(
    {
        "pytest.ini",
        ".pytest.ini",
        "pytest.toml",
        ".pytest.toml",
        "tox.ini",
        "setup.cfg",
        "setup.py",
        "pyproject.toml",
        "conftest.py",
        ".gitattributes",
    }
)
"""Files that change how tests run, in any folder. The repository's own count, or the gold patch's if it has any."""
NEVER_PATCHED = re.compile(r"(^|/)(__pycache__|(sitecustomize|usercustomize)(\.[^/]*)?)(/|$)|\.(pth|pyc)$")
"""What Python runs without an import in the code, and compiled modules."""
TEST_FILES = re.compile(r"(^|/)(tests?|testing)(/|$)|(^|/)(test_[^/]*|[^/]*_tests?|tests?)\.py(/|$)")
"""Tests and what they use. The right ones come with the test patch."""
IMPORTED_BY_TESTS = frozenset(sys.stdlib_module_names) | {
    *("pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "pygments", "exceptiongroup", "tomli"),
    *("attr", "attrs", "hypothesis", "mock", "numpy"),
}
"""Modules that tests trust. A patch may not add others of these names where they would be found first."""
MODULE_SUFFIXES = (".py", ".so")


def paths_in(patch: str) -> list[str]:
    """The files that a patch changes."""
    return _PATCHED_FILE.findall(patch)


async def apply_attempt(box: AsyncSandbox, patch: str, *, gold: str, test_patch: str) -> list[str] | None:
    """Apply a patch except for what decides how tests run. Return the changed files, None if it does not apply."""
    before = (await _run(box, "git add -u && git write-tree")).strip()
    if not await apply_patch(box, patch):
        return None
    try:
        kept = await _put_back(box, before, gold=paths_in(gold), tested=paths_in(test_patch))
    except _GitError:
        return None
    settings = [path for path in paths_in(gold) if PurePosixPath(path).name in SETTINGS]
    if settings and not await apply_patch(box, gold, only=settings):
        raise SandboxError(f"The gold patch does not apply to {', '.join(settings)}.")
    return kept


async def _put_back(box: AsyncSandbox, before: str, *, gold: list[str], tested: list[str]) -> list[str]:
    """Put back what a patch must not change. Return the other files that it changed."""
    changed = await _paths(box, f"git diff --cached --name-only --no-renames -z {before}")
    shadows = await _shadows(box, changed, before, tested)
    removed = {path for path in changed if path in shadows or is_put_back(path, gold, tested)}
    if removed:
        await upload_text(box, PATHS, "\0".join(sorted(removed)))
        source = f"--source={before} --pathspec-from-file={PATHS} --pathspec-file-nul"
        await _run(box, f"GIT_LITERAL_PATHSPECS=1 git restore --staged --worktree {source}")
    return [path for path in changed if path not in removed]


def is_put_back(path: str, gold: Collection[str], tested: Collection[str]) -> bool:
    """True for a changed file that a grading takes from the repository, the gold patch or the test patch instead."""
    if PurePosixPath(path).name in SETTINGS or NEVER_PATCHED.search(path) or _METADATA.search(path):
        return True
    return path in tested or (bool(TEST_FILES.search(path)) and path not in gold)


async def _shadows(box: AsyncSandbox, changed: list[str], before: str, tested: list[str]) -> set[str]:
    """New modules with the name of one that tests import, in folders from which pytest imports."""
    folders = {"", "src/", "lib/", *(f"{PurePosixPath(path).parent}/".removeprefix("./") for path in tested)}
    found = {path: top for path in changed for folder in folders if (top := _shadowing(path, folder))}
    packages = {f"{folder}__init__.py" for folder in folders if folder}
    known = set(
        await _paths(box, f"git ls-tree --name-only -z {before} -- {shlex.join({*found.values(), *packages})}")
    )
    return {path for path, top in found.items() if top not in known and f"{_folder(top)}__init__.py" not in known}


def _shadowing(path: str, folder: str) -> str | None:
    """The module or package in a folder, if a file is part of one and tests import others of its name."""
    top = path.removeprefix(folder).split("/")[0]
    is_module = path.startswith(folder) and path.endswith(MODULE_SUFFIXES)
    return folder + top if is_module and top.split(".")[0] in IMPORTED_BY_TESTS else None


def _folder(path: str) -> str:
    return path[: path.rfind("/") + 1]


async def apply_patch(box: AsyncSandbox, patch: str, *, only: Iterable[str] = (), check_only: bool = False) -> bool:
    """Apply a patch, or its changes to some files."""
    if not patch.strip():
        return True
    await upload_text(box, PATCH, patch if patch.endswith("\n") else f"{patch}\n")
    options = [f"--exclude={pattern}" for pattern in _METADATA_GLOBS] + [f"--include={path}" for path in only]
    options += ["--check"] if check_only else ["--index"]
    command = f"git apply --whitespace=nowarn {shlex.join(options)} {PATCH}"
    result = await box.exec(command, timeout_s=COMMAND_TIMEOUT_S)
    if result.error_type is not None:
        raise SandboxError(f"`{command}` failed: {result.stderr}")
    return result.return_code == 0


async def upload_text(box: AsyncSandbox, path: str, text: str) -> None:
    with tempfile.TemporaryDirectory(prefix="nemo-gym-patch-") as folder:
        local = Path(folder) / "file"
        local.write_text(text)
        await box.upload(local, f"{WORKDIR}/{path}")


async def download_bytes(box: AsyncSandbox, path: str) -> bytes:
    with tempfile.TemporaryDirectory(prefix="nemo-gym-patch-") as folder:
        local = Path(folder) / "file"
        await box.download(f"{WORKDIR}/{path}", local)
        return local.read_bytes()


async def _paths(box: AsyncSandbox, command: str) -> list[str]:
    return [path for path in (await _run(box, command)).split("\0") if path]


class _GitError(SandboxError):
    """A command of git failed, or had too much to say. After a patch was applied, that patch is the reason."""


async def _run(box: AsyncSandbox, command: str) -> str:
    result = await box.exec(command, timeout_s=COMMAND_TIMEOUT_S)
    if result.error_type is not None:
        raise SandboxError(f"`{command}` did not run: {result.stderr}")
    if result.return_code or result.is_truncated:
        raise _GitError(f"`{command}` failed: {result.stderr}")
    return result.stdout or ""
