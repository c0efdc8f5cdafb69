"""Break things on purpose: whatever happens to a collection, every row comes to exactly one end."""

import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from bench.faults import Options, run_faults
from nemo_gym.config.loading import load_config
from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.collector import RolloutCollectionHelper
from nemo_gym.rollouts.config import RolloutCollectionConfig
from nemo_gym.rollouts.store import failures_path
from nemo_gym.runtime.launcher import Launcher
from nemo_gym.runtime.stack import ServerSpec
from nemo_gym.testing import example_row, rows_of, running_servers, server_spec
from tests.commands import BIN
from tests.polling import PATIENCE_S
from tests.stacks import agent_config, simple_agent, weather

KILLS = 10
ROWS = 800
REPLIES = [
    {"user": r"add (\d+)", "turn": 0, "call": [{"name": "increment_counter", "arguments": r'{"count": \1}'}]},
    {"say": "Done."},
]
CONFIG = agent_config("example_stateful_counter", latency_s=0.02, replies=REPLIES)
TOOL = {"type": "function", "name": "increment_counter", "parameters": {}}


def counter_row(number: int) -> dict[str, Any]:
    row = example_row(f"add {number}", initial_count=0, expected_count=number - number % 3)
    row["responses_create_params"]["tools"] = [TOOL]
    return row


def write_rows(path: Path, count: int) -> None:
    path.write_text("".join(json.dumps(counter_row(number)) + "\n" for number in range(count)))


def command(folder: Path, output: str, *more: str) -> list[str]:
    return [
        str(BIN / "ng_collect_rollouts"),
        "+config_paths=[config.yaml]",
        "+agent_name=agent",
        "+input_jsonl_fpath=rows.jsonl",
        f"+output_jsonl_fpath={output}",
        "+num_samples_in_parallel=16",
        "+head_server.port=1",
        *more,
    ]


def comparable(path: Path) -> list[bytes]:
    """The records in the order of their rows, without what differs between any two runs."""
    lines = sorted(path.read_bytes().splitlines(), key=lambda line: orjson.loads(line)["_task_index"])
    return [
        re.sub(
            rb'"(resp|msg|fc|call)_[0-9a-f]+"|"created_at":[\d.]+|"_seconds":[\d.e-]+|"_step_seconds":\[.*?\]',
            b"*",
            line,
        )
        for line in lines
    ]


def kill_at_random_instants(folder: Path, output: str, *more: str, kills: int) -> int:
    """Start the same collection again and again, and kill it some time after it has written something new."""
    chance, path = random.Random(4), folder / output
    for number in range(kills):
        process = subprocess.Popen(
            command(folder, output, *more), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        before = path.stat().st_size if path.exists() else 0
        while process.poll() is None and (not path.exists() or path.stat().st_size == before):
            time.sleep(0.002)
        time.sleep(chance.uniform(0, 0.1))
        ended_by_itself = process.poll() is not None  # on a busy machine it may have done all of its rows by now
        process.kill()
        process.communicate(timeout=60)
        if ended_by_itself:
            return number
    return kills


def collected(folder: Path, output: str, *more: str) -> list[bytes]:
    """Run a collection to its end, which must be a good one."""
    done = subprocess.run(
        command(folder, output, *more), cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return comparable(folder / output)


def test_a_collector_killed_at_random_instants_loses_nothing_and_does_nothing_twice(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG)
    write_rows(tmp_path / "rows.jsonl", ROWS)
    assert kill_at_random_instants(tmp_path, "killed.jsonl", kills=KILLS) >= KILLS / 4
    records = collected(tmp_path, "killed.jsonl")
    assert len(records) == ROWS
    assert records == collected(tmp_path, "undisturbed.jsonl")


def test_a_run_that_was_killed_and_resumed_is_replayed_without_the_model(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG)
    write_rows(tmp_path / "rows.jsonl", 400)
    assert kill_at_random_instants(tmp_path, "recorded.jsonl", "+record=traffic", kills=5) >= 2
    records = collected(tmp_path, "recorded.jsonl", "+record=traffic")
    broken = agent_config("example_stateful_counter", latency_s=0.02, replies=[{"status": 500}])
    (tmp_path / "config.yaml").write_text(broken)
    assert len(records) == 400
    assert collected(tmp_path, "replayed.jsonl", "+replay=traffic") == records


def test_an_output_that_another_process_truncates_is_an_error_and_completed_later(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG)
    write_rows(tmp_path / "rows.jsonl", 400)
    output = tmp_path / "out.jsonl"
    with subprocess.Popen(command(tmp_path, "out.jsonl"), cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None and (not output.exists() or output.stat().st_size < 10_000):
            time.sleep(0.002)
        os.truncate(output, 1000)
        said = process.communicate(timeout=60)[1]
    assert process.returncode == 1
    assert "out.jsonl has 1000 bytes, expected" in said
    assert "Traceback" not in said
    assert len(collected(tmp_path, "out.jsonl")) == 400


def test_a_full_disk_stops_the_job_with_whole_records_and_it_goes_on_later(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG)
    write_rows(tmp_path / "rows.jsonl", 40)
    limited = ["bash", "-c", 'ulimit -f 32; exec "$@"', "bash", *command(tmp_path, "out.jsonl")]
    done = subprocess.run(limited, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1
    assert "out.jsonl: File too large" in done.stderr
    assert "run the same command again" in done.stderr
    assert "Traceback" not in done.stderr
    kept = (tmp_path / "out.jsonl").read_bytes()
    assert all(orjson.loads(line)["reward"] is not None for line in kept.splitlines())
    again = subprocess.run(
        command(tmp_path, "out.jsonl"), cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "out.jsonl").read_bytes().startswith(kept)
    assert len(comparable(tmp_path / "out.jsonl")) == 40


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_collector_says_so_and_keeps_what_it_has(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "config.yaml").write_text(agent_config("example_stateful_counter", latency_s=0.2, replies=REPLIES))
    write_rows(tmp_path / "rows.jsonl", ROWS)
    output = tmp_path / "out.jsonl"
    process = subprocess.Popen(
        command(tmp_path, "out.jsonl"), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    while process.poll() is None and (not output.exists() or not output.stat().st_size):
        time.sleep(0.01)
    process.send_signal(number)
    text, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Traceback" not in text
    assert comparable(output)


def test_a_changed_configuration_is_a_question_not_a_mix(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG)
    write_rows(tmp_path / "rows.jsonl", 3)

    def run(*more: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            command(tmp_path, "out.jsonl", *more),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    assert run().returncode == 0
    changed = "policy_model.responses_api_models.scripted_model.latency_s=0.01"
    asked = run(changed)
    assert asked.returncode == 2
    assert "latency_s: 0.02 before, 0.01 now" in asked.stderr
    assert "+resume=continue" in asked.stderr
    write_rows(tmp_path / "rows.jsonl", 4)
    assert run(changed, "+resume=continue").returncode == 0
    assert len(comparable(tmp_path / "out.jsonl")) == 4
    assert run("+resume=restart").returncode == 0
    assert len(list(tmp_path.glob("out*.jsonl"))) == 2
    assert len(comparable(tmp_path / "out.jsonl")) == 4


Talk = Callable[[asyncio.StreamWriter], Awaitable[None]]


def http(body: bytes, *, status: str = "200 OK", headers: bytes = b"") -> bytes:
    return b"HTTP/1.1 %s\r\ncontent-length: %d\r\n%s\r\n%s" % (status.encode(), len(body), headers, body)


async def good(writer: asyncio.StreamWriter) -> None:
    part = {"type": "output_text", "text": "Done.", "annotations": []}
    item = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [part]}
    writer.write(
        http(orjson.dumps({"id": "r", "created_at": 0, "model": "m", "object": "response", "output": [item]}))
    )


async def stall(_writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(600)


async def disconnect(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def too_many(writer: asyncio.StreamWriter) -> None:
    writer.write(http(b"{}", status="429 Too Many Requests", headers=b"retry-after: 0\r\n"))


async def broken(writer: asyncio.StreamWriter) -> None:
    writer.write(http(b"oh no", status="500 Internal Server Error"))


async def half(writer: asyncio.StreamWriter) -> None:
    writer.write(http(b"x" * 1000)[:-900])
    await writer.drain()
    writer.transport.abort()


async def no_json(writer: asyncio.StreamWriter) -> None:
    writer.write(http(b"<html>hello</html>"))


async def junk(writer: asyncio.StreamWriter) -> None:
    writer.write(http(os.urandom(10_000_000)))


@asynccontextmanager
async def endpoint_that(bad: Talk) -> AsyncIterator[str]:
    """An endpoint that answers well, except to requests that say 'bad'."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(re.search(rb"content-length: (\d+)", head, re.IGNORECASE)[1])  # type: ignore[index]
                body = await reader.readexactly(length)
                await (bad if b"bad" in body else good)(writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    finally:
        server.close()


def weather_servers(url: str, *, request_timeout_s: float = PATIENCE_S) -> list[ServerSpec]:
    model = {"openai_base_url": url, "openai_api_key": "key", "openai_model": "m"}
    limits: dict[str, Any] = {"max_tries": 2, "request_timeout_s": request_timeout_s}
    policy = server_spec("policy_model", "responses_api_models", "openai_model", **limits, **model)
    return [weather(), policy, simple_agent("weather")]


@pytest.mark.parametrize(
    ("bad", "cause"),
    [
        (stall, "timeout"),
        (disconnect, "model"),
        (too_many, "model"),
        (broken, "model"),
        (half, "model"),
        (no_json, "model"),
        (junk, "model"),
    ],
)
async def test_an_endpoint_that_misbehaves_costs_only_the_rows_it_misbehaves_on(
    tmp_path: Path, bad: Talk, cause: str
) -> None:
    rows = [example_row("bad" if number == 3 else "hello") for number in range(8)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = RolloutCollectionConfig(
        agent_name="agent",
        input_jsonl_fpath=str(tmp_path / "rows.jsonl"),
        output_jsonl_fpath=str(tmp_path / "out.jsonl"),
        max_attempts=2,
    )
    limit = {"request_timeout_s": 1.0} if bad is stall else {}
    async with endpoint_that(bad) as url, running_servers(weather_servers(url, **limit)) as client:
        metrics = await RolloutCollectionHelper().run_from_config(config, client=client)
    assert metrics.failed == {cause: 1}
    assert metrics.scored == 7
    attempts = rows_of(failures_path(tmp_path / "out.jsonl"))
    assert [(failure["_task_index"], failure["attempt"], failure["is_final"]) for failure in attempts] == [
        (3, 1, False),
        (3, 2, True),
    ]


async def test_a_killed_worker_costs_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text(agent_config("example_stateful_counter", latency_s=0.6, replies=REPLIES))
    write_rows(tmp_path / "rows.jsonl", 80)
    arguments = ["config_paths=[config.yaml]", "head_server={host: 127.0.0.1, port: 0}"]
    output = tmp_path / "out.jsonl"
    launcher = Launcher(load_config(arguments, use_dotenv=False, fill_ports=False), echo=print)
    config = RolloutCollectionConfig(
        agent_name="agent",
        input_jsonl_fpath="rows.jsonl",
        output_jsonl_fpath="out.jsonl",
        num_samples_in_parallel=40,
        max_attempts=4,
    )
    async with launcher, launcher.client() as client:
        collecting = asyncio.create_task(RolloutCollectionHelper().run_from_config(config, client=client))
        while not output.exists() or not output.stat().st_size:  # noqa: ASYNC110 - a file tells no event
            await asyncio.sleep(0.02)
        pid = launcher.running()[0].pid
        assert pid
        os.kill(pid, signal.SIGKILL)
        metrics = await collecting
    assert (metrics.scored, metrics.failed) == (80, {})
    failed = rows_of(tmp_path / "out_failures.jsonl")
    assert failed
    assert not any(failure["is_final"] for failure in failed)


def test_kills_of_collector_worker_and_isolated_environment_give_no_wrong_score(tmp_path: Path) -> None:
    kinds = ("collector", "worker", "isolated environment")
    options = Options(rows=200, seconds=0, min_kills=6, kill_every_s=0.5, fault_rate=0.0, kinds=kinds, seed=1)
    report = run_faults(tmp_path, options, check_memory=False)
    assert set(report.kills) == set(kinds)
    assert report.rows == 200 * report.rounds


async def test_one_poisoned_row_among_ten_thousand_harms_no_other(tmp_path: Path) -> None:
    row, poisoned = (
        json.dumps(example_row("hello")),
        json.dumps({"responses_create_params": {"input": {"not": "a list"}}}),
    )
    (tmp_path / "rows.jsonl").write_text((row + "\n") * 5000 + poisoned + "\n" + (row + "\n") * 4999)
    config = RolloutCollectionConfig(
        agent_name="agent",
        input_jsonl_fpath=str(tmp_path / "rows.jsonl"),
        output_jsonl_fpath=str(tmp_path / "out.jsonl"),
    )
    servers = [server for server in weather_servers("unused") if server.name != "policy_model"]
    servers.append(server_spec("policy_model", "responses_api_models", "scripted_model", replies=[{"say": "Hi."}]))
    async with running_servers(servers) as client:
        metrics = await RolloutCollectionHelper().run_from_config(config, client=client)
    assert (metrics.scored, metrics.failed) == (9999, {"input": 1})


def test_two_collectors_do_not_share_an_output(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.jsonl", 1)
    program = (
        "import sys, time; from pathlib import Path; from nemo_gym.rollouts.store import JsonlFile;"
        "f = JsonlFile(Path(sys.argv[1])); print('locked', flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "out.jsonl")], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == "locked\n"
        config = RolloutCollectionConfig(
            agent_name="a",
            input_jsonl_fpath=str(tmp_path / "rows.jsonl"),
            output_jsonl_fpath=str(tmp_path / "out.jsonl"),
        )
        try:
            with pytest.raises(ConfigError, match="Another process is writing"):
                asyncio.run(RolloutCollectionHelper().run_from_config(config))
        finally:
            holder.kill()
