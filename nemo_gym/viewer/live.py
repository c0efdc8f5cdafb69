"""The live runs of this user on this machine, as their collectors report them, with the load of their workers."""

import asyncio
import contextlib
import os
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import orjson

from nemo_gym.client.head import base_url, run_token
from nemo_gym.client.pool import HttpClient
from nemo_gym.errors import ConfigError, GymError
from nemo_gym.rollouts.live import live_folder
from nemo_gym.runtime.head_server import metrics_page

ASK_TIMEOUT_S = 5.0
_SAMPLE = re.compile(r"(\w+?)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_STAGES = ("seed", "model", "tool", "verify")


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
        metrics = found.pop("metrics", None) or await _head_metrics(found.get("head"))
        return {"id": self.id, **found, **workers_of(metrics or "")}

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


def workers_of(metrics: str) -> dict[str, Any]:
    """Load of each worker and requests by stage, from the text that `/metrics` answers."""
    workers: dict[str, dict[str, float]] = defaultdict(dict)
    stage_of: dict[tuple[str, str], str] = {}
    seconds: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    waiting: list[tuple[tuple[str, str], float]] = []
    names = {
        "nemo_gym_rollouts_in_flight": "rollouts",
        "process_cpu_seconds_total": "cpu_seconds",
        "process_resident_memory_bytes": "memory_bytes",
        "process_open_fds": "open_files",
        "nemo_gym_worker_up": "is_up",
    }
    for name, labels, value in _samples(metrics):
        place = (labels.get("server", ""), labels.get("path", ""))
        if name in names:
            load = workers[labels.get("worker", "")]
            load[names[name]] = load.get(names[name], 0.0) + value
        elif name == "nemo_gym_stage_seconds_sum":
            stage_of[place] = labels.get("stage", "")
            seconds[labels.get("stage", "")][0] += value
        elif name == "nemo_gym_stage_seconds_count":
            seconds[labels.get("stage", "")][1] += value
        elif name == "nemo_gym_requests_in_flight":
            waiting.append((place, value))
    stages = {stage: {"in_flight": 0, "requests": 0, "seconds": 0.0} for stage in _STAGES} if metrics else {}
    for place, value in waiting:
        if (stage := stage_of.get(place, "")) in stages:
            stages[stage]["in_flight"] += int(value)
    for stage in stages:
        stages[stage] |= {"seconds": seconds[stage][0], "requests": int(seconds[stage][1])}
    return {"workers": [{"worker": name, **load} for name, load in sorted(workers.items())], "stages": stages}


def _samples(text: str) -> list[tuple[str, dict[str, str], float]]:
    matches = (_SAMPLE.match(line) for line in text.splitlines() if not line.startswith("#"))
    return [(match[1], dict(_LABEL.findall(match[2] or "")), float(match[3])) for match in matches if match]


async def _head_metrics(head: dict[str, Any] | None) -> str | None:
    """The metrics of the run whose servers a collector uses."""
    if head is None:
        return None
    async with HttpClient() as http:
        return await metrics_page(http, base_url(head["host"], head["port"]), token=run_token(head["port"]))


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
