"""Sandbox providers by name (built in, registered, or of installed packages), and which of them work here."""

import functools
import importlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from nemo_gym.sandbox.contract import Level, SandboxProvider, SandboxUnavailableError
from nemo_gym.sandbox.local import LocalProvider

if TYPE_CHECKING:
    from nemo_gym.sandbox.local import LocalProvider

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


ENTRY_POINTS = "nemo_gym.sandbox_providers"

BUILT_IN = {
    "bubblewrap": "nemo_gym.sandbox.bubblewrap:BubblewrapProvider",
    "landlock": "nemo_gym.sandbox.landlock:LandlockProvider",
    "docker": "nemo_gym.sandbox.containers:DockerProvider",
    "apptainer": "nemo_gym.sandbox.containers:ApptainerProvider",
    "unconfined": "nemo_gym.sandbox.landlock:UnconfinedProvider",
}
NOT_INCLUDED = ("daytona", "ecs_fargate", "enroot", "opensandbox", "openshell")
"""Providers that public folders may name and that are not part of this package."""

_registered: dict[str, type[Any]] = {}


def list_providers() -> list[str]:
    return sorted({*BUILT_IN, *_registered, *(point.name for point in entry_points(group=ENTRY_POINTS))})


def register_provider(name: str, provider_class: type[Any], override: bool = False) -> None:
    if not override and name in list_providers():
        raise ValueError(f"There is a sandbox provider '{name}' already; pass override=True to replace it.")
    _registered[name] = provider_class


def get_provider_class(name: str) -> type[Any]:
    """The class of a provider. Raises ValueError for an unknown name."""
    if name in _registered:
        return _registered[name]
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        found: type[Any] = getattr(importlib.import_module(module), attribute)
        return found
    for point in entry_points(group=ENTRY_POINTS):
        if point.name == name:
            loaded: type[Any] = point.load()
            return loaded
    hint = " It is not part of this package; register one under this name." if name in NOT_INCLUDED else ""
    raise ValueError(f"There is no sandbox provider '{name}'.{hint} Providers: {', '.join(list_providers())}, auto.")


def create_provider(config: Mapping[str, Any]) -> SandboxProvider:
    """The provider that a single-key mapping `{name: options}` describes. `auto` is the best that works here."""
    if len(config) != 1:
        raise ValueError(f"Expected one sandbox provider, found {len(config)}: {', '.join(config) or 'none'}.")
    (name, options), *_ = config.items()
    if name == "auto":
        from nemo_gym.sandbox.registry import best_provider

        name = best_provider().name
    provider: SandboxProvider = get_provider_class(name)(**(options or {}))
    return provider


def local_provider(config: Mapping[str, Any]) -> "LocalProvider":
    """A provider that has Python programs and sessions. `auto` is the best of these that works here."""
    from nemo_gym.sandbox.local import LocalProvider
    from nemo_gym.sandbox.registry import best_provider

    if "auto" in config:
        config = {best_provider(local=True).name: config["auto"]}
    provider = create_provider(config)
    if not isinstance(provider, LocalProvider):
        raise SandboxUnavailableError(
            f"The sandbox provider '{provider.name}' has no Python sessions. Use auto, bubblewrap or landlock."
        )
    return provider


METADATA_KEY = "default_metadata"


class SandboxConfig(BaseModel):
    """The fields of a server that runs model-written code."""

    sandbox_provider: str | dict[str, Any] = {"auto": {}}
    """Where the code runs: `{provider: options}`, or the name of a top-level block with that. See docs/sandbox.md."""

    def local_provider(self, named_configs: Mapping[str, Any], **defaults: Any) -> LocalProvider:
        """The provider, with options that hold unless the configuration says otherwise."""
        ((name, options),) = resolve_provider_config(self.sandbox_provider, named_configs).items()
        limits = {**defaults.get("limits", {}), **(options.get("limits") or {})}
        return local_provider({name: {**defaults, **options, "limits": limits}})


def resolve_provider_config(ref: Any, named_configs: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """`{provider: options}` for a server's `sandbox_provider`."""
    block = _block(ref, named_configs)
    providers = {name: dict(options or {}) for name, options in block.items() if name != METADATA_KEY}
    if len(providers) != 1:
        found = ", ".join(providers) or "none"
        raise ValueError(f"A sandbox block names exactly one provider; this one names {found}.")
    return providers


def resolve_provider_metadata(ref: Any, named_configs: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The metadata that sandboxes of this block have unless their spec says otherwise."""
    return dict(_block(ref, named_configs).get(METADATA_KEY) or {})


def _block(ref: Any, named_configs: Mapping[str, Any] | None) -> Mapping[str, Any]:
    if isinstance(ref, str):
        named = named_configs or {}
        block = named.get(ref)
        if not isinstance(block, Mapping):
            candidates = ", ".join(str(name) for name, value in named.items() if isinstance(value, Mapping)) or "none"
            raise ValueError(f"There is no sandbox block '{ref}' in the configuration. Blocks: {candidates}.")
        return block
    if isinstance(ref, Mapping):
        return ref
    raise TypeError(f"sandbox_provider is a {type(ref).__name__}; expected a block's name or a mapping.")
