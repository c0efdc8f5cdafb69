"""Virtualenvs for servers whose requirements this interpreter does not meet.

They are made with uv, named for what is in them, shared by all servers that ask for the same, and kept. On top of its
own packages each one sees ours."""

import contextlib
import hashlib
import logging
import os
import shutil
import site
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from nemo_gym.common.paths import PARENT_DIR, cache_dir, find_uv
from nemo_gym.errors import StartupError
from nemo_gym.runtime.requirements import VenvSettings

logger = logging.getLogger(__name__)

INSTALL_WITHIN_S = 1800.0


def make_virtualenv(folder: Path, requirements: list[str], settings: VenvSettings) -> Path:
    """The python of the virtualenv with these requirements, made if it is not there yet."""
    constraints = own_constraints()
    local = _local_files(folder, requirements)
    inputs = "\n".join((sys.version, sys.prefix, str(PARENT_DIR), *sorted(requirements), *constraints, *local))
    digest = hashlib.sha256(inputs.encode()).hexdigest()[:16]
    named = settings.uv_venv_dir and settings.uv_venv_dir / folder.parent.name / folder.name / ".venv"
    place = (named or cache_dir() / "venvs" / digest).absolute()
    python, ready = place / "bin" / "python", place / ".ready"
    if ready.exists() and (named is None or settings.skip_venv_if_present or ready.read_text() == digest):
        return python
    logger.info("making a virtualenv for %s in %s", folder.name, place)
    making = place.with_name(f"{place.name}.{os.getpid()}")
    shutil.rmtree(making, ignore_errors=True)
    _install(making, folder, requirements, constraints, settings)
    (making / ".ready").write_text(digest)
    if named is not None:
        shutil.rmtree(place, ignore_errors=True)
    try:
        making.rename(place)
    except OSError:  # another process was faster
        shutil.rmtree(making, ignore_errors=True)
        if not ready.exists():
            raise
    return python


def _install(
    making: Path, folder: Path, requirements: list[str], constraints: list[str], settings: VenvSettings
) -> None:
    uv, python = find_uv(), str(making / "bin/python")
    making.parent.mkdir(parents=True, exist_ok=True)
    _run([uv, "venv", "--quiet", "--relocatable", "--python", sys.executable, str(making)], folder, settings)
    files: list[str] = []
    for option, lines in (("--requirement", requirements), ("--constraint", constraints)):
        listed = making / f"{option.strip('-')}s.txt"
        listed.write_text("\n".join(lines) + "\n")
        files += [option, str(listed)]
    _run([uv, "pip", "install", "--quiet", "--python", python, *files], folder, settings)
    _see_our_packages(making)


def _local_files(folder: Path, requirements: list[str]) -> list[str]:
    """The age of files that requirements name by path: they may change under the same name."""
    named = (line.rpartition("file://")[2].partition(" ;")[0] for line in requirements)
    paths = [folder / path for path in named if path.startswith((".", "/")) or path.endswith(".whl")]
    return [f"{path}:{path.stat().st_mtime_ns}" for path in paths if path.exists()]


def _see_our_packages(place: Path) -> None:
    """Let the virtualenv import this package, and all it needs, from where this interpreter has them."""
    folders = [path for path in (*site.getsitepackages(), str(PARENT_DIR)) if Path(path).is_dir()]
    target = next((place / "lib").glob("python*/site-packages"))
    lines = [f"import site; site.addsitedir({path!r})" for path in folders]
    (target / "zz_nemo_gym.pth").write_text("\n".join(lines) + "\n")


def _run(command: list[str], folder: Path, settings: VenvSettings) -> None:
    cache = {"UV_CACHE_DIR": settings.uv_cache_dir} if settings.uv_cache_dir else {}
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **cache},
        capture_output=True,
        text=True,
        timeout=INSTALL_WITHIN_S,
        check=False,
    )
    if done.returncode:
        said = done.stderr.strip() or done.stdout.strip()
        raise StartupError(
            f"'{' '.join(command)}' for {folder.name} failed:\n{said}\nThe versions of NeMo Gym's own dependencies "
            "(constraints.txt) are fixed, since its worker runs in the same virtualenv."
        )


def own_constraints() -> list[str]:
    """The installed versions of all that this package needs, which a folder's packages must not replace: they would
    come first in the folder's virtualenv, and the worker imports them too."""
    from packaging.requirements import Requirement

    found: dict[str, str] = {}
    queue = ["nemo-gym"]
    while queue:
        name = queue.pop()
        with contextlib.suppress(metadata.PackageNotFoundError):
            distribution = metadata.distribution(name)
            found[name] = distribution.version
            needs = [Requirement(line) for line in distribution.requires or ()]
            wanted = [need.name for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})]
            queue += [name for name in wanted if name not in found]
    return sorted(f"{name}=={version}" for name, version in found.items() if name != "nemo-gym")
