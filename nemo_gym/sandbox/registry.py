"""Sandbox providers by name (built in, registered, or from installed packages), which of them work on this machine,
and `AsyncSandbox` and `Sandbox`: one sandbox of any provider, from `start` to `stop`."""

import asyncio
import concurrent.futures
import functools
import importlib
import inspect
import os
import shutil
import subprocess
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self, TypeVar

from pydantic import BaseModel

from nemo_gym.sandbox.contract import (
    DEFAULT_TIMEOUT_S,
    Level,
    SandboxEndpoint,
    SandboxExecResult,
    SandboxHandle,
    SandboxProvider,
    SandboxPtyError,
    SandboxSpec,
    SandboxStatus,
    SandboxUnavailableError,
)
from nemo_gym.sandbox.local import LocalProvider

PROBE_TIMEOUT_S = 20.0
INSTALL = "pip install 'nemo-gym[sandbox]'   (or your system's package: apt install bubblewrap)"


@dataclass(frozen=True, slots=True)
class Assessment:
    """The state of one provider on this machine."""

    name: str
    level: Level
    works: bool
    reason: str
    """Why it works, or why not."""
    fix: str | None = None
    """Advice on how to make the provider work."""
    not_covered: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Machine:
    """Properties of this machine that decide whether user namespaces are allowed."""

    apparmor_restricts: bool = False
    clone_allowed: bool = True
    max_namespaces: int = 1
    in_container: bool = False
    is_root: bool = False


def assess() -> Iterator[Assessment]:
    """Yield all providers that need no configuration, best first. Each is tested when it is reached."""
    yield bubblewrap()
    yield landlock()
    for engine in ("docker", "apptainer"):
        yield container_engine(engine)


def best_provider(*, local: bool = False) -> Assessment:
    """Return the first provider that works, never one without isolation. With `local`, skip container engines."""
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
    """Test whether a container engine answers. Its isolation depends on its own settings."""
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
    """Run a command and return its error message; None if it succeeds."""
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
    """Return the command that lets bubblewrap make namespaces."""
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
    "local": "nemo_gym.sandbox.providers.local:LocalProvider",
}
NOT_INCLUDED = ("daytona", "ecs_fargate", "enroot", "opensandbox", "openshell")
"""Providers of the public NeMo Gym that are not part of this package."""

_registered: dict[str, type[Any]] = {}


def list_providers() -> list[str]:
    return sorted({*BUILT_IN, *_registered, *(point.name for point in entry_points(group=ENTRY_POINTS))})


def register_provider(name: str, provider_class: type[Any], override: bool = False) -> None:
    if not override and name in list_providers():
        raise ValueError(f"The sandbox provider '{name}' exists already; pass override=True to replace it.")
    _registered[name] = provider_class


def get_provider_class(name: str) -> type[Any]:
    """Return the class of a provider. Raises ValueError for an unknown name."""
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
    error = f"There is no sandbox provider '{name}'.{{}} Providers: {', '.join(list_providers())}, auto."
    if name in NOT_INCLUDED:
        return _not_included(error.format(" It is not part of this package; register one under this name."))
    raise ValueError(error.format(""))


def _not_included(error: str) -> type[Any]:
    """Return a class that cannot be made. Servers of the public NeMo Gym look up the class when they read their
    configuration, and make a provider for the rollouts that need one."""

    def refuse(_self: Any, **_options: Any) -> None:
        raise SandboxUnavailableError(error)

    return type("NotIncludedProvider", (), {"__init__": refuse})


def create_provider(config: Mapping[str, Any]) -> SandboxProvider:
    """Create the provider of a single-key mapping `{name: options}`. `auto` is the best that works here."""
    if len(config) != 1:
        raise ValueError(f"Expected one sandbox provider, found {len(config)}: {', '.join(config) or 'none'}.")
    (name, options), *_ = config.items()
    if name == "auto":
        name = best_provider().name
    provider: SandboxProvider = get_provider_class(name)(**(options or {}))
    return provider


def local_provider(config: Mapping[str, Any]) -> LocalProvider:
    """Create a provider with Python programs and sessions. `auto` is the best of these that works here."""
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
    """Configuration fields of a server that runs model-written code."""

    sandbox_provider: str | dict[str, Any] = {"auto": {}}
    """The sandbox: `{provider: options}`, or the name of a top-level block with that. See docs/sandbox.md."""

    def local_provider(self, named_configs: Mapping[str, Any], **defaults: Any) -> LocalProvider:
        """Create the provider. `defaults` are options that the configuration can override."""
        ((name, options),) = resolve_provider_config(self.sandbox_provider, named_configs).items()
        limits = {**defaults.get("limits", {}), **(options.get("limits") or {})}
        return local_provider({name: {**defaults, **options, "limits": limits}})


def resolve_provider_config(ref: Any, named_configs: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Resolve a server's `sandbox_provider` to `{provider: options}`."""
    block = _block(ref, named_configs)
    providers = {name: dict(options or {}) for name, options in block.items() if name != METADATA_KEY}
    if len(providers) != 1:
        found = ", ".join(providers) or "none"
        raise ValueError(f"A sandbox block names exactly one provider; this one names {found}.")
    return providers


def resolve_provider_metadata(ref: Any, named_configs: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the default metadata of sandboxes of this block."""
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


T = TypeVar("T")

CALL_TIMEOUT_S = 3600.0
"""Time limit of a blocking call."""


class Pty:
    """Pseudo-terminals, for providers that have them."""

    def __init__(self, sandbox: "AsyncSandbox") -> None:
        self._sandbox = sandbox

    async def create(self, *args: Any, **kwargs: Any) -> Any:
        return await self._method("create_pty")(self._sandbox.handle, *args, **kwargs)

    async def attach(self, *args: Any, **kwargs: Any) -> Any:
        return await self._method("attach_pty")(self._sandbox.handle, *args, **kwargs)

    async def exec(self, command: str, **kwargs: Any) -> Any:
        terminal = await self.create(**kwargs)
        return await terminal.exec(command)

    def _method(self, name: str) -> Any:
        provider = self._sandbox.provider
        if not hasattr(provider, name):
            raise SandboxPtyError(f"The sandbox provider '{provider.name}' has no pseudo-terminals.")
        return getattr(provider, name)


class AsyncSandbox:
    """A sandbox of a provider. Leaving the `async with` block stops it; entering does not start it."""

    def __init__(
        self,
        provider: Mapping[str, Any] | SandboxProvider,
        spec: SandboxSpec | None = None,
        *,
        owns_provider: bool = True,
    ) -> None:
        self.provider = create_provider(provider) if isinstance(provider, Mapping) else provider
        self._owns_provider = owns_provider
        self._spec = spec
        self._handle: SandboxHandle | None = None
        self._is_stopped = False
        self.pty = Pty(self)

    @property
    def handle(self) -> SandboxHandle:
        if self._handle is None:
            raise RuntimeError("Sandbox has not been started")
        return self._handle

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.stop()

    async def start(self, spec: SandboxSpec | None = None) -> Self:
        """Create the sandbox and upload the spec's files. If either fails, the sandbox is stopped."""
        if self._handle is not None or self._is_stopped:
            raise RuntimeError("The sandbox was started before; make another one.")
        self._spec = spec or self._spec
        if self._spec is None:
            raise ValueError("No spec was given, neither here nor to the constructor.")
        try:
            self._handle = await self.provider.create(self._spec)
            await self._upload_texts(self._spec.files)
        except BaseException:
            await self.stop()
            raise
        return self

    async def _upload_texts(self, files: Mapping[str, str]) -> None:
        if not files:
            return
        with TemporaryDirectory(prefix="nemo-gym-upload-") as folder:
            local = Path(folder) / "file"
            for remote, text in files.items():
                local.write_text(text)
                await self.upload(local, remote)

    async def start_with_setup(
        self, spec: SandboxSpec, setup: Callable[[Self], Awaitable[object]] | None = None
    ) -> Self:
        """Start the sandbox and set it up. If the set-up fails, the sandbox is stopped."""
        await self.start(spec)
        try:
            if setup is not None:
                await setup(self)
        except BaseException:
            await self.stop()
            raise
        return self

    async def exec(
        self,
        command: str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = DEFAULT_TIMEOUT_S,
        user: str | int | None = None,
        preserve_background_services: bool = False,
    ) -> SandboxExecResult:
        """Run a command. With `preserve_background_services`, what it leaves running goes on, if the provider can."""
        workdir = cwd or (self._spec.workdir if self._spec else None)
        keeps = {"preserve_background_services": True} if preserve_background_services else {}
        if keeps and "preserve_background_services" not in inspect.signature(self.provider.exec).parameters:
            keeps = {}  # containers never end what a command leaves running
        return await self.provider.exec(
            self.handle, command, cwd=workdir, env=env, timeout_s=timeout_s, user=user, **keeps
        )

    async def upload(self, local_path: str | Path, remote_path: str) -> None:
        await self.provider.upload_file(self.handle, Path(local_path), remote_path)

    async def download(self, remote_path: str, local_path: str | Path) -> None:
        await self.provider.download_file(self.handle, remote_path, Path(local_path))

    async def pause(self) -> None:
        await self._optional("pause")(self.handle)

    async def resume(self) -> None:
        await self._optional("resume")(self.handle)

    async def disconnect(self) -> None:
        """Leave a sandbox that somebody else owns: it keeps running."""
        self._handle = None
        await self._close_provider()

    async def status(self) -> SandboxStatus:
        return await self.provider.status(self.handle)

    async def endpoint(self, port: int) -> SandboxEndpoint:
        """Return the URL of a declared port."""
        if self._spec is None or port not in self._spec.ports:
            raise ValueError(f"The port {port} is not among the spec's ports.")
        found: SandboxEndpoint = await self._optional("endpoint")(self.handle, port)
        return found

    async def stop(self) -> None:
        """Stop the sandbox and its provider. Can be called more than once."""
        if self._is_stopped:
            return
        self._is_stopped = True
        handle, self._handle = self._handle, None
        try:
            if handle is not None:
                await self.provider.close(handle)
        finally:
            await self._close_provider()

    async def _close_provider(self) -> None:
        if self._owns_provider:
            await self.provider.aclose()

    async def serialize(self, scope: str | None = None) -> Any:
        """Return a descriptor with which another process can connect to this sandbox."""
        return await self._optional("serialize_handle")(self.handle, scope)

    @classmethod
    async def connect(
        cls, descriptor: Any, provider: Mapping[str, Any] | SandboxProvider, *, owns_provider: bool = True
    ) -> Self:
        sandbox = cls(provider, owns_provider=owns_provider)
        sandbox._handle = await sandbox._optional("connect")(descriptor)
        return sandbox

    def _optional(self, name: str) -> Any:
        if not hasattr(self.provider, name):
            raise NotImplementedError(f"The sandbox provider '{self.provider.name}' has no {name}().")
        return getattr(self.provider, name)


class Sandbox:
    """`AsyncSandbox` for code without an event loop: the same calls, but blocking."""

    def __init__(self, provider: Mapping[str, Any] | SandboxProvider, spec: SandboxSpec | None = None) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sandbox", daemon=True)
        self._thread.start()
        try:
            self._sandbox = AsyncSandbox(provider, spec)
        except BaseException:
            self._end_loop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def start(self, spec: SandboxSpec | None = None) -> Self:
        try:
            self._wait(self._sandbox.start(spec))
        except BaseException:
            if self._sandbox._is_stopped:
                self._end_loop()
            raise
        return self

    def exec(self, command: str, **options: Any) -> SandboxExecResult:
        return self._wait(self._sandbox.exec(command, **options))

    def upload(self, local_path: str | Path, remote_path: str) -> None:
        self._wait(self._sandbox.upload(local_path, remote_path))

    def download(self, remote_path: str, local_path: str | Path) -> None:
        self._wait(self._sandbox.download(remote_path, local_path))

    def status(self) -> SandboxStatus:
        return self._wait(self._sandbox.status())

    def endpoint(self, port: int) -> SandboxEndpoint:
        return self._wait(self._sandbox.endpoint(port))

    def serialize(self, scope: str | None = None) -> Any:
        return self._wait(self._sandbox.serialize(scope))

    def stop(self) -> None:
        if self._thread.is_alive():
            self._wait(self._sandbox.stop())
            self._end_loop()

    def _wait(self, call: Coroutine[Any, Any, T]) -> T:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            waiting = asyncio.run_coroutine_threadsafe(call, self._loop)
        else:
            call.close()
            raise RuntimeError("Sandbox was called inside a running event loop; use AsyncSandbox there.")
        try:
            return waiting.result(CALL_TIMEOUT_S)
        except concurrent.futures.TimeoutError:
            waiting.cancel()
            raise

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
