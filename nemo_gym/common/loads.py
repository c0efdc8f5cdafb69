"""How busy servers are, read from their metrics: the requests of each stage of a rollout, the load of each worker."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, TypedDict

from nemo_gym.common.metrics import Family, Sample

STAGES = ("seed", "model", "tool", "verify")
"""The stages of a rollout, in their order. Requests to agents are of the stages `rollout` and `agent`."""
_WORKER_LOAD = {
    "nemo_gym_rollouts_in_flight": "rollouts",
    "process_cpu_seconds_total": "cpu_seconds",
    "process_resident_memory_bytes": "memory_bytes",
    "process_open_fds": "open_files",
    "nemo_gym_worker_up": "is_up",
}
"""The metrics that say how busy a worker is, with the names under which a live run reports them."""


def worker_loads(families: Iterable[Family]) -> list[dict[str, Any]]:
    """Return how busy each worker is."""
    workers: dict[str, dict[str, float]] = defaultdict(dict)
    for family in families:
        for _, labels, value in family.samples if family.name in _WORKER_LOAD else ():
            load, name = workers[labels["worker"]], _WORKER_LOAD[family.name]
            load[name] = load.get(name, 0.0) + value
    return [{"worker": name, **load} for name, load in sorted(workers.items())]


class StageLoad(TypedDict):
    """The requests of one stage: how many are in flight, how many ended, and the seconds that these took."""

    in_flight: int
    requests: int
    seconds: float


def stage_loads(families: Iterable[Family]) -> dict[str, StageLoad]:
    """Sum the requests of all servers and workers by the stage of a rollout."""
    samples: dict[str, list[Sample]] = defaultdict(list)
    for family in families:
        samples[family.name] += family.samples
    loads = {stage: StageLoad(in_flight=0, requests=0, seconds=0.0) for stage in STAGES} if samples else {}
    stages: dict[tuple[str, str], str] = {}
    for name, labels, value in samples["nemo_gym_stage_seconds"]:
        stage = stages[labels["server"], labels["path"]] = labels["stage"]
        load = loads.setdefault(stage, StageLoad(in_flight=0, requests=0, seconds=0.0))
        if name.endswith("_sum"):
            load["seconds"] += value
        elif name.endswith("_count"):
            load["requests"] += int(value)
    for _, labels, value in samples["nemo_gym_requests_in_flight"]:
        loads[stages[labels["server"], labels["path"]]]["in_flight"] += int(value)
    return loads
