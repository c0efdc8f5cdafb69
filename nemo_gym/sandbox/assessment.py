"""Which sandboxes work on this machine, why others do not, and what would change that."""

import functools
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nemo_gym.sandbox.contract import Level, SandboxUnavailableError

PROBE_TIMEOUT_S = 20.0
INSTALL = "pip install 'nemo-gym[sandbox]'   (or your system's package: apt install bubblewrap)"


@dataclass(frozen=True, slots=True)
class Assessment:
    """One provider on this machine."""

    name: str
    level: Level
    works: bool
    reason: str
    """Why it works or does not."""
    fix: str | None = None
    """What to do so that it works."""
    not_covered: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Machine:
    """What decides whether user namespaces can be had."""

    apparmor_restricts: bool = False
    clone_allowed: bool = True
    max_namespaces: int = 1
    in_container: bool = False
    is_root: bool = False


def assess() -> Iterator[Assessment]:
    """All providers that need no configuration, best first, each tried when it is asked for."""
    yield bubblewrap()
    yield landlock()
    for engine in ("docker", "apptainer"):
        yield container_engine(engine)


def best_provider(*, local: bool = False) -> Assessment:
    """The first that works. Nothing that does not confine is ever chosen. With `local` container engines are not."""
    for found in assess():
        if found.works and (found.name in ("bubblewrap", "landlock") or not local):
            return found
    why = "\n".join(f"  {one.name}: {one.reason} Fix: {one.fix}" for one in assess())
    raise SandboxUnavailableError(
        f"This machine offers no sandbox, so model-written code is not run.\n{why}\n"
        "If you trust the code, name the provider 'unconfined' in the configuration. `ng_doctor` shows this again."
    )


@functools.cache
def bubblewrap() -> Assessment:
    from nemo_gym.sandbox.bubblewrap import NOT_COVERED, bubblewrap_path, probe_command

    try:
        path = bubblewrap_path()
        command = probe_command()
    except SandboxUnavailableError as error:
        return Assessment("bubblewrap", "full", False, str(error), INSTALL)
    failure = _failure(command)
    if failure is None:
        return Assessment("bubblewrap", "full", True, f"{path} makes namespaces.", None, NOT_COVERED)
    return Assessment("bubblewrap", "full", False, f"{path}: {failure}", namespace_fix(machine()))


@functools.cache
def landlock() -> Assessment:
    from nemo_gym.sandbox.landlock import NOT_COVERED, landlock_abi
    from nemo_gym.sandbox.seccomp import seccomp_filter

    abi = landlock_abi()
    if not abi:
        fix = "Linux 5.13 or later, with 'landlock' in the lsm= list of the kernel's command line"
        return Assessment("landlock", "partial", False, "The kernel has no Landlock.", fix)
    try:
        seccomp_filter(in_namespaces=False)
    except SandboxUnavailableError as error:
        return Assessment("landlock", "partial", False, str(error))
    return Assessment("landlock", "partial", True, f"The kernel has Landlock ABI {abi}.", None, NOT_COVERED)


@functools.cache
def container_engine(name: str) -> Assessment:
    """Whether an engine answers. Its sandboxes confine as far as its own settings do."""
    checks = {"docker": ["docker", "info"], "apptainer": ["apptainer", "version"]}
    fixes = {"docker": "start the Docker daemon, and be in the group 'docker'", "apptainer": "install apptainer"}
    if shutil.which(name) is None:
        return Assessment(name, "full", False, f"There is no program '{name}'.", f"install {name}")
    failure = _failure(checks[name])
    if failure is None:
        return Assessment(
            name, "full", True, f"{name} answers. It runs images; Python sessions need another provider."
        )
    return Assessment(name, "full", False, failure, fixes[name])


def _failure(command: list[str]) -> str | None:
    """What a command said when it failed; None if it went well."""
    try:
        done = subprocess.run(
            command,
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROBE_TIMEOUT_S,
            text=True,
            errors="replace",
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return None
    lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return lines[-1] if lines else f"exit code {done.returncode}"


def machine() -> Machine:
    return Machine(
        apparmor_restricts=_number("kernel/apparmor_restrict_unprivileged_userns", 0) == 1,
        clone_allowed=_number("kernel/unprivileged_userns_clone", 1) != 0,
        max_namespaces=_number("user/max_user_namespaces", 1),
        in_container=Path("/.dockerenv").exists() or Path("/run/.containerenv").exists() or _is_filtered(),
        is_root=os.geteuid() == 0,
    )


def namespace_fix(facts: Machine) -> str:
    """The command that lets bubblewrap make namespaces."""
    if facts.max_namespaces == 0:
        return "sudo sysctl -w user.max_user_namespaces=15000"
    if not facts.clone_allowed:
        return "sudo sysctl -w kernel.unprivileged_userns_clone=1"
    if facts.apparmor_restricts and not facts.in_container:
        return "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0   (or an AppArmor profile for bwrap)"
    if facts.in_container:
        return (
            "start the container with --security-opt seccomp=unconfined --security-opt apparmor=unconfined "
            "--security-opt systempaths=unconfined"
        )
    return "allow user namespaces for this user; see docs/sandbox.md"


def _number(name: str, default: int) -> int:
    try:
        return int(Path("/proc/sys", name).read_text())
    except (OSError, ValueError):
        return default


def _is_filtered() -> bool:
    """True under a seccomp filter, as in a container."""
    try:
        return "Seccomp:\t2" in Path("/proc/self/status").read_text()
    except OSError:
        return False
