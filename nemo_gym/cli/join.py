"""A worker that joins a run: the command that Slurm, Kubernetes or a shell on another machine starts."""

import contextlib
import sys
from functools import partial

from pydantic import Field

from nemo_gym.cli.command import command, read_command_line
from nemo_gym.cli.health import health_thread
from nemo_gym.common import event_loop
from nemo_gym.config.types import CommandConfig, Port
from nemo_gym.rollouts.worker import serve_rows
from nemo_gym.runtime.membership import WorkerPlan, join_and_serve, plan_worker, token_of
from nemo_gym.server.uvicorn_runner import bind, set_by_signals


class WorkerConfig(CommandConfig):
    """Start a worker on this machine and let it join a run: it holds all servers of the configuration, and collectors
    send it rows.

    Give it the same configuration as `ng_run`, the address of the run's head server, and the run's token in
    NEMO_GYM_RUN_TOKEN. A worker with other settings or code is refused. SIGTERM drains it: it gets no more rows, and
    finishes those in flight.
    """

    config_paths: list[str] | None = None
    """YAML files that define the servers, as for `ng_run`."""

    worker_host: str | None = None
    """The address that this worker listens on, and by which the run reaches it. Default: default_host."""

    worker_port: Port = 0
    """Port for HTTP requests to its servers. Default: any."""

    worker_rows_port: Port = 0
    """Port for rows of collectors. Default: any."""

    health_port: Port | None = None
    """Answer GET /health on this port, from a thread of its own."""

    drain_timeout_s: float = Field(default=30.0, ge=0)
    """How long rollouts in flight may take after SIGTERM."""


@command(WorkerConfig)
def worker() -> None:
    """Start a worker that joins a run."""
    config = read_command_line()
    options = WorkerConfig.read(config)
    plan = plan_worker(
        config,
        token=token_of(config),
        host=options.worker_host,
        port=options.worker_port,
        rows_port=options.worker_rows_port,
    )
    event_loop.run(_serve(plan, options))


async def _serve(plan: WorkerPlan, options: WorkerConfig) -> None:
    stop = set_by_signals()
    with contextlib.ExitStack() as opened:
        if options.health_port is not None:
            opened.enter_context(health_thread(bind(plan.host, options.health_port)))
        await join_and_serve(plan, partial(serve_rows, drain_s=options.drain_timeout_s), stop, _say_ready)


def _say_ready(index: int) -> None:
    print(f"Worker {index} joined the run and is ready. Stop it with Ctrl+C.", file=sys.stderr, flush=True)
