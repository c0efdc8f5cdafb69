"""Programs of this machine in a work folder, without any isolation: the provider `local` of the public NeMo Gym.

It keeps nothing apart: commands are ordinary processes of your user, with the files and the network that you have. For
code that a model wrote, use `auto`."""

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar
from uuid import uuid4

from nemo_gym.sandbox.contract import ExecResult, SandboxHandle, SandboxSpec, SandboxStatus

logger = logging.getLogger(__name__)
_IGNORED = ("image", "ttl_s", "ports")


class LocalProvider:
    """A work folder for each sandbox, which is `raw["workspace"]` of its handle. Paths are of this folder, unless they
    are absolute paths in it."""

    name: ClassVar[str] = "local"

    def __init__(
        self,
        *,
        workspace_root: str | None = None,
        shell: str = "/bin/bash",
        default_timeout_s: float = 180.0,
        concurrency: int = 8,
    ) -> None:
        self._root, self._shell, self._timeout_s = workspace_root, shell, default_timeout_s
        self._turns = asyncio.Semaphore(concurrency)
        logger.warning("sandbox provider 'local': commands run on this machine, without isolation")

    async def create(self, spec: SandboxSpec) -> SandboxHandle:
        ignored = [name for name in _IGNORED if getattr(spec, name)]
        if ignored:
            logger.warning("the sandbox provider 'local' ignores %s", ", ".join(ignored))
        handle = SandboxHandle(uuid4().hex, self.name, {"workspace": self._new_workspace(), "env": dict(spec.env)})
        for path, text in spec.files.items():
            self._prepared(handle, path).write_text(text)
        return handle

    async def exec(
        self,
        handle: SandboxHandle,
        command: str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Run a command in the folder. It and its children end with the time."""
        if user is not None:
            raise ValueError(f"The sandbox provider 'local' cannot run commands as the user {user!r}.")
        folder = handle.raw["workspace"] if cwd is None else self._place(handle, cwd)
        async with self._turns:
            process = await asyncio.create_subprocess_exec(
                *(self._shell, "-c", command),
                cwd=folder,
                env={**os.environ, **handle.raw["env"], **(env or {})},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
            try:
                async with asyncio.timeout(self._timeout_s if timeout_s is None else timeout_s):
                    stdout, stderr = await process.communicate()
            except TimeoutError:
                return ExecResult("", "the time is over", 124, error_type="timeout", limit="time")
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        code = process.returncode or 0
        return ExecResult(
            stdout.decode(errors="replace"), stderr.decode(errors="replace"), code if code >= 0 else 128 - code
        )

    async def upload_file(self, handle: SandboxHandle, local: Path, remote: str) -> None:
        await asyncio.to_thread(shutil.copyfile, local, self._prepared(handle, remote))

    async def download_file(self, handle: SandboxHandle, remote: str, local: Path) -> None:
        await asyncio.to_thread(shutil.copyfile, self._place(handle, remote), local)

    async def status(self, handle: SandboxHandle) -> SandboxStatus:
        return SandboxStatus.RUNNING if handle.raw["workspace"].is_dir() else SandboxStatus.STOPPED

    async def close(self, handle: SandboxHandle) -> None:
        await asyncio.to_thread(shutil.rmtree, handle.raw["workspace"], ignore_errors=True)

    async def aclose(self) -> None:
        """Do nothing: each sandbox is closed by itself."""

    def _new_workspace(self) -> Path:
        if self._root is not None:
            Path(self._root).mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix="nemo-gym-local-", dir=self._root))

    def _prepared(self, handle: SandboxHandle, path: str) -> Path:
        place = self._place(handle, path)
        place.parent.mkdir(parents=True, exist_ok=True)
        return place

    @staticmethod
    def _place(handle: SandboxHandle, path: str) -> Path:
        workspace: Path = handle.raw["workspace"]
        return Path(path) if Path(path).is_relative_to(workspace) else workspace / path.lstrip("/")
