"""How the viewer does on a very large file: `python -m bench.viewer --rows 2000000 --folder /tmp/big`.

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
from collections.abc import Iterator
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
    """The running command, and what it has used."""

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
        """The CPU time of one request."""
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


def measure(path: Path) -> dict[str, Any]:
    """All figures, the first open and a second one with the index that it has left."""
    found: dict[str, Any] = {"bytes": path.stat().st_size}
    with served(path) as server:
        started = server.cpu_s()
        server.get("rows", file=0)
        found["first page, CPU s of the process since it listens"] = server.cpu_s() - started
        found["first page, CPU s of the process with its start"] = server.cpu_s()
        began, cpu = time.monotonic(), server.cpu_s()
        while not json.loads(server.get("files"))["files"][0]["complete"]:
            time.sleep(1)
        found["index, CPU s"], found["index, wall s"] = server.cpu_s() - cpu, time.monotonic() - began
        found["peak memory MB after indexing"] = server.peak_mb()
    index = path.with_name(f"{path.stem}_index.sqlite")
    found["index bytes"] = index.stat().st_size
    with served(path) as server:
        started = server.cpu_s()
        server.get("rows", file=0)
        found["first page with an index, CPU s"] = server.cpu_s() - started
        found["last page, CPU s"] = server.measure("rows", file=0, sort="-row")
        found["sorted by time, CPU s"] = server.measure("rows", file=0, sort="-seconds")
        found["filter on a column, CPU s"] = server.measure("rows", file=0, where="reward < 1 and task > 100")
        found["filter on a nested field, CPU s"] = server.measure("rows", file=0, where="verifier.level = 3")
        found["figures of all rows, CPU s"] = server.measure("summary", file=0)
        found["groups, CPU s"] = server.measure("tasks", file=0, sort="-spread")
        for text in (NEEDLE, "zzqqzz"):
            before, began = server.cpu_s(), time.monotonic()
            hits = server.get("search", file=0, text=text).count(b'"hit"')
            used, wall = server.cpu_s() - before, time.monotonic() - began
            found[f"search '{text}'"] = {
                "hits": hits,
                "MB per CPU s": found["bytes"] / used / 1e6,
                "MB per wall s": found["bytes"] / wall / 1e6,
            }
        found["peak memory MB after all of this"] = server.peak_mb()
    index.unlink()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--row-bytes", type=int, default=10_000)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--keep", action="store_true", help="leave the file, or use the one that is there")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    path = options.folder / "big.jsonl"
    if not (options.keep and path.exists()):
        write_file(path, options.rows, options.row_bytes)
    try:
        print(json.dumps(measure(path), indent=2))
    finally:
        if not options.keep:
            path.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
