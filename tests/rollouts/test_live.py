"""A collection can be watched while it runs, and one of its rollouts cancelled, by its own user alone."""

import asyncio
import os
import socket
from pathlib import Path
from typing import Any

import orjson
import pytest

from nemo_gym.client.server_client import ServerClient
from nemo_gym.common.metrics import Family, encode_families
from nemo_gym.config.types import BaseServerConfig
from nemo_gym.errors import GymError
from nemo_gym.rollouts.collector import RolloutCollectionHelper
from nemo_gym.rollouts.config import RolloutCollectionConfig
from nemo_gym.rollouts.live import live_folder, server_metrics
from nemo_gym.testing import example_row, rows_of, running_servers
from nemo_gym.viewer.server import LiveRun, cancel_rollout, find_runs, statuses
from tests.jsonl import write_lines
from tests.polling import until
from tests.stacks import counter, scripted_servers


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEMO_GYM_CACHE_DIR", str(tmp_path / "cache"))


def servers() -> list[Any]:
    script = [{"user": "never", "latency_s": 600, "say": "late"}, {"user": "fail", "status": 400}, {"say": "Done."}]
    return scripted_servers(counter(), script)


def config_for(tmp_path: Path, prompts: list[str]) -> RolloutCollectionConfig:
    rows = [example_row(prompt, initial_count=0, expected_count=0) for prompt in prompts]
    paths = {
        "input_jsonl_fpath": write_lines(tmp_path / "rows.jsonl", rows),
        "output_jsonl_fpath": tmp_path / "o.jsonl",
    }
    return RolloutCollectionConfig.model_validate(
        {"agent_name": "agent", "max_attempts": 1, **{name: str(path) for name, path in paths.items()}}
    )


async def only_run() -> LiveRun:
    await until(find_runs)
    return find_runs()[0]


async def status_when(run: LiveRun, **expected: Any) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while True:
            found = await run.status()
            if found is not None and all(found[name] == value for name, value in expected.items()):
                return found
            await asyncio.sleep(0.02)


async def test_a_run_reports_what_is_in_flight_and_where(tmp_path: Path) -> None:
    config = config_for(tmp_path, ["hello", "never", "fail", "never"])
    async with running_servers(servers()) as client:
        running = asyncio.create_task(RolloutCollectionHelper().run_from_config(config, client=client))
        run = await only_run()
        found = await status_when(run, in_flight=2, scored=1, failed={"model": 1})
        assert await statuses([run])
        for rollout in found["rollouts"]:
            assert await cancel_rollout([run], orjson.dumps({"run": run.id, "number": rollout["number"]})) == {
                "cancelled": True
            }
        metrics = await running
    assert (found["total"], found["mean_reward"], found["output"]) == (4, 1.0, config.output_jsonl_fpath)
    stages = [(each["task_index"], each["stage"], each["server"], each["path"]) for each in found["rollouts"]]
    assert stages == [(1, "model", "policy_model", "/v1/responses"), (3, "model", "policy_model", "/v1/responses")]
    assert all(0 <= each["stage_seconds"] <= each["seconds"] for each in found["rollouts"])
    assert found["stages"]["model"]["in_flight"] == 2
    assert found["workers"][0]["rollouts"] == 2
    assert metrics.failed == {"model": 1, "timeout": 2}
    failures = rows_of(tmp_path / "o_failures.jsonl")
    cancelled = {each["_task_index"]: each["code"] for each in failures if each["cause"] == "timeout"}
    assert cancelled == {1: "cancelled", 3: "cancelled"}
    assert list(live_folder().iterdir()) == []
    assert await run.status() is None


async def test_a_cancelled_rollout_is_made_when_the_collection_runs_again(tmp_path: Path) -> None:
    config = config_for(tmp_path, ["never"])
    async with running_servers(servers()) as client:
        running = asyncio.create_task(RolloutCollectionHelper().run_from_config(config, client=client))
        run = await only_run()
        found = await status_when(run, in_flight=1)
        assert await run.cancel(found["rollouts"][0]["number"])
        assert not await run.cancel(999)
        await running
        again = asyncio.create_task(RolloutCollectionHelper().run_from_config(config, client=client))
        run = await only_run()
        await status_when(run, in_flight=1)
        again.cancel()
        with pytest.raises(asyncio.CancelledError):
            await again


async def test_interrupting_the_collection_is_not_cancelling_a_rollout(tmp_path: Path) -> None:
    config = config_for(tmp_path, ["never"])
    async with running_servers(servers()) as client:
        running = asyncio.create_task(RolloutCollectionHelper().run_from_config(config, client=client))
        run = await only_run()
        await status_when(run, in_flight=1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert not (tmp_path / "o_failures.jsonl").exists()


async def test_nobody_can_ask_without_the_token_of_the_private_file(tmp_path: Path) -> None:
    config = config_for(tmp_path, ["never"])
    async with running_servers(servers()) as client:
        running = asyncio.create_task(RolloutCollectionHelper().run_from_config(config, client=client))
        run = await only_run()
        port = orjson.loads(run.place.read_bytes())["port"]
        replies = [await raw(port, line) for line in (b'{"token":"x"}\n', b"{}\n", b"GET / HTTP/1.1\r\n\r\n", b"[]\n")]
        assert await status_when(run, in_flight=1)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    wrong = b'{"error":"The token is wrong."}'
    assert replies == [wrong, wrong, b"", wrong]
    assert (run.place.parent.stat().st_mode & 0o777) == 0o700


async def raw(port: int, line: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(line)
    reply = await reader.read()
    writer.close()
    return reply


def test_what_a_killed_collector_has_left_is_removed() -> None:
    live_folder().mkdir(parents=True)
    left = live_folder() / "999999999-1.json"
    left.write_text('{"pid": 999999999, "port": 1, "token": "x"}')
    (live_folder() / "broken.json").write_text("{")
    assert find_runs() == []
    assert not left.exists()


async def test_a_collection_that_does_not_answer_has_not_ended() -> None:
    live_folder().mkdir(parents=True)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = {"pid": os.getpid(), "port": silent.getsockname()[1], "token": "x"}
        (live_folder() / "silent.json").write_bytes(orjson.dumps(address))
        with pytest.raises(GymError, match="did not answer"):
            await cancel_rollout(find_runs(), b'{"run": "silent", "number": 1}')
    assert await cancel_rollout(find_runs(), b'{"run": "silent", "number": 1}') == {"cancelled": False}


@pytest.mark.parametrize(("status", "is_read"), [(b"200 OK", True), (b"503 Busy", False)])
async def test_metrics_of_a_running_ng_run_are_those_of_its_head_server(status: bytes, is_read: bool) -> None:
    families = [Family("nemo_gym_worker_up", "gauge", "1 if the worker answered.")]
    families[0].add(1, worker="0")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = encode_families(families)
        length = b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        writer.write(b"HTTP/1.1 " + status + b"\r\n" + length + body)
        writer.close()

    head = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with head:
        port = head.sockets[0].getsockname()[1]
        async with ServerClient(head_server_config=BaseServerConfig(host="127.0.0.1", port=port)) as client:
            assert await server_metrics(client) == (families if is_read else [])


async def test_without_servers_and_with_a_silent_head_there_are_no_metrics() -> None:
    async with ServerClient(head_server_config=BaseServerConfig(host="127.0.0.1", port=1)) as client:
        assert await server_metrics(client) == []
    async with ServerClient() as client:
        assert await server_metrics(client) == []
