"""A collection under a low limit of open files does all of its rows, with fewer of them in flight."""

import asyncio
import json
import re
import resource
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import orjson
import pytest
from aiohttp import web

from nemo_gym.common.descriptors import limit_to_descriptors
from nemo_gym.testing import example_row, rows_of, says
from tests.commands import BIN
from tests.stacks import agent_config

LIMIT = 256
ROWS = 400
SEVERAL = 10


@dataclass
class Endpoint:
    url: str = ""
    in_flight: int = 0
    most_in_flight: int = 0
    is_busy: asyncio.Event = field(default_factory=asyncio.Event)


@asynccontextmanager
async def slow_endpoint() -> AsyncIterator["Endpoint"]:
    """Slow enough that a thousand requests in flight would be a thousand connections; no reply before several wait."""
    endpoint = Endpoint()

    async def reply(_request: web.Request) -> web.Response:
        endpoint.in_flight += 1
        endpoint.most_in_flight = max(endpoint.most_in_flight, endpoint.in_flight)
        if endpoint.in_flight > SEVERAL:
            endpoint.is_busy.set()
        await endpoint.is_busy.wait()
        await asyncio.sleep(0.2)
        endpoint.in_flight -= 1
        return web.Response(body=orjson.dumps(says("Hello.")), content_type="application/json")

    app = web.Application()
    app.router.add_post("/v1/responses", reply)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        endpoint.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        yield endpoint
    finally:
        await runner.cleanup()


def collect(folder: Path, *options: str, limit: int = LIMIT) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [
            str(BIN / "ng_collect_rollouts"),
            "+config_paths=[config.yaml]",
            "+agent_name=agent",
            "+input_jsonl_fpath=rows.jsonl",
            "+output_jsonl_fpath=out.jsonl",
            "+num_samples_in_parallel=1000",
            "+head_server.port=1",
            *options,
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)),
    )


async def test_a_small_job_is_not_warned_of_a_low_limit(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text((json.dumps(example_row("hello")) + "\n") * 2)
    (tmp_path / "config.yaml").write_text(agent_config("example_simple_weather", replies=[{"say": "Hello."}]))
    done = await asyncio.to_thread(collect, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "rollouts in flight instead of" not in done.stderr


async def test_a_low_limit_of_open_files_costs_no_row(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text((json.dumps(example_row("hello")) + "\n") * (ROWS - 1) + '{"bad": 1}\n')
    async with slow_endpoint() as endpoint:
        model = {"openai_base_url": endpoint.url, "openai_api_key": "key", "openai_model": "m"}
        config = agent_config("example_simple_weather", model="openai_model", **model)
        (tmp_path / "config.yaml").write_text(config)
        done = await asyncio.to_thread(collect, tmp_path)
    assert done.returncode == 1, done.stderr  # the bad row
    assert len((tmp_path / "out.jsonl").read_bytes().splitlines()) == ROWS - 1
    failures = rows_of(tmp_path / "out_failures.jsonl")
    assert [(failure["_task_index"], failure["cause"]) for failure in failures] == [(ROWS - 1, "input")]
    warning = re.search(
        rf"At most (\d+) rollouts in flight instead of {ROWS}: this process may open {LIMIT} files", done.stderr
    )
    assert warning
    assert SEVERAL < endpoint.most_in_flight <= int(warning[1]) < LIMIT


async def test_workers_with_very_few_open_files_still_report_their_metrics(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text((json.dumps(example_row("hello")) + "\n") * 40)
    async with slow_endpoint() as endpoint:
        endpoint.is_busy.set()
        model = {"openai_base_url": endpoint.url, "openai_api_key": "key", "openai_model": "m"}
        (tmp_path / "config.yaml").write_text(agent_config("example_simple_weather", model="openai_model", **model))
        done = await asyncio.to_thread(collect, tmp_path, "+num_workers=2", limit=64)
    assert done.returncode == 0, done.stderr
    assert "connections are open" not in done.stderr
    assert "not computed" not in done.stderr


def test_a_limit_that_allows_all_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    assert limit_to_descriptors(3, per_rollout=2) == 3
    assert not caplog.records
    assert 1 <= limit_to_descriptors(10**9, per_rollout=2) < 10**9
    assert "ulimit" in caplog.text
