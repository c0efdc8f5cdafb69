"""Virtualenvs for servers whose requirements this interpreter does not meet. They are made with uv, named for what is
in them, shared by all servers that ask for the same, and kept. On top of its own packages each one sees ours."""

import hashlib
import logging
import os
import re
import shutil
import site
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_gym.common.paths import PARENT_DIR, cache_dir
from nemo_gym.errors import ConfigError, StartupError

if TYPE_CHECKING:
    from packaging.requirements import Requirement

logger = logging.getLogger(__name__)

INSTALL_WITHIN_S = 1800.0
_THIS_PACKAGE = re.compile(r"(-e|--editable)?\s*nemo[-_.]gym", re.IGNORECASE)


def python_for(folder: Path) -> str | None:
    """The interpreter a server's folder needs, or None when this one will do."""
    wanted = requirements_of(folder)
    missing = [line for line in wanted if not is_met(line)]
    if not missing:
        return None
    logger.info("%s needs %s, which this interpreter does not have", folder.name, ", ".join(missing))
    return str(_virtualenv(folder, wanted))


def requirements_of(folder: Path) -> list[str]:
    """What a folder asks for beyond this package, one requirement each, from whichever file it uses."""
    listed, project = folder / "requirements.txt", folder / "pyproject.toml"
    if listed.is_file() and project.is_file():
        raise ConfigError(f"{folder} has both requirements.txt and pyproject.toml. Expected one of them.")
    if listed.is_file():
        lines = [line.split(" #")[0].strip() for line in listed.read_text().splitlines()]
    elif project.is_file():
        lines = tomllib.loads(project.read_text()).get("project", {}).get("dependencies", [])
    else:
        lines = []
    return [line for line in lines if line and not line.startswith("#") and not _THIS_PACKAGE.match(line)]


def is_met(line: str) -> bool:
    """Whether this interpreter has what a requirement line asks for, with the extras and what those need in turn."""
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        wanted = Requirement(line)
    except InvalidRequirement:
        return False
    return _is_installed(wanted, extra="", seen=set())


def _is_installed(wanted: "Requirement", *, extra: str, seen: set[str]) -> bool:
    """Whether it is here, or not asked for: its marker may be about the `extra` that brought it up."""
    from packaging.requirements import Requirement

    if wanted.marker is not None and not wanted.marker.evaluate({"extra": extra}):
        return True
    try:
        found = metadata.distribution(wanted.name)
    except metadata.PackageNotFoundError:
        return False
    if not wanted.specifier.contains(found.version, prereleases=True):
        return False
    needs = [Requirement(line) for line in found.requires or ()] if wanted.extras else []
    return all(
        _is_installed(need, extra=extra, seen={*seen, extra})
        for extra in wanted.extras - seen
        for need in needs
        if need.marker is not None
    )


def _virtualenv(folder: Path, requirements: list[str]) -> Path:
    """The python of the virtualenv with these requirements, made if it is not there yet."""
    told = "\n".join(
        [sys.version, sys.prefix, str(PARENT_DIR), *sorted(requirements), *_local_files(folder, requirements)]
    )
    place = cache_dir() / "venvs" / hashlib.sha256(told.encode()).hexdigest()[:16]
    python = place / "bin" / "python"
    if (place / ".ready").exists():
        return python
    uv = find_uv()
    logger.info("making a virtualenv for %s in %s", folder.name, place)
    making = place.with_suffix(f".{os.getpid()}")
    shutil.rmtree(making, ignore_errors=True)
    _run([uv, "venv", "--quiet", "--relocatable", "--python", sys.executable, str(making)], folder)
    listed = making / "requirements.txt"
    listed.write_text("\n".join(requirements) + "\n")
    _run(
        [uv, "pip", "install", "--quiet", "--python", str(making / "bin/python"), "--requirement", str(listed)], folder
    )
    _see_our_packages(making)
    (making / ".ready").touch()
    _move_into_place(making, place)
    return python


def _local_files(folder: Path, requirements: list[str]) -> list[str]:
    """The age of files that requirements name by path: they may change under the same name."""
    paths = [folder / line for line in requirements if line.startswith((".", "/")) or line.endswith(".whl")]
    return [f"{path}:{path.stat().st_mtime_ns}" for path in paths if path.exists()]


def _see_our_packages(place: Path) -> None:
    """Let the virtualenv import this package, and all it needs, from where this interpreter has them."""
    folders = [path for path in (*site.getsitepackages(), str(PARENT_DIR)) if Path(path).is_dir()]
    target = next((place / "lib").glob("python*/site-packages"))
    lines = [f"import site; site.addsitedir({path!r})" for path in folders]
    (target / "zz_nemo_gym.pth").write_text("\n".join(lines) + "\n")


def _move_into_place(making: Path, place: Path) -> None:
    try:
        making.rename(place)
    except OSError:
        shutil.rmtree(making, ignore_errors=True)
        if not (place / ".ready").exists():
            raise


def find_uv() -> str:
    """The uv program: on the path, or where `make` put it."""
    found = shutil.which("uv") or shutil.which("uv", path=str(PARENT_DIR / ".tools" / "bin"))
    if found is None:
        raise StartupError(
            "A server has requirements that this interpreter does not meet, and the virtualenv for it is made with "
            "uv, which is not installed. Either install uv (pip install uv), or install the requirements here."
        )
    return found


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_WITHIN_S, check=False)
    if done.returncode:
        raise StartupError(
            f"'{' '.join(command)}' for {folder.name} failed:\n{done.stderr.strip() or done.stdout.strip()}"
        )
