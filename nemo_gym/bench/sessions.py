"""The session benchmark: concurrent clients that each open a session on an environment of `ng_run`, make steps that
wait on the server, and end it. A session succeeds if every reply is correct."""

import asyncio
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nemo_gym.bench.measure import ng_run
from nemo_gym.bench.processes import Usage, Watcher, tree_cpu_s
from nemo_gym.bench.report import table
from nemo_gym.client.connection import HttpSettings
from nemo_gym.client.pool import HttpClient
from nemo_gym.client.server_client import CookieJar, ServerClient, ServerReply
from nemo_gym.common import event_loop
from nemo_gym.common.statistics import quantile
from nemo_gym.compute.pool import available_cores
from nemo_gym.config.loading import find_open_port
from nemo_gym.config.types import BaseServerConfig
from nemo_gym.errors import GymError, RolloutError

_PATIENT = HttpSettings(connect_timeout_s=300)
"""All sessions start at once, so connections queue."""
NAME = "session_bench"
CONFIG = """
session_bench:
  resources_servers:
    session_bench: {entrypoint: app.py, domain: other}
"""


@dataclass(frozen=True, slots=True)
class SessionsMeasured:
    """The measurements of one number of sessions."""

    sessions: int
    steps: int
    wait_s: float
    succeeded: int
    errors: dict[str, int]
    seconds: float
    p50_s: float
    p99_s: float
    """Percentiles of the duration of sessions, including waiting."""
    cpu_s: float
    """CPU time of all processes of `ng_run`."""
    usage: Usage


def measure_sessions(
    counts: Sequence[int], *, steps: int, wait_s: float, overrides: Sequence[str] = ()
) -> list[SessionsMeasured]:
    """Measure each number of sessions against one run of the servers."""
    with tempfile.TemporaryDirectory() as folder:
        place, port = Path(folder), find_open_port()
        (place / "resources_servers" / NAME).mkdir(parents=True)
        shutil.copy(Path(__file__).with_name("session_environment.py"), place / "resources_servers" / NAME / "app.py")
        (place / "config.yaml").write_text(CONFIG)
        arguments = ["+config_paths=[config.yaml]", f"+head_server.port={port}", *overrides]
        with ng_run(arguments, cwd=place) as run:
            head = BaseServerConfig(host="127.0.0.1", port=port)
            return [_measure(count, steps, wait_s, run.pid, head) for count in counts]


def _measure(count: int, steps: int, wait_s: float, pid: int, head: BaseServerConfig) -> SessionsMeasured:
    before_s = tree_cpu_s(pid)
    with Watcher(lambda: [pid]) as watched:
        started = time.monotonic()
        results = event_loop.run(_drive(count, steps, wait_s, head))
        seconds = time.monotonic() - started
    took = [result for result in results if isinstance(result, float)]
    return SessionsMeasured(
        sessions=count,
        steps=steps,
        wait_s=wait_s,
        succeeded=len(took),
        errors=dict(Counter(result for result in results if isinstance(result, str))),
        seconds=seconds,
        p50_s=quantile(took, 0.5) if took else 0.0,
        p99_s=quantile(took, 0.99) if took else 0.0,
        cpu_s=tree_cpu_s(pid) - before_s,
        usage=watched.usage,
    )


async def _drive(count: int, steps: int, wait_s: float, head: BaseServerConfig) -> list[float | str]:
    async with ServerClient.load_from_global_config(head, http=HttpClient(_PATIENT)) as client:
        return await asyncio.gather(*(_session(client, steps, wait_s) for _ in range(count)))


async def _session(client: ServerClient, steps: int, wait_s: float) -> float | str:
    """Run a session, and return its duration, or the name of its error."""
    jar, started = CookieJar(), time.monotonic()
    try:
        async with client.sessions(jar):
            await client.call(NAME, "/seed_session", {}, answer=ServerReply, jar=jar)
            for number in range(1, steps + 1):
                reply = await client.call(NAME, "/step", {"wait_s": wait_s}, answer=ServerReply, jar=jar)
                if reply.content() != str(number).encode():
                    return "wrong state"
    except RolloutError as error:
        return error.code or error.cause
    except GymError as error:
        return type(error).__name__
    return time.monotonic() - started


def sessions_table(measured: Sequence[SessionsMeasured]) -> str:
    head = ["sessions at once", "cores", "succeeded", "p50 s", "p99 s", "wall s", "CPU ms a session", "MB", "errors"]
    cores = available_cores()
    rows = [
        [
            *(f"{each.sessions:,}", str(cores), f"{each.succeeded / each.sessions:.1%}"),
            *(f"{each.p50_s:.2f}", f"{each.p99_s:.2f}", f"{each.seconds:.1f}"),
            *(f"{1000 * each.cpu_s / each.sessions:.2f}", f"{each.usage.memory_mb:.0f}"),
            ", ".join(f"{name} {count}" for name, count in each.errors.items()) or "0",
        ]
        for each in measured
    ]
    return table(head, rows)
