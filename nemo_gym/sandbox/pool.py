"""Warm sandboxes: some are always started ahead, so that a rollout's first action does not wait for one."""

import asyncio
import logging
from typing import Self

from nemo_gym.sandbox.contract import SandboxError, SandboxSpec
from nemo_gym.sandbox.local import LocalProvider
from nemo_gym.sandbox.process import SandboxProcess

logger = logging.getLogger(__name__)


class SandboxPool:
    """Sandboxes of one kind, each given to one user and never used again: nothing passes from one to the next."""

    def __init__(
        self, provider: LocalProvider, *, warm: int = 2, session: bool = True, spec: SandboxSpec | None = None
    ) -> None:
        self._provider, self._warm, self._session, self._spec = provider, warm, session, spec
        self._ready: list[SandboxProcess] = []
        self._starting: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    def fill(self) -> None:
        """Start as many sandboxes as are missing, in the background."""
        for _ in range(self._warm - len(self._ready) - len(self._starting)):
            task = asyncio.create_task(self._start_one())
            self._starting.add(task)
            task.add_done_callback(self._starting.discard)

    async def take(self) -> SandboxProcess:
        """A sandbox of one's own, warm if there is one. Give it back to `release`."""
        if self._is_closed:
            raise SandboxError("The pool is closed.")
        while self._ready:
            sandbox = self._ready.pop()
            if sandbox.is_alive:
                self.fill()
                return sandbox
        self.fill()
        return await self._open()

    async def release(self, sandbox: SandboxProcess) -> None:
        await self._provider.release(sandbox)

    async def close(self) -> None:
        """End all sandboxes, also those that were taken."""
        self._is_closed = True
        for task in list(self._starting):
            task.cancel()
        await asyncio.gather(*self._starting, return_exceptions=True)
        await self._provider.aclose()

    async def _open(self) -> SandboxProcess:
        return await self._provider.open(self._spec, session=self._session)

    async def _start_one(self) -> None:
        try:
            self._ready.append(await self._open())
        except SandboxError as error:  # whoever takes one will see the same error
            logger.warning("no sandbox could be started ahead: %s", error)
