"""The files of the host that a sandbox can read: the system's programs, one Python and the packages asked for.

Installed packages are left out unless named: an environment's answers may be among them."""

import contextlib
import functools
import glob
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from nemo_gym.sandbox.contract import SandboxUnavailableError

PACKAGES = "/packages"
"""Where a sandbox has its Python packages."""
ETC = Path(__file__).parent / "etc"
SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/alternatives")
"""Shown in place of the empty ones in our `etc`."""
COMPILE_TIMEOUT_S = 120.0
_SITE = "lib/python3*/{}-packages"


@dataclass(frozen=True, slots=True)
class Runtime:
    """What is mounted where, all of it read-only."""

    python: str
    binds: tuple[tuple[str, str], ...]
    """Path on the host, path in the sandbox."""
    symlinks: tuple[tuple[str, str], ...]
    """Target, path in the sandbox."""
    masked: tuple[str, ...]
    """Folders inside the binds that are shown empty: whatever else is installed on this machine."""
    python_path: tuple[str, ...]

    def path(self) -> str:
        return f"{Path(self.python).parent}:/usr/local/bin:/usr/bin:/bin"


@functools.lru_cache
def host_runtime(packages: tuple[str, ...] = ()) -> Runtime:
    """The runtime with this interpreter and these installed packages, with all that they require."""
    prefix, python = (
        os.path.realpath(sys.base_prefix),
        os.path.realpath(getattr(sys, "_base_executable", sys.executable)),
    )
    system = [folder for folder in SYSTEM_FOLDERS if os.path.exists(folder)]
    links = tuple((os.readlink(folder), folder) for folder in system if os.path.islink(folder))
    folders = [folder for folder in system if not os.path.islink(folder)]
    if not Path(prefix).is_relative_to("/usr"):
        folders.append(prefix)
    binds = [*((path, path) for path in folders), (str(ETC), "/etc")]
    binds += [(path, path) for path in SYSTEM_FILES if os.path.exists(path)]
    installed = package_paths(packages)
    binds += [(str(path), f"{PACKAGES}/{name}") for name, path in installed.items()]
    masked = {path for root in {prefix, "/usr", "/usr/local"} for path in site_folders(root)}
    return Runtime(python, tuple(binds), links, tuple(sorted(masked)), (PACKAGES,) if installed else ())


def site_folders(prefix: str) -> list[str]:
    return [path for kind in ("site", "dist") for path in glob.glob(f"{prefix}/{_SITE.format(kind)}")]


def package_paths(packages: tuple[str, ...]) -> dict[str, Path]:
    """The top-level files and folders of installed distributions and of what they require."""
    paths: dict[str, Path] = {}
    seen: set[Requested] = set()
    waiting = [_requested(Requirement(name)) for name in packages]
    while waiting:
        wanted = waiting.pop()
        if wanted in seen:
            continue
        seen.add(wanted)
        distribution = _distribution(wanted.name)
        for file in distribution.files or []:
            if file.parts[0] not in ("..", "__pycache__"):
                paths[file.parts[0]] = Path(str(distribution.locate_file(file.parts[0])))
        waiting += _requirements(distribution, wanted.extras)
    return {name: path for name, path in sorted(paths.items()) if path.exists()}


def compile_packages(modules: tuple[str, ...]) -> None:
    """Have modules imported once out here, so that their bytecode is on disk: a sandbox can read it but not write it,
    and compiling takes longer than everything else about an import."""
    specs = [spec for name in modules if (spec := importlib.util.find_spec(name)) and spec.origin]
    if all(os.path.exists(importlib.util.cache_from_source(str(spec.origin))) for spec in specs):
        return
    command = [sys.executable, "-c", "".join(f"import {name}\n" for name in modules)]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(command, check=False, capture_output=True, timeout=COMPILE_TIMEOUT_S, env=env)


def _distribution(name: str) -> importlib.metadata.Distribution:
    try:
        return importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError as error:
        raise SandboxUnavailableError(
            f"The sandbox is to have the package '{name}', which is not installed. Install it with: pip install {name}"
        ) from error


class Requested(NamedTuple):
    """An installed distribution, with the extras of it that are needed."""

    name: str
    extras: frozenset[str]


def _requested(requirement: Requirement) -> Requested:
    return Requested(canonicalize_name(requirement.name), frozenset(requirement.extras))


def _requirements(distribution: importlib.metadata.Distribution, extras: frozenset[str]) -> list[Requested]:
    required = [Requirement(text) for text in distribution.requires or []]
    needed = [
        one
        for one in required
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in ("", *extras))
    ]
    return [_requested(one) for one in needed]
