"""What it takes to have the servers of the weather example up: CPU time until all are ready, and memory when idle."""

import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import orjson

from bench.processes import Memory, memory, tree, tree_cpu_s
from bench.stacks import WEATHER_CONFIG, BenchError
from nemo_gym.client.server_client import base_url, get_from_head
from nemo_gym.common.logging import LEVEL_ENV_VAR
from nemo_gym.config.loading import find_open_port
from nemo_gym.errors import HeadServerError

NG_RUN = (sys.executable, "-m", "bench.serve_stack")
"""The command under test."""
BARE_IMPORTS = (sys.executable, "-c", "import aiohttp, omegaconf, pydantic, uvicorn")
"""The libraries that it cannot do without, imported once."""
SCRIPTED_MODEL_CONFIG = "responses_api_models/scripted_model/configs/scripted_model.yaml"
READY_WITHIN_S = 60.0
STOP_WITHIN_S = 20.0
ASK_EVERY_S = 0.05
"""Each question costs the supervisor well under a millisecond, so twenty a second do not show."""
IDLE_AFTER_S = 1.0


@dataclass(frozen=True, slots=True)
class Start:
    """One start of the servers."""

    cpu_s: float
    bare_cpu_s: float
    """What the imports alone took just before."""
    ratio: float
    wall_s: float
    processes: int
    memory: Memory
    """Once all is quiet."""


def measure_start(times: int) -> Start:
    """The median of several starts, by ratio."""
    starts = sorted((_measure_once() for _ in range(times)), key=lambda start: start.ratio)
    return starts[len(starts) // 2]


def _measure_once() -> Start:
    bare_cpu_s, port = _bare_cpu_s(), find_open_port()
    with _running(port) as pid:
        started = time.perf_counter()
        while not _is_up(port):
            if time.perf_counter() - started > READY_WITHIN_S:
                raise BenchError(f"'{' '.join(NG_RUN)}' was not ready within {READY_WITHIN_S:g} s.")
            time.sleep(ASK_EVERY_S)
        wall_s, cpu_s = time.perf_counter() - started, tree_cpu_s(pid)
        time.sleep(IDLE_AFTER_S)
        pids = tree(pid)
        return Start(cpu_s, bare_cpu_s, cpu_s / bare_cpu_s, wall_s, len(pids), memory(pids))


def _bare_cpu_s() -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(BARE_IMPORTS, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@contextmanager
def _running(port: int) -> Iterator[int]:
    arguments = [f"+config_paths=[{WEATHER_CONFIG},{SCRIPTED_MODEL_CONFIG}]", f"+head_server.port={port}"]
    process = subprocess.Popen([*NG_RUN, *arguments], env={**os.environ, LEVEL_ENV_VAR: "WARNING"})
    try:
        yield process.pid
    finally:
        process.terminate()
        try:
            process.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _is_up(port: int) -> bool:
    try:
        states = orjson.loads(get_from_head(base_url("127.0.0.1", port), "/health"))["servers"].values()
    except HeadServerError:
        return False
    return set(states) == {"up"}
