"""Whoever opens closes."""

from contextlib import AsyncExitStack
from typing import Self


class OwnedResources:
    """An async context manager that opens what it owns in `_open`, and closes all of it, also if opening fails."""

    def __init__(self) -> None:
        self._exit = AsyncExitStack()

    async def __aenter__(self) -> Self:
        try:
            await self._open()
        except BaseException:
            await self._exit.aclose()
            raise
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._exit.aclose()

    async def _open(self) -> None:
        """Enter contexts and push callbacks on `self._exit`."""
        raise NotImplementedError
