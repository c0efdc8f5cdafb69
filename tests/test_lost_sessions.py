"""A session that died with its process is never replaced by an empty one: the rollout is made again, uncharged."""

import asyncio
import contextlib
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.config.loading import load_config
from nemo_gym.rollouts.collector import RolloutCollectionHelper
from nemo_gym.rollouts.config import RolloutCollectionConfig
from nemo_gym.runtime.launcher import Launcher
from nemo_gym.testing import calls, example_row, response_of, rows_of, says
from tests.polling import PATIENCE_S
from tests.stacks import agent_config
from tests.stub_endpoint import Request, stub_endpoint

ROWS = 12
KILLED_ROWS, IN_PARALLEL, KILLS = 120, 64, 10
COUNTER = "example_stateful_counter"


class ThinkingModel:
    """Calls the tool, thinks until it is told to go on, calls the tool again, and answers."""

    def __init__(self) -> None:
        self.may_go_on = asyncio.Event()
        self.thinking = 0

    async def reply(self, request: Request) -> Any:
        outputs = sum(item.get("type") == "function_call_output" for item in request.body["input"])
        if outputs == 1:
            self.thinking += 1
            await self.may_go_on.wait()
        add = calls("increment_counter", '{"count": 2}', call_id=f"call_{outputs}")
        return says("Done.") if outputs == 2 else response_of(add)


def row(number: int) -> dict[str, Any]:
    """Right are five and two times two, in two rows of three."""
    found = example_row("Add two, twice.", initial_count=5, expected_count=9 if number % 3 else 5)
    found["responses_create_params"]["tools"] = [{"type": "function", "name": "increment_counter", "parameters": {}}]
    return found


def pid_of(launcher: Launcher, server: str) -> int | None:
    return next(instance.pid for instance in launcher.running() if instance.process_name == server)


@pytest.mark.parametrize("agent", ["simple_agent", "legacy_agent"])
async def test_an_environment_killed_while_the_model_thinks_gives_no_wrong_reward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, agent: str
) -> None:
    monkeypatch.chdir(Path(__file__).parent / "servers")
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row(number)) + "\n" for number in range(ROWS)))
    model, output = ThinkingModel(), tmp_path / "out.jsonl"
    job = RolloutCollectionConfig(
        agent_name="agent",
        input_jsonl_fpath=str(tmp_path / "rows.jsonl"),
        output_jsonl_fpath=str(output),
        num_samples_in_parallel=ROWS,
        max_attempts=1,
    )
    async with stub_endpoint(model.reply) as endpoint, asyncio.timeout(120):
        settings = {"openai_base_url": endpoint.url, "openai_api_key": "key", "openai_model": "m"}
        config = agent_config(COUNTER, model="openai_model", agent=agent, isolation="process", **settings)
        (tmp_path / "config.yaml").write_text(config)
        arguments = [f"config_paths=[{tmp_path}/config.yaml]", "head_server={host: 127.0.0.1, port: 0}"]
        launcher = Launcher(load_config(arguments, use_dotenv=False, fill_ports=False), echo=print)
        async with launcher, launcher.client() as client:
            collecting = asyncio.create_task(RolloutCollectionHelper().run_from_config(job, client=client))
            while model.thinking < ROWS:  # noqa: ASYNC110 - counted by the endpoint
                await asyncio.sleep(0.02)
            killed = pid_of(launcher, COUNTER)
            assert killed
            os.kill(killed, signal.SIGKILL)
            while pid_of(launcher, COUNTER) in (killed, None):  # noqa: ASYNC110 - a process tells no event
                await asyncio.sleep(0.02)
            assert (await client.get(COUNTER, "/health")).status == 200
            model.may_go_on.set()
            metrics = await collecting
    assert (metrics.scored, metrics.failed) == (ROWS, {})
    records = rows_of(output)
    assert {record["_task_index"]: record["reward"] for record in records} == {
        number: float(number % 3 > 0) for number in range(ROWS)
    }
    failures = rows_of(tmp_path / "out_failures.jsonl")
    assert {(each["cause"], each["code"], each["attempt"]) for each in failures} == {
        ("environment", "process_lost", 1)
    }
    assert all("its worker was restarted" in failure["message"] for failure in failures)
    assert len(failures) == ROWS


async def test_an_isolated_environment_killed_again_and_again_costs_no_row_an_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parent / "servers")
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row(number)) + "\n" for number in range(KILLED_ROWS)))
    job = RolloutCollectionConfig(
        agent_name="agent",
        input_jsonl_fpath=str(tmp_path / "rows.jsonl"),
        output_jsonl_fpath=str(tmp_path / "out.jsonl"),
        num_samples_in_parallel=IN_PARALLEL,
        max_attempts=1,
    )
    asked = 0

    async def reply(request: Request) -> Any:
        nonlocal asked
        asked += 1
        outputs = sum(item.get("type") == "function_call_output" for item in request.body["input"])
        await asyncio.sleep(0.2)
        add = calls("increment_counter", '{"count": 2}', call_id=f"call_{outputs}")
        return says("Done.") if outputs == 2 else response_of(add)

    async with stub_endpoint(reply) as endpoint, asyncio.timeout(PATIENCE_S):
        settings = {"openai_base_url": endpoint.url, "openai_api_key": "key", "openai_model": "m"}
        (tmp_path / "config.yaml").write_text(
            agent_config(COUNTER, model="openai_model", isolation="process", **settings)
        )
        arguments = [f"config_paths=[{tmp_path}/config.yaml]", "head_server={host: 127.0.0.1, port: 0}"]
        launcher = Launcher(load_config(arguments, use_dotenv=False, fill_ports=False), echo=print)
        async with launcher, launcher.client() as client:
            collecting = asyncio.create_task(RolloutCollectionHelper().run_from_config(job, client=client))
            for _ in range(KILLS):
                before = asked
                while not (collecting.done() or (asked > before and pid_of(launcher, COUNTER))):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
                with contextlib.suppress(ProcessLookupError):  # it has just ended
                    os.kill(pid_of(launcher, COUNTER) or os.getpid(), 0 if collecting.done() else signal.SIGKILL)
            metrics = await collecting
    assert (metrics.scored, metrics.failed) == (KILLED_ROWS, {})
    assert all(record["reward"] == float(record["_task_index"] % 3 > 0) for record in rows_of(tmp_path / "out.jsonl"))
    failures = rows_of(tmp_path / "out_failures.jsonl")
    assert {(failure["code"], failure["is_final"]) for failure in failures} == {("process_lost", False)}
