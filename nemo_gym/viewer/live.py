"""The live runs of this user on this machine, as their collectors report them."""

from typing import Any


class LiveRun:
    async def status(self) -> dict[str, Any]:
        return {}


def find_runs() -> list[LiveRun]:
    return []


async def cancel(runs: list[LiveRun], body: bytes) -> dict[str, Any]:
    return {}
