"""The live runs of this user on this machine, as their collectors report them, with the load of their workers."""

import asyncio
import contextlib
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec
import orjson

from nemo_gym.client.head import base_url, run_token
from nemo_gym.client.pool import HttpClient
from nemo_gym.common.metrics import Family
from nemo_gym.errors import ConfigError, GymError
from nemo_gym.rollouts.live import live_folder
from nemo_gym.runtime.head_server import fetch_metrics
from nemo_gym.server.metrics import StageLoad, stage_loads

ASK_TIMEOUT_S = 5.0
_STAGES = ("seed", "model", "tool", "verify")
_LOAD = {
    "nemo_gym_rollouts_in_flight": "rollouts",
    "process_cpu_seconds_total": "cpu_seconds",
    "process_resident_memory_bytes": "memory_bytes",
    "process_open_fds": "open_files",
    "nemo_gym_worker_up": "is_up",
}
"""The metrics that say how busy a worker is."""


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
        """What the collector reports, and what its workers do. None if it has ended."""
        try:
            found = await self._ask({})
        except (OSError, TimeoutError, ValueError):
            return None
        local = msgspec.convert(found.pop("metrics"), list[Family])
        return {"id": self.id, **found, **workers_of(local or await _head_metrics(found.get("head")))}

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


def workers_of(families: list[Family]) -> dict[str, Any]:
    """Return the load of each worker, and the requests by stage."""
    workers: dict[str, dict[str, float]] = defaultdict(dict)
    for family in families:
        if (name := _LOAD.get(family.name)) is not None:
            for _, labels, value in family.samples:
                load = workers[labels.get("worker", "")]
                load[name] = load.get(name, 0.0) + value
    loads = stage_loads(families)
    idle = StageLoad(in_flight=0, requests=0, seconds=0.0)
    stages = {stage: loads.get(stage, idle) for stage in _STAGES} if families else {}
    return {"workers": [{"worker": name, **load} for name, load in sorted(workers.items())], "stages": stages}


async def _head_metrics(head: dict[str, Any] | None) -> list[Family]:
    """Return the metrics of the run whose servers a collector uses."""
    if head is None:
        return []
    async with HttpClient() as http:
        return await fetch_metrics(http, base_url(head["host"], head["port"]), token=run_token(head["port"]))


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
