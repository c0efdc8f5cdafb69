"""Run a harness: as a process of this machine, or in a sandbox that reaches nothing but the gateway."""

import asyncio
import os
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from nemo_gym.errors import ConfigError, RolloutError
from nemo_gym.sandbox import AsyncSandbox, SandboxError, SandboxSpec, create_provider

OUTPUT_BYTES = 64 * 2**10
"""Bytes that are kept of the end of standard output and standard error."""
MAX_FILE_BYTES = 2**20
MAX_ARGUMENT_BYTES = 2**17
"""Linux's limit for one argument or variable."""
PORT_INSIDE = 8089
SOCKET_INSIDE = "/run/nemo_gym/gateway.sock"
BRIDGE_INSIDE = "/tmp/nemo_gym_bridge.py"  # noqa: S108 - in the sandbox
WORKDIR_INSIDE = "/work"
BRIDGE = Path(__file__).parent / "sandbox_bridge.py"
SUBREAPER = Path(__file__).parent / "subreaper.py"
KILL_SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Signals that end a harness from outside, as the kernel does when memory runs out. All others are its own crashes.
Nothing outside can signal a harness in a sandbox, so there every signal is its own doing."""
END_TIMEOUT_S = 10.0
"""For the processes of a harness to die. One that waits for a device may take longer."""


@dataclass(slots=True)
class CommandResult:
    """The result of a harness: its exit code, output and files."""

    return_code: int
    stdout: str = ""
    stderr: str = ""
    files: dict[str, str] = field(default_factory=dict)
    """The text of the files that were asked for, as far as they are there."""


class Workspace(Protocol):
    """A fresh folder, and a way to run a command in it."""

    path: str
    """The path of the folder as the command sees it."""
    port: int
    """The gateway's port as the command sees it."""

    async def write(self, files: Mapping[str, str]) -> None: ...

    async def run(
        self, command: list[str], env: Mapping[str, str], *, timeout_s: float, keep: Iterable[str]
    ) -> CommandResult: ...


class LocalWorkspace:
    """A folder of this machine. The harness, and whatever it runs, is not confined."""

    def __init__(self, folder: Path, port: int) -> None:
        self._folder, self.path, self.port = folder, str(folder), port

    async def write(self, files: Mapping[str, str]) -> None:
        for name, text in files.items():
            target = self._folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(text.encode(errors="replace"))

    async def run(
        self, command: list[str], env: Mapping[str, str], *, timeout_s: float, keep: Iterable[str]
    ) -> CommandResult:
        with TemporaryDirectory(prefix="nemo-gym-output-") as folder:
            paths = [Path(folder) / name for name in ("stdout", "stderr", "start_error")]
            code = await self._run(command, env, *paths, timeout_s=timeout_s)
            if paths[2].exists():
                raise RolloutError("environment", f"Cannot run {command[0]}: {paths[2].read_text()}", retryable=False)
            if -code in KILL_SIGNALS:
                name = signal.Signals(-code).name
                raise RolloutError("environment", f"{command[0]} was ended by {name}, so its work is not complete.")
            return CommandResult(code, _tail(paths[0]), _tail(paths[1]), self._read(keep))

    async def _run(
        self,
        command: list[str],
        env: Mapping[str, str],
        stdout: Path,
        stderr: Path,
        start_error: Path,
        *,
        timeout_s: float,
    ) -> int:
        with stdout.open("wb") as out, stderr.open("wb") as err:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", str(SUBREAPER), str(os.getpid()), str(start_error), *command),
                cwd=self._folder,
                env={**_inherited(), "HOME": self.path, **env},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        try:
            async with asyncio.timeout(timeout_s):
                return await process.wait()
        except TimeoutError as error:
            raise RolloutError("timeout", f"{command[0]} did not end within {timeout_s:g} s.") from error
        finally:
            await _end(process)

    def _read(self, names: Iterable[str]) -> dict[str, str]:
        found = {}
        for name in names:
            path = (self._folder / name).resolve()
            if path.is_relative_to(self._folder.resolve()) and path.is_file():
                with path.open("rb") as file:
                    found[name] = file.read(MAX_FILE_BYTES).decode(errors="replace")
        return found


class SandboxWorkspace:
    """The work folder of a sandbox."""

    def __init__(self, box: AsyncSandbox) -> None:
        self._box, self.path, self.port = box, WORKDIR_INSIDE, PORT_INSIDE

    async def write(self, files: Mapping[str, str]) -> None:
        with TemporaryDirectory(prefix="nemo-gym-upload-") as folder:
            local = Path(folder) / "file"
            for name, text in files.items():
                local.write_bytes(text.encode(errors="replace"))
                await self._box.upload(local, f"{WORKDIR_INSIDE}/{name}")

    async def run(
        self, command: list[str], env: Mapping[str, str], *, timeout_s: float, keep: Iterable[str]
    ) -> CommandResult:
        bridged = ["python3", BRIDGE_INSIDE, SOCKET_INSIDE, str(PORT_INSIDE), *command]
        done = await self._box.exec(shlex.join(bridged), cwd=WORKDIR_INSIDE, env=env, timeout_s=timeout_s)
        if done.error_type == "timeout":
            raise RolloutError("timeout", f"{command[0]} did not end within {timeout_s:g} s.")
        if done.error_type is not None:
            raise RolloutError("environment", f"The sandbox of {command[0]} failed: {done.stderr}")
        files = {name: text for name in keep if (text := await self._read(name)) is not None}
        out, err = ((text or "")[-OUTPUT_BYTES:] for text in (done.stdout, done.stderr))
        return CommandResult(done.return_code, out, err, files)

    async def _read(self, name: str) -> str | None:
        with TemporaryDirectory(prefix="nemo-gym-download-") as folder:
            try:
                await self._box.download(f"{WORKDIR_INSIDE}/{name}", Path(folder) / "file")
            except (SandboxError, OSError):
                return None
            return (Path(folder) / "file").read_bytes()[:MAX_FILE_BYTES].decode(errors="replace")


@asynccontextmanager
async def opened_workspace(
    provider: dict[str, Any] | None, *, gateway_port: int, gateway_socket: Path | None
) -> AsyncIterator[Workspace]:
    """A workspace, gone after the block. Without a provider it is on this machine."""
    if provider is None:
        with TemporaryDirectory(prefix="nemo-gym-harness-") as folder:
            yield LocalWorkspace(Path(folder), gateway_port)
        return
    spec = SandboxSpec(
        workdir=WORKDIR_INSIDE,
        files={BRIDGE_INSIDE: BRIDGE.read_text()},
        provider_options={"sockets": {SOCKET_INSIDE: str(gateway_socket)}},
    )
    try:
        async with AsyncSandbox(provider, spec) as box:
            await box.start()
            yield SandboxWorkspace(box)
    except SandboxError as error:
        raise RolloutError("environment", f"The sandbox of the harness failed: {error}") from error


def check_provider(provider: dict[str, Any]) -> None:
    """Raise unless sandboxes of this provider can reach the gateway."""
    name = create_provider(provider).name
    if name != "bubblewrap":
        raise ConfigError(
            f"command_agent runs harnesses in sandboxes of bubblewrap only: those of '{name}' cannot reach the model. "
            "Install it with: pip install 'nemo-gym[sandbox]'"
        )


def check_arguments(texts: Iterable[str]) -> None:
    """Raise if a text cannot be given to a program."""
    for text in texts:
        size = len(text.encode(errors="replace"))
        if "\0" in text or size >= MAX_ARGUMENT_BYTES or has_surrogates(text):
            found = f"{text[:40]!r} ({size} bytes)"
            raise RolloutError(
                "input", f"Cannot be given to a program: {found}. Use {{prompt_file}} for long prompts."
            )


def has_surrogates(text: str) -> bool:
    """True for a text that is no Unicode, as JSON can bring it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def check_path(name: str) -> str:
    """A path inside the workspace, or an error."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ValueError(f"'{name}' is not a path inside the workspace")
    return name


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a command and all that it started, if it has not ended yet."""
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(END_TIMEOUT_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def _inherited() -> dict[str, str]:
    """Environment variables that a harness needs, without secrets. Programs beside our interpreter come first."""
    kept = {name: os.environ[name] for name in ("LANG", "TZ") if name in os.environ}
    path = os.environ.get("PATH", os.defpath)
    return {**kept, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{path}"}


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - OUTPUT_BYTES))
        return file.read().decode(errors="replace")
