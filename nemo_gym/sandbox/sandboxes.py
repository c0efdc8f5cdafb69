"""`AsyncSandbox` and `Sandbox`: one sandbox of any provider, with a life from `start` to `stop`."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self, TypeVar

from nemo_gym.sandbox.contract import (
    DEFAULT_TIMEOUT_S,
    SandboxEndpoint,
    SandboxExecResult,
    SandboxHandle,
    SandboxProvider,
    SandboxPtyError,
    SandboxSpec,
    SandboxStatus,
)
from nemo_gym.sandbox.registry import create_provider

T = TypeVar("T")

CALL_TIMEOUT_S = 3600.0
"""How long a blocking call waits."""


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

    def __init__(self, provider: Mapping[str, Any] | SandboxProvider, spec: SandboxSpec | None = None) -> None:
        self.provider = create_provider(provider) if isinstance(provider, Mapping) else provider
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
        """Create the sandbox and upload the spec's files. If either fails, nothing is left."""
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

    async def exec(
        self,
        command: str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = DEFAULT_TIMEOUT_S,
        user: str | int | None = None,
    ) -> SandboxExecResult:
        workdir = cwd or (self._spec.workdir if self._spec else None)
        return await self.provider.exec(self.handle, command, cwd=workdir, env=env, timeout_s=timeout_s, user=user)

    async def upload(self, local: str | Path, remote: str) -> None:
        await self.provider.upload_file(self.handle, Path(local), remote)

    async def download(self, remote: str, local: str | Path) -> None:
        await self.provider.download_file(self.handle, remote, Path(local))

    async def status(self) -> SandboxStatus:
        return await self.provider.status(self.handle)

    async def endpoint(self, port: int) -> SandboxEndpoint:
        """Where a declared port can be reached."""
        if self._spec is None or port not in self._spec.ports:
            raise ValueError(f"The port {port} is not among the spec's ports.")
        found: SandboxEndpoint = await self._optional("endpoint")(self.handle, port)
        return found

    async def stop(self) -> None:
        """End the sandbox and its provider. More than once is fine."""
        if self._is_stopped:
            return
        self._is_stopped = True
        handle, self._handle = self._handle, None
        try:
            if handle is not None:
                await self.provider.close(handle)
        finally:
            await self.provider.aclose()

    async def serialize(self, scope: str | None = None) -> Any:
        """A descriptor with which another process can connect to this sandbox."""
        return await self._optional("serialize_handle")(self.handle, scope)

    @classmethod
    async def connect(cls, descriptor: Any, provider: Mapping[str, Any] | SandboxProvider) -> Self:
        sandbox = cls(provider)
        sandbox._handle = await sandbox._optional("connect")(descriptor)
        return sandbox

    def _optional(self, name: str) -> Any:
        if not hasattr(self.provider, name):
            raise NotImplementedError(f"The sandbox provider '{self.provider.name}' has no {name}().")
        return getattr(self.provider, name)


class Sandbox:
    """`AsyncSandbox` for code without an event loop: the same calls, each waiting for its result."""

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

    def upload(self, local: str | Path, remote: str) -> None:
        self._wait(self._sandbox.upload(local, remote))

    def download(self, remote: str, local: str | Path) -> None:
        self._wait(self._sandbox.download(remote, local))

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
