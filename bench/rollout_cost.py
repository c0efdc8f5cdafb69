"""The cost of a rollout: CPU time of the real command and all its processes, start-up subtracted, in units of one bare
aiohttp request to the same endpoint in the same run. The endpoint's CPU time does not count in either."""

import asyncio
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from nemo_gym.bench.endpoint import serving_endpoint
from nemo_gym.bench.measure import SCRIPTS, BenchError, ng_run
from nemo_gym.bench.processes import Command, memory, tree, tree_cpu_s
from nemo_gym.config.loading import find_open_port

IN_FLIGHT = 64
"""Concurrent bare requests, enough to saturate one core."""
WARM_UP_ROWS = 20
"""Rows of the warm-up run, whose CPU time counts as start-up."""
MODEL_CONFIG = "responses_api_models/openai_model/configs/openai_model.yaml"


@dataclass(frozen=True, slots=True)
class Scenario:
    """A kind of rollout."""

    name: str
    config: str
    agent: str
    row: dict[str, Any]


TOOL = {
    "type": "function",
    "name": "get_weather",
    "description": "Weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "description": "The city's name."}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}
OPTIONS = [{letter: f"{letter.lower()} market carbon signal orbit quantum"} for letter in "ABCDEFGHIJ"]
QUESTION = "Reply with one option letter in \\boxed{}. river stone cloud engine matrix vector field theory lemma?\n"
ONE_TURN = Scenario(
    "one turn (mcqa)",
    "resources_servers/mcqa/configs/mcqa.yaml",
    "mcqa_simple_agent",
    {
        "responses_create_params": {"input": [{"role": "user", "content": QUESTION + str(OPTIONS)}]},
        "options": OPTIONS,
        "expected_answer": "B",
        "grading_mode": "strict_single_letter_boxed",
    },
)
TWO_TURNS = Scenario(
    "two turns with a tool call (simple_weather)",
    "resources_servers/example_simple_weather/configs/simple_weather.yaml",
    "simple_weather_simple_agent",
    {
        "responses_create_params": {
            "input": [
                {"role": "developer", "content": "Use the tool when a city is named, then reply in one sentence."},
                {"role": "user", "content": "What is the weather in Oslo?"},
            ],
            "tools": [TOOL],
        }
    },
)
SCENARIOS = (ONE_TURN, TWO_TURNS)


@dataclass(frozen=True, slots=True)
class RolloutCost:
    """The measurements of one scenario."""

    name: str
    bare_us: float
    """One bare aiohttp request."""
    one_process_us: float
    ng_run_us: float
    ready_cpu_s: float
    """CPU time of `ng_run` until all servers are ready."""
    idle_pss_mb: float

    @property
    def one_process(self) -> float:
        return self.one_process_us / self.bare_us

    @property
    def ng_run(self) -> float:
        return self.ng_run_us / self.bare_us


def measure_often(scenario: Scenario, *, rows: int, rounds: int) -> RolloutCost:
    """Return the median of several measurements. Other load makes a bare request up to twice as expensive, and a
    rollout less so: a single measurement may be off by a fifth."""
    costs = sorted(
        (measure(scenario, rows=rows) for _ in range(rounds)), key=lambda cost: cost.one_process + cost.ng_run
    )
    return costs[len(costs) // 2]


def measure(scenario: Scenario, *, rows: int) -> RolloutCost:
    """Measure one scenario, the bare request before, between and after its two runs."""
    with serving_endpoint() as endpoint, tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        files = {count: write_rows(place / f"rows_{count}.jsonl", scenario, count) for count in (WARM_UP_ROWS, rows)}
        settings = [
            f"+config_paths=[{scenario.config},{MODEL_CONFIG}]",
            *(f"+policy_base_url={endpoint.url}", "+policy_api_key=none", "+policy_model_name=stub"),
        ]

        def cpu_of(count: int, arguments: Iterable[str]) -> float:
            return collect(scenario.agent, files[count], place / f"out_{time.time_ns()}.jsonl", count, arguments)

        def bare() -> float:
            return bare_request_s(f"{endpoint.url}/responses", scenario, count=rows)

        bare_s = [bare()]
        alone = [*settings, "+head_server.port=1"]  # whatever run there is on this machine
        one_process = cpu_of(rows, alone) - cpu_of(WARM_UP_ROWS, alone)
        bare_s.append(bare())
        use = [f"+head_server.port={find_open_port()}"]  # a second bench on this machine has another
        with ng_run([*settings, *use]) as run:
            ready_s, idle = tree_cpu_s(run.pid), memory(tree(run.pid)).pss_mb
            before = cpu_of(WARM_UP_ROWS, use), tree_cpu_s(run.pid)
            after = cpu_of(rows, use), tree_cpu_s(run.pid)
        bare_s.append(bare())
    counted = rows - WARM_UP_ROWS
    through = sum(after) - sum(before)
    return RolloutCost(
        name=scenario.name,
        bare_us=statistics.mean(bare_s) * 1e6,
        one_process_us=one_process / counted * 1e6,
        ng_run_us=through / counted * 1e6,
        ready_cpu_s=ready_s,
        idle_pss_mb=idle,
    )


def collect(
    agent: str,
    rows: Path,
    output: Path,
    count: int,
    arguments: Iterable[str],
    *,
    scripts: Path = SCRIPTS,
    cwd: Path | None = None,
) -> float:
    """Run the real `ng_collect_rollouts` and return its CPU seconds, those of its children included."""
    command = [
        *(str(scripts / "ng_collect_rollouts"), *arguments, f"+agent_name={agent}"),
        *(f"+input_jsonl_fpath={rows}", f"+output_jsonl_fpath={output}"),
    ]
    log = output.with_suffix(".log")
    with Command(command, log=log, cwd=cwd) as process:
        ended = process.wait()
    scored = len(output.read_bytes().splitlines()) if output.exists() else 0
    if scored != count:
        raise BenchError(f"{scored} of {count} rollouts were scored: {log.read_text()[-500:]}")
    return ended.cpu_s


def bare_request_s(url: str, scenario: Scenario, *, count: int, texts: int = 0, text_bytes: int = 0) -> float:
    """CPU seconds of one saturated aiohttp request that encodes a row's parameters and decodes the reply. Of `texts`
    requests in a row, each has one text of `text_bytes` more than the last, as in a conversation."""
    body = orjson.dumps(scenario.row["responses_create_params"]).decode()
    numbers = [str(number) for number in (count, texts, text_bytes)]
    done = subprocess.run(
        [sys.executable, "-m", "bench.rollout_cost", url, *numbers, body], capture_output=True, text=True, check=True
    )
    return float(done.stdout)


async def _drive_bare_requests(url: str, count: int, texts: int, text_bytes: int, params: dict[str, Any]) -> float:
    added = [b',"text%d":"%b"' % (number, b"x" * text_bytes) for number in range(texts)]
    endings = [b"".join(added[:number]) + b"}" for number in range(texts)] or [b"}"]
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session:

        async def worker(numbers: Iterator[int]) -> None:
            for number in numbers:
                start = orjson.dumps({**params, "model": f"stub{number}"})[:-1]
                body = start + endings[number % len(endings)]
                async with session.post(url, data=body, headers={"content-type": "application/json"}) as response:
                    orjson.loads(await response.read())

        async def drive(total: int) -> None:
            numbers = iter(range(total))
            await asyncio.gather(*(worker(numbers) for _ in range(IN_FLIGHT)))

        await drive(count // 10)
        before = _own_cpu_s()
        await drive(count)
        return (_own_cpu_s() - before) / count


def _own_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def write_rows(path: Path, scenario: Scenario, count: int) -> Path:
    """Write rows that differ, like real ones."""
    with path.open("wb") as file:
        for number in range(count):
            file.write(orjson.dumps({**scenario.row, "uuid": f"row-{number}"}) + b"\n")
    return path


if __name__ == "__main__":
    import uvloop

    url, *numbers, params = sys.argv[1:]
    count, texts, text_bytes = map(int, numbers)
    print(uvloop.run(_drive_bare_requests(url, count, texts, text_bytes, orjson.loads(params))))
