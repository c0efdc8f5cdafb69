"""The metrics of a worker: its rollouts and requests, its event loop, its pools and its process."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Self

from nemo_gym.client.pool import HttpClient
from nemo_gym.common.metrics import Family, Kind, LoopLag, encode_families, exposition, process_families
from nemo_gym.common.statistics import RequestStats
from nemo_gym.compute.pool import Compute
from nemo_gym.server.app import ServerApp
from nemo_gym.server.endpoint import STAGE_OF_PATH

_FAMILIES: dict[str, tuple[Kind, str]] = {
    "rollouts_total": ("counter", "Rollouts that ended: scored, or the cause of the failure."),
    "rollouts_in_flight": ("gauge", "Rollouts in flight."),
    "requests_total": ("counter", "Requests that ended, by outcome."),
    "requests_in_flight": ("gauge", "Requests that are being answered."),
    "stage_seconds": ("histogram", "How long requests took, by the stage of a rollout."),
    "sessions": ("gauge", "Sessions, each of one rollout."),
    "handler_blocked_total": ("counter", "How often a handler blocked the event loop."),
    "handler_blocked_seconds_total": ("counter", "For how long it blocked the event loop."),
    "event_loop_lag_seconds": ("histogram", "How late a timer of the event loop was called."),
    "http_connections": ("gauge", "Connections to model endpoints and other workers."),
    "compute_processes": ("gauge", "Processes for CPU-heavy functions."),
    "compute_tasks": ("gauge", "CPU-heavy functions that run or wait for a process."),
}


@dataclass
class WorkerMetrics:
    """A context manager: inside it the servers answer `GET /metrics`, and the lag of the running loop is measured.

    `/metrics` is for Prometheus; the processes of a run read the same families as JSON, at `/metrics.json`."""

    apps: Mapping[str, ServerApp]
    http: HttpClient
    compute: Compute
    worker: int = 0
    lag: LoopLag = field(default_factory=LoopLag)

    def __enter__(self) -> Self:
        self.lag.__enter__()
        for app in self.apps.values():
            app.families = self.families
            app.pages["/metrics"] = lambda: exposition(self.families())
            app.pages["/metrics.json"] = lambda: encode_families(self.families())
        return self

    def __exit__(self, *_error: object) -> None:
        self.lag.__exit__()

    def families(self) -> list[Family]:
        """Return the metrics of this worker as they are now."""
        found = {name: Family(f"nemo_gym_{name}", kind, text) for name, (kind, text) in _FAMILIES.items()}
        label = {"worker": str(self.worker)}
        for app in self.apps.values():
            _add_requests(found, app, label)
            found["sessions"].add(len(app.core.sessions), server=app.name, **label)
            for handler, blocked in app.blocked().items():
                found["handler_blocked_total"].add(blocked["times"], handler=handler, **label)
                found["handler_blocked_seconds_total"].add(blocked["seconds"], handler=handler, **label)
        found["event_loop_lag_seconds"].add_histogram(self.lag.seconds, **label)
        for state, count in zip(("in_use", "idle"), self.http.usage(), strict=True):
            found["http_connections"].add(count, state=state, **label)
        use = self.compute.usage()
        found["compute_processes"].add(use.busy, state="busy", **label)
        found["compute_processes"].add(use.idle, state="idle", **label)
        found["compute_tasks"].add(use.busy, state="running", **label)
        found["compute_tasks"].add(use.waiting, state="waiting", **label)
        return [*found.values(), *process_families(**label)]


def _add_requests(found: Mapping[str, Family], app: ServerApp, label: Mapping[str, str]) -> None:
    for path, stage, stats in _stats_of(app):
        where = {"server": app.name, "path": path, **label}
        found["stage_seconds"].add_histogram(stats.seconds, stage=stage, **where)
        found["requests_in_flight"].add(stats.in_flight, **where)
        for outcome, count in stats.outcomes("ok").items():
            found["requests_total"].add(count, outcome=outcome, **where)
        if stage == "rollout":
            found["rollouts_in_flight"].add(stats.in_flight, agent=app.name, **label)
            for outcome, count in stats.outcomes("scored").items():
                found["rollouts_total"].add(count, agent=app.name, outcome=outcome, **label)


def _stats_of(app: ServerApp) -> Iterator[tuple[str, str, RequestStats]]:
    """Yield path, stage and counters of every endpoint and every route of its own app."""
    own = app.own_app
    for path, endpoint in (app if own is None else own).endpoints.items():
        yield path, endpoint.stage, endpoint.stats
    for path, stats in ({} if own is None else own.stats).items():
        yield path, STAGE_OF_PATH.get(path, "tool"), stats
