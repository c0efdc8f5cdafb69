"""The viewer on a very large file: `python -m bench.viewer --rows 2000000 --folder /tmp/big`.

Writes a file of rollouts (10 KB each by default), starts the real command on it, and measures the CPU time of the
server process until the first page, the index, pages, search and memory. The file is removed afterwards."""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

REPEATS = 8
BODIES = 256
LINE = (
    b'%b,"expected_answer":"%d","verifier":{"level":%d},"reward":%d.0,"_task_index":%d,"_repeat_index":%d,'
    b'"_row_hash":"0123456789abcdef","_attempts":1,"_retries":0,"_seconds":%d.5}\n'
)
NEEDLE = "the one row with zyxwvuts"


def write_file(path: Path, rows: int, row_bytes: int) -> None:
    """Rollouts with a tool call and usage. One in the middle contains the needle."""
    rng = random.Random(0)
    bodies = [_body(rng, row_bytes) for _ in range(BODIES)]
    needle = _body(rng, row_bytes, extra=NEEDLE)
    with path.open("wb", buffering=1 << 22) as file:
        for row in range(rows):
            task, repeat = divmod(row, REPEATS)
            body = needle if row == rows // 2 else bodies[row % BODIES]
            passed = (row * 7919) % 11 < task % 12
            file.write(LINE % (body, task, task % 5, passed, task, repeat, row % 97))


def _body(rng: random.Random, row_bytes: int, extra: str = "") -> bytes:
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(500)]
    text = " ".join(rng.choices(words, k=row_bytes // 26))
    call = {"type": "function_call", "call_id": "c", "name": "look_up", "arguments": json.dumps({"q": words[0]})}
    output = [
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": text}]},
        call,
        {"type": "function_call_output", "call_id": "c", "output": text},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": f"{text} {extra}"}]},
    ]
    usage = {"input_tokens": len(text) // 4, "output_tokens": len(text) // 2 + rng.randint(0, 99), "total_tokens": 1}
    record = {
        "responses_create_params": {"input": [{"role": "user", "content": text}]},
        "response": {"id": "resp", "model": "m", "status": "completed", "output": output, "usage": usage},
    }
    return json.dumps(record).encode()[:-1]


class Server:
    """The running command, and its resource usage."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process, self._usage = process, psutil.Process(process.pid)
        self.url = next(line.split()[-1] for line in process.stdout or () if "http://" in line)

    def cpu_s(self) -> float:
        used = self._usage.cpu_times()
        return float(used.user + used.system)

    def get(self, path: str, **parameters: Any) -> bytes:
        with urllib.request.urlopen(f"{self.url}api/{path}?{urllib.parse.urlencode(parameters)}") as reply:
            return bytes(reply.read())

    def peak_mb(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) / 1000

    def measure(self, path: str, **parameters: Any) -> float:
        """Return the CPU time of one request."""
        before = self.cpu_s()
        self.get(path, **parameters)
        return self.cpu_s() - before


@contextmanager
def served(path: Path) -> Iterator[Server]:
    command = [str(Path(sys.executable).parent / "ng_viewer"), f"+jsonl_fpath={path}", "+server_port=0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    try:
        yield Server(process)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def measure_first_page(path: Path) -> dict[str, Any]:
    """Measure the first page of a file without an index."""
    with served(path) as server:
        started = server.cpu_s()
        server.get("rows", file=0)
        used = server.cpu_s() - started
        return {"first page, CPU s": used, "first page with the start of the process, CPU s": started + used}


def measure_index(path: Path) -> dict[str, Any]:
    """Measure building the index to its end."""
    with served(path) as server:
        began, cpu, rows = time.monotonic(), server.cpu_s(), _progress(server)["rows"]
        while not _progress(server)["complete"]:
            time.sleep(1)
        found = {
            "index, rows": _progress(server)["rows"] - rows,
            "index, CPU s": server.cpu_s() - cpu,
            "index, wall s": time.monotonic() - began,
            "index, peak MB": server.peak_mb(),
        }
    return {**found, "index, bytes": index_path(path).stat().st_size}


def measure_pages(path: Path) -> dict[str, Any]:
    """Measure pages and metrics of a file that has its index."""
    with served(path) as server:
        return {
            "first page with an index, CPU s": server.measure("rows", file=0),
            "last page, CPU s": server.measure("rows", file=0, sort="-row"),
            "sorted by time, CPU s": server.measure("rows", file=0, sort="-seconds"),
            "filter on a column, CPU s": server.measure("rows", file=0, where="reward < 1 and task > 100"),
            "filter on a nested field, CPU s": server.measure("rows", file=0, where="verifier.level = 3"),
            "metrics of all rows, CPU s": server.measure("summary", file=0),
            "groups, CPU s": server.measure("tasks", file=0, sort="-spread"),
            "pages, peak MB": server.peak_mb(),
        }


def measure_search(path: Path) -> dict[str, Any]:
    """Measure a search for a text in one row in the middle."""
    size = path.stat().st_size
    with served(path) as server:
        before, began = server.cpu_s(), time.monotonic()
        hits = server.get("search", file=0, text=NEEDLE).count(b'"hit"')
        used, wall = server.cpu_s() - before, time.monotonic() - began
        rates = {"search, MB per CPU s": size / used / 1e6, "search, MB per wall s": size / wall / 1e6}
        return {"search, hits": hits, **rates, "search, peak MB": server.peak_mb()}


def index_path(path: Path) -> Path:
    return path.with_name(f"{path.stem}_index.sqlite")


def _progress(server: Server) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(server.get("files"))["files"][0]
    return found


PARTS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "first_page": measure_first_page,
    "index": measure_index,
    "pages": measure_pages,
    "search": measure_search,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--row-bytes", type=int, default=10_000)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--keep", action="store_true", help="leave the file, or use the one that is there")
    parser.add_argument("--part", choices=PARTS, action="append", help="measure only this; the index stays")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    path = options.folder / "big.jsonl"
    if not (options.keep and path.exists()):
        write_file(path, options.rows, options.row_bytes)
    found: dict[str, Any] = {"bytes": path.stat().st_size}
    try:
        for part in options.part or PARTS:
            found |= PARTS[part](path)
        print(json.dumps(found, indent=2))
    finally:
        if not options.keep:
            path.unlink(missing_ok=True)
            index_path(path).unlink(missing_ok=True)


if __name__ == "__main__":
    main()
