"""Measure one load: the real `ng_collect_rollouts`, alone or with `ng_run`, against the simulated endpoint."""

import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from nemo_gym.bench.endpoint import DEFAULT_FAULTS, Endpoint, EndpointSpec, serving_endpoint
from nemo_gym.bench.processes import STOP_TIMEOUT_S, Command, Usage, Watcher, tree_cpu_s
from nemo_gym.common.atomic_files import read_jsonl
from nemo_gym.common.statistics import quantile
from nemo_gym.config.loading import find_open_port
from nemo_gym.errors import GymError
from nemo_gym.rollouts.store import failures_path

MODEL_CONFIG = "responses_api_models/openai_model/configs/openai_model.yaml"


@dataclass(frozen=True, slots=True)
class Environment:
    """The measured configuration: config files, an agent, and rows."""

    config_paths: Sequence[str]
    agent_name: str
    rows: Sequence[dict[str, Any]]
    overrides: Sequence[str] = ()
    """Extra arguments of the commands, such as `+num_workers=4`."""
    through_ng_run: bool = False

    def arguments(self, urls: Sequence[str]) -> list[str]:
        """Return the arguments of the command that starts the servers."""
        base_url = urls[0] if len(urls) == 1 else f"[{','.join(urls)}]"
        return [
            f"+config_paths=[{','.join([*self.config_paths, MODEL_CONFIG])}]",
            *(f"+policy_base_url={base_url}", "+policy_api_key=none", "+policy_model_name=simulated"),
            *self.overrides,
        ]

    def tool_arguments(self) -> dict[str, str]:
        """Return example arguments for all tools of the rows, generated from their schemas."""
        tools = (tool for row in self.rows for tool in row["responses_create_params"].get("tools") or ())
        functions = {tool["name"]: tool.get("parameters") or {} for tool in tools if tool.get("type") == "function"}
        return {name: orjson.dumps(example_value(schema)).decode() for name, schema in functions.items()}


@dataclass(frozen=True, slots=True)
class Point:
    """A load: rollouts in flight, turns, payload and latency."""

    in_flight: int
    turns: int
    payload_bytes: int
    latency: str
    rollouts: int
    fault_rate: float = 0.0
    faults: Sequence[str] = ()

    def endpoint(self, environment: Environment) -> EndpointSpec:
        return EndpointSpec(
            latency=self.latency,
            turns=self.turns,
            payload_bytes=self.payload_bytes,
            fault_rate=self.fault_rate,
            tool_arguments=environment.tool_arguments(),
            faults=tuple(self.faults) or DEFAULT_FAULTS,
        )


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]], count: int) -> None:
    """Write `count` different rows."""
    with path.open("wb") as file:
        for number in range(count):
            file.write(orjson.dumps({**rows[number % len(rows)], "bench_row": number}) + b"\n")


def example_value(schema: Mapping[str, Any], *, depth: int = 0) -> Any:
    """Return a small value that a JSON schema probably allows."""
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    if schema.get("enum"):
        return schema["enum"][0]
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            return example_value(schema[key][0], depth=depth)
    kind = schema.get("type", "object" if "properties" in schema or not depth else "string")
    return _of_type(kind[0] if isinstance(kind, list) else kind, schema, depth)


def _of_type(kind: str, schema: Mapping[str, Any], depth: int) -> Any:
    if kind == "object" and depth < 8:
        properties = schema.get("properties") or {}
        return {
            name: example_value(properties.get(name, {}), depth=depth + 1) for name in schema.get("required") or ()
        }
    if kind == "array" and depth < 8 and schema.get("minItems"):
        return [example_value(schema.get("items") or {}, depth=depth + 1)] * int(schema["minItems"])
    if kind in ("integer", "number"):
        return schema.get("minimum", 1)
    return {"object": {}, "array": [], "boolean": True, "null": None}.get(kind, "text")


def padded(rows: Sequence[dict[str, Any]], prompt_bytes: int) -> list[dict[str, Any]]:
    """Return the rows, each with an extra user message that extends its input to that size."""
    chance = random.Random(7)
    found = []
    for row in rows:
        params = dict(row["responses_create_params"])
        missing = prompt_bytes - len(orjson.dumps(params["input"]))
        if missing > 0:
            words = "".join(chance.choices("abcdefghij klmnopqrs tuvwxyz ", k=missing))
            given = params["input"]
            said = [{"role": "user", "content": given}] if isinstance(given, str) else list(given)
            params["input"] = [*said, {"role": "user", "content": words}]
        found.append({**row, "responses_create_params": params})
    return found


WARM_UP_ROLLOUTS = 2
"""Rollouts of the warm-up run, whose CPU time counts as start-up."""
READY_TIMEOUT_S = 120.0
SCRIPTS = Path(sys.executable).parent
_SECONDS = re.compile(rb'"_seconds":([0-9.e+-]+)')


class BenchError(GymError):
    """The measured program failed, so there is no result."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements of one load."""

    point: Point
    scored: int
    failed: dict[str, int]
    """Failed rollouts by cause."""
    seconds: float
    """From the first model call to the last reply."""
    cpu_s: float
    """CPU time of the commands and their child processes, without start-up."""
    most_in_flight: int
    """Maximum concurrent model calls at the endpoint."""
    mean_latency_s: float
    """Mean latency that the endpoint simulated."""
    faults: int
    p50_s: float
    p99_s: float
    """Percentiles of the duration of scored rollouts."""
    usage: Usage = field(default_factory=Usage)
    endpoint_usage: Usage = field(default_factory=Usage)

    @property
    def rate(self) -> float:
        """Rollouts per second."""
        return (self.scored + sum(self.failed.values())) / max(self.seconds, 1e-9)

    @property
    def cpu_ms(self) -> float:
        """CPU time per rollout, in ms. Warm-up rollouts do not count."""
        return 1000 * self.cpu_s / max(1, self.point.rollouts - WARM_UP_ROLLOUTS)

    @property
    def share_of_ideal_rate(self) -> float:
        """Share of the rate that latency alone would allow with this many rollouts in flight."""
        rounds = -(-self.point.rollouts // self.point.in_flight)
        ideal_s = rounds * self.point.turns * self.mean_latency_s
        return min(1.0, ideal_s / max(self.seconds, 1e-9))


class Bench:
    """Measures loads of one environment. Start-up is measured once."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._start_up_s: float | None = None

    def measure(self, point: Point) -> Measured:
        if self._start_up_s is None:
            warm_up = Point(WARM_UP_ROLLOUTS, 1, 0, "constant:0", WARM_UP_ROLLOUTS)
            self._start_up_s = self._measure(warm_up, 0.0).cpu_s
        return self._measure(point, self._start_up_s)

    def _measure(self, point: Point, start_up_s: float) -> Measured:
        environment = self._environment
        with (
            tempfile.TemporaryDirectory() as folder,
            serving_endpoint(point.endpoint(environment), connections=point.in_flight) as endpoint,
        ):
            place, arguments, port = Path(folder), environment.arguments(endpoint.urls), find_open_port()
            write_rows(place / "rows.jsonl", environment.rows, point.rollouts)
            servers = (
                ng_run([*arguments, f"+head_server.port={port}"]) if environment.through_ng_run else nullcontext()
            )
            with servers as run:
                given = [f"+head_server.port={port}", *(() if run else arguments)]
                return self._collect(point, place, given, endpoint, run.pid if run else None, start_up_s)

    def _collect(
        self, point: Point, place: Path, given: Sequence[str], endpoint: Endpoint, run: int | None, start_up_s: float
    ) -> Measured:
        before_s = 0.0 if run is None else tree_cpu_s(run)
        command = [
            *(str(SCRIPTS / "ng_collect_rollouts"), *given, f"+agent_name={self._environment.agent_name}"),
            *("+input_jsonl_fpath=rows.jsonl", "+output_jsonl_fpath=out.jsonl", "+tolerated_failures=1000000000"),
            f"+num_samples_in_parallel={point.in_flight}",
        ]
        with Command(command, log=place / "log.txt", cwd=place) as process:
            roots = [process.pid] if run is None else [process.pid, run]
            with (
                Watcher(lambda: roots, has_begun=lambda: endpoint.stats().requests > 0) as watched,
                Watcher(lambda: endpoint.pids) as endpoint_watched,
            ):
                ended = process.wait()
        if ended.exit_code:
            raise BenchError(f"ng_collect_rollouts failed: {(place / 'log.txt').read_text()[-2000:]}")
        run_s = 0.0 if run is None else tree_cpu_s(run) - before_s
        cpu_s = max(0.0, ended.cpu_s + run_s - start_up_s)
        return _measured(point, place, endpoint, cpu_s, watched.usage, endpoint_watched.usage)


def _measured(
    point: Point, place: Path, endpoint: Endpoint, cpu_s: float, usage: Usage, endpoint_usage: Usage
) -> Measured:
    stats, seconds = endpoint.stats(), [*_seconds_of_records(place / "out.jsonl")]
    failed = _failures(failures_path(place / "out.jsonl"))
    return Measured(
        point=point,
        scored=len(seconds),
        failed=dict(failed),
        seconds=stats.last_at - stats.first_at,
        cpu_s=cpu_s,
        most_in_flight=stats.most_in_flight,
        mean_latency_s=stats.latency_s / max(1, stats.requests),
        faults=stats.faults,
        p50_s=quantile(seconds, 0.5) if seconds else 0.0,
        p99_s=quantile(seconds, 0.99) if seconds else 0.0,
        usage=usage,
        endpoint_usage=endpoint_usage,
    )


def _seconds_of_records(path: Path) -> Iterator[float]:
    """Yield the duration of each rollout. Only the end of a record is read, since records may be large."""
    with path.open("rb") as lines:
        for line in lines:
            found = _SECONDS.search(line, max(0, len(line) - 1000))
            if found is None:
                raise BenchError(f"A record of {path} has no `_seconds`.")
            yield float(found[1])


def _failures(path: Path) -> Counter[str]:
    if not path.exists():
        return Counter()
    return Counter(record["cause"] for record in read_jsonl(path) if record["is_final"])


@contextmanager
def ng_run(
    arguments: Sequence[str], *, cwd: Path | None = None, scripts: Path = SCRIPTS
) -> "Iterator[subprocess.Popen[bytes]]":
    """Run `ng_run` while the block runs. The servers are ready when it starts."""
    with tempfile.NamedTemporaryFile("rb") as log:
        with Path(log.name).open("wb") as file:
            command = [str(scripts / "ng_run"), *arguments]
            process = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True, cwd=cwd)
        try:
            give_up_at = time.monotonic() + READY_TIMEOUT_S
            while b"servers ready" not in Path(log.name).read_bytes():
                if process.poll() is not None or time.monotonic() > give_up_at:
                    raise BenchError(f"ng_run is not ready: {Path(log.name).read_text()[-2000:]}")
                time.sleep(0.05)
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                process.wait(STOP_TIMEOUT_S)
