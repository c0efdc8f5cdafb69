"""The live runs of this user on this machine, as their collectors report them."""

import asyncio
import contextlib
import os
from pathlib import Path
from typing import Any

import orjson

from nemo_gym.errors import ConfigError, GymError
from nemo_gym.rollouts.live import live_folder

ASK_TIMEOUT_S = 5.0


class LiveRun:
    """One collection in progress."""

    def __init__(self, place: Path) -> None:
        self.place = place
        found = orjson.loads(place.read_bytes())
        self.pid, self._port, self._token = found["pid"], found["port"], found["token"]

    @property
    def id(self) -> str:
        return self.place.stem

    async def status(self) -> dict[str, Any] | None:
        """Return what the collector reports. None if it has ended."""
        try:
            found = await self._ask({})
        except (OSError, TimeoutError, ValueError):
            return None
        return {"id": self.id, **found}

    async def cancel(self, number: int) -> bool:
        """Cancel a rollout; False if it, or the whole collection, has ended already."""
        try:
            return bool((await self._ask({"cancel": number})).get("cancelled"))
        except TimeoutError as error:
            raise GymError(f"The collection did not answer within {ASK_TIMEOUT_S:g} s. Try again.") from error
        except (OSError, ValueError):
            return False

    async def _ask(self, what: dict[str, Any]) -> dict[str, Any]:
        async with asyncio.timeout(ASK_TIMEOUT_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            with contextlib.closing(writer):
                writer.write(orjson.dumps({"token": self._token, **what}) + b"\n")
                found: dict[str, Any] = orjson.loads(await reader.read())
        if "error" in found:
            raise ValueError(found["error"])
        return found


def find_runs() -> list[LiveRun]:
    """The collections of this user that run now. What a killed one has left is removed."""
    found = []
    for place in sorted(live_folder().glob("*.json")):
        with contextlib.suppress(OSError, ValueError, KeyError):
            run = LiveRun(place)
            if _is_alive(run.pid):
                found.append(run)
            else:
                place.unlink(missing_ok=True)
    return found


async def statuses(runs: list[LiveRun]) -> list[dict[str, Any]]:
    """The status of each run that still goes on."""
    return [status for status in await asyncio.gather(*(run.status() for run in runs)) if status is not None]


async def cancel(runs: list[LiveRun], body: bytes) -> dict[str, Any]:
    """Cancel the rollout that the page names: `{"run": id, "number": number}`."""
    try:
        asked = orjson.loads(body)
        run_id, number = asked["run"], asked["number"]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError("The request does not name a run and the number of a rollout.") from error
    run = next((run for run in runs if run.id == run_id), None)
    return {"cancelled": run is not None and isinstance(number, int) and await run.cancel(number)}


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
