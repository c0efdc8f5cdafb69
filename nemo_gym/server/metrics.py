"""The metrics of a worker: its rollouts and requests, its event loop, its pools and its process."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Self

from nemo_gym.client.pool import HttpClient
from nemo_gym.common.metrics import Family, RequestStats, exposition
from nemo_gym.common.process_metrics import LoopLag, process_families
from nemo_gym.compute.pool import Compute
from nemo_gym.errors import Cause
from nemo_gym.server.app import ServerApp
from nemo_gym.server.endpoint import Endpoint

_STAGE_OF_CAUSE: dict[Cause, str] = {"environment": "seed", "verifier": "verify", "tool": "tool", "model": "model"}
_STAGE_OF_PATH = {"/seed_session": "seed", "/verify": "verify", "/run": "rollout"}


@dataclass
class WorkerMetrics:
    """A context manager: inside it the servers answer `GET /metrics`, and the lag of the running loop is measured."""

    apps: Mapping[str, ServerApp]
    http: HttpClient
    compute: Compute
    worker: int = 0
    lag: LoopLag = field(default_factory=LoopLag)

    def __enter__(self) -> Self:
        self.lag.__enter__()
        for app in self.apps.values():
            app.pages["/metrics"] = self.page
        return self

    def __exit__(self, *_error: object) -> None:
        self.lag.__exit__()

    def page(self) -> bytes:
        """What `GET /metrics` answers."""
        return exposition(self.families()).encode()

    def families(self) -> Iterator[Family]:
        label = {"worker": str(self.worker)}
        for app in self.apps.values():
            yield from _request_families(app, label)
            yield from _server_families(app, label)
        lag = Family("nemo_gym_event_loop_lag_seconds", "histogram", "How late a timer of the event loop was called.")
        lag.add_histogram(self.lag.seconds, **label)
        yield lag
        yield from self._pool_families(label)
        yield from process_families(**label)

    def _pool_families(self, label: Mapping[str, str]) -> Iterator[Family]:
        connections = Family("nemo_gym_http_connections", "gauge", "Connections to model endpoints and other workers.")
        in_use, idle = self.http.usage()
        connections.add(in_use, state="in_use", **label)
        connections.add(idle, state="idle", **label)
        yield connections
        processes = Family("nemo_gym_compute_processes", "gauge", "Processes for CPU-heavy functions.")
        tasks = Family("nemo_gym_compute_tasks", "gauge", "CPU-heavy functions that run or wait for a process.")
        use = self.compute.usage()
        processes.add(use.busy, state="busy", **label)
        processes.add(use.idle, state="idle", **label)
        tasks.add(use.busy, state="running", **label)
        tasks.add(use.waiting, state="waiting", **label)
        yield from (processes, tasks)


def _request_families(app: ServerApp, label: Mapping[str, str]) -> Iterator[Family]:
    seconds = Family("nemo_gym_stage_seconds", "histogram", "How long requests took, by the stage of a rollout.")
    requests = Family("nemo_gym_requests_total", "counter", "Requests that ended, by outcome.")
    in_flight = Family("nemo_gym_requests_in_flight", "gauge", "Requests that are being answered.")
    rollouts = Family(
        "nemo_gym_rollouts_total", "counter", "Rollouts that ended: scored, or the cause of the failure."
    )
    rolling = Family("nemo_gym_rollouts_in_flight", "gauge", "Rollouts in flight.")
    for path, stage, stats in _stats_of(app):
        where = {"server": app.name, "path": path, **label}
        seconds.add_histogram(stats.seconds, stage=stage, **where)
        in_flight.add(stats.in_flight, **where)
        for outcome, count in stats.outcomes("ok").items():
            requests.add(count, outcome=outcome, **where)
        if stage == "rollout":
            rolling.add(stats.in_flight, agent=app.name, **label)
            for outcome, count in stats.outcomes("scored").items():
                rollouts.add(count, agent=app.name, outcome=outcome, **label)
    yield from (rollouts, rolling, requests, in_flight, seconds)


def _server_families(app: ServerApp, label: Mapping[str, str]) -> Iterator[Family]:
    sessions = Family("nemo_gym_sessions", "gauge", "Sessions, each of one rollout.")
    sessions.add(len(app.core.sessions), server=app.name, **label)
    times = Family("nemo_gym_handler_blocked_total", "counter", "How often a handler blocked the event loop.")
    seconds = Family("nemo_gym_handler_blocked_seconds_total", "counter", "For how long it blocked the event loop.")
    for handler, blocked in app.blocked().items():
        times.add(blocked["times"], handler=handler, **label)
        seconds.add(blocked["seconds"], handler=handler, **label)
    yield from (sessions, times, seconds)


def _stats_of(app: ServerApp) -> Iterator[tuple[str, str, RequestStats]]:
    """Path, stage and figures of every endpoint and every FastAPI route."""
    own = app.fastapi
    for path, endpoint in (app if own is None else own).endpoints.items():
        yield path, stage_of(endpoint), endpoint.stats
    for path, stats in ({} if own is None else own.stats).items():
        yield path, _STAGE_OF_PATH.get(path, "tool"), stats


def stage_of(endpoint: Endpoint) -> str:
    """The stage of a rollout that an endpoint belongs to."""
    return _STAGE_OF_PATH.get(endpoint.path) or _STAGE_OF_CAUSE.get(endpoint.cause, "agent")
