"""`python -m bench.data`: the cost of preparing a dataset, in bare parse-and-writes of the same file, and its memory.

A bare parse-and-write is `orjson.loads`, `orjson.dumps` and `write` of every line, in one process. Both are CPU
time in user and kernel; that of the command is over all its processes, start-up included.
"""

import argparse
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from nemo_gym.bench import processes

WORDS = (
    *("river", "stone", "cloud", "engine", "matrix", "vector", "field", "theory", "proof", "reaction", "protein"),
    *("orbit", "signal", "carbon", "market", "policy", "history", "culture", "network", "packet", "kernel", "thread"),
)
TOOL = {
    "type": "function",
    "name": "get_weather",
    "description": "",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "description": ""}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
CONFIG = """
bench_agent:
  responses_api_agents:
    simple_agent:
      entrypoint: app.py
      datasets:
      - {name: train, type: train, license: Apache 2.0, jsonl_fpath: %s}
"""
SAMPLE_S = 0.05


@dataclass(frozen=True)
class Cost:
    """Cost of a run of the command."""

    cpu_s: float
    wall_s: float
    peak_mb: float
    """Memory of all its processes. Shared memory is counted in proportion."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.data", description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--row-bytes", type=int, default=2048)
    parser.add_argument("--folder", type=Path, help="folder for the files, on a disk with enough space")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        measure(Path(folder), rows=options.rows, row_bytes=options.row_bytes)


def measure(folder: Path, *, rows: int, row_bytes: int) -> None:
    """Print the table."""
    data = folder / "train.jsonl"
    write_rows(data, rows=rows, row_bytes=row_bytes)
    load = f"load {os.getloadavg()[0]:.1f} of {os.cpu_count()} cores"
    print(f"{rows} rows of {data.stat().st_size / rows:.0f} bytes; {load}")
    print("| | CPU s | rows per CPU s | bare parse-and-writes | wall s | peak MB |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, arguments in {
        "without token counts": ("+count_tokens=false", "+near_duplicates=false"),
        "with token counts": ("+count_tokens=true", "+near_duplicates=false"),
    }.items():
        before_s = bare_parse_and_write(data, folder / "bare.jsonl")
        cost = prepare(folder, data, *arguments)
        bare_s = (before_s + bare_parse_and_write(data, folder / "bare.jsonl")) / 2
        print(f"| bare parse-and-write, before and after | {bare_s:.2f} | {rows / bare_s:.0f} | 1.00 | | |")
        cells = f"{cost.cpu_s:.2f} | {rows / cost.cpu_s:.0f} | {cost.cpu_s / bare_s:.2f}"
        print(f"| ng_prepare_data {name} | {cells} | {cost.wall_s:.1f} | {cost.peak_mb:.0f} |", flush=True)


def write_rows(path: Path, *, rows: int, row_bytes: int) -> None:
    """Synthetic rows with one user message, one tool and two fields."""
    import json

    chance = random.Random(7)
    count = max(10, (row_bytes - 420) // 7)
    with path.open("w") as file:
        for number in range(rows):
            text = f"{number} {' '.join(chance.choices(WORDS, k=count))}"
            params = {"input": [{"role": "user", "content": text}], "tools": [TOOL], "temperature": 1.0}
            row = {"responses_create_params": params, "expected_answer": "B", "uuid": f"u-{number}"}
            file.write(json.dumps(row) + "\n")


def bare_parse_and_write(source: Path, target: Path) -> float:
    """CPU seconds in one process."""
    program = (
        "import orjson, sys\n"
        "with open(sys.argv[1], 'rb') as rows, open(sys.argv[2], 'wb') as out:\n"
        "    for line in rows: out.write(orjson.dumps(orjson.loads(line)) + b'\\n')\n"
    )
    seconds = _children_cpu_s(lambda: subprocess.run([sys.executable, "-c", program, source, target], check=True))
    target.unlink()
    return seconds


def _children_cpu_s(run: Callable[[], object]) -> float:
    def spent() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    before = spent()
    run()
    return spent() - before


def prepare(folder: Path, data: Path, *arguments: str) -> Cost:
    """Run the command as a user does."""
    config = folder / "config.yaml"
    config.write_text(CONFIG % data)
    command = [
        str(Path(sys.executable).parent / "ng_prepare_data"),
        f"+config_paths=[{config}]",
        "+mode=train_preparation",
    ]
    command += [f"+output_dirpath={folder / 'out'}", "+overwrite_metrics_conflicts=true", *arguments]
    started, usage = time.monotonic(), Usage()
    with (folder / "log.txt").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        while process.poll() is None:
            usage.sample(process.pid)
            time.sleep(SAMPLE_S)
    if process.returncode:
        raise SystemExit((folder / "log.txt").read_text()[-4000:])
    return Cost(sum(usage.cpu_s.values()), time.monotonic() - started, usage.peak_mb)


@dataclass
class Usage:
    """Usage of a process and its descendants. One that has ended counts with its last sample."""

    cpu_s: dict[int, float] = field(default_factory=dict)
    peak_mb: float = 0.0

    def sample(self, pid: int) -> None:
        with suppress(psutil.Error, OSError):
            pids = processes.tree(pid)
            for each in pids:
                self.cpu_s[each] = processes.cpu_s([each])
            self.peak_mb = max(self.peak_mb, processes.memory(pids).pss_mb)


if __name__ == "__main__":
    main()
