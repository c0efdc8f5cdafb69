"""A model endpoint that dies in the middle of a collection: rows wait for it, and none is charged for it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.errors import SetupError
from nemo_gym.rollouts import attempts
from nemo_gym.rollouts.collector import RolloutCollectionHelper
from nemo_gym.rollouts.config import RolloutCollectionConfig
from nemo_gym.testing import ServerSpec, example_row, rows_of, running_servers, says, server_spec
from tests.commands import free_port
from tests.polling import PATIENCE_S, until
from tests.stacks import references, simple_agent, weather
from tests.stub_endpoint import Request, stub_endpoint

ROWS, IN_FLIGHT, DIES_AFTER, OUTAGE_S = 24, 8, 12, 2.0
AGENTS = ("first", "second")


class DyingEndpoint:
    """Answers some requests, then no more."""

    def __init__(self) -> None:
        self.asked, self.has_stopped = 0, asyncio.Event()

    async def reply(self, _request: Request) -> Any:
        self.asked += 1
        if self.asked <= DIES_AFTER:
            return says("Hi.")
        if self.asked == DIES_AFTER + IN_FLIGHT:
            self.has_stopped.set()
        return await asyncio.sleep(PATIENCE_S)


def job(folder: Path) -> RolloutCollectionConfig:
    (folder / "rows.jsonl").write_text((json.dumps(example_row("hello")) + "\n") * ROWS)
    return RolloutCollectionConfig(
        agent_name="agent",
        input_jsonl_fpath=str(folder / "rows.jsonl"),
        output_jsonl_fpath=str(folder / "out.jsonl"),
        num_samples_in_parallel=IN_FLIGHT,
        max_attempts=1,
    )


def model_at(port: int, name: str = "policy_model", **settings: Any) -> ServerSpec:
    model = {"openai_base_url": f"http://127.0.0.1:{port}/v1", "openai_api_key": "key", "openai_model": "m"}
    return server_spec(name, "responses_api_models", "openai_model", max_tries=2, **model, **settings)


def servers(port: int, **settings: Any) -> list[ServerSpec]:
    return [weather(), model_at(port, **settings), simple_agent("weather")]


def agent_at(name: str, port: int) -> list[ServerSpec]:
    model = f"{name}_model"
    agent = server_spec(name, "responses_api_agents", "simple_agent", **references("weather", model))
    return [model_at(port, model), agent]


async def test_an_endpoint_that_dies_and_comes_back_costs_no_attempt(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    port, dying = free_port(), DyingEndpoint()
    async with running_servers(servers(port)) as client:
        async with stub_endpoint(dying.reply, port=port):
            collecting = asyncio.create_task(RolloutCollectionHelper().run_from_config(job(tmp_path), client=client))
            await dying.has_stopped.wait()
        await asyncio.sleep(OUTAGE_S)
        async with stub_endpoint(lambda _: says("Hi."), port=port):
            metrics = await collecting
    assert (metrics.scored, metrics.failed) == (ROWS, {})
    assert not (tmp_path / "out_failures.jsonl").exists()
    said = [record.message for record in caplog.records if record.name == "nemo_gym.client.load_balancer"]
    assert [part in text for text, part in ((said[0], "paused"), (said[-1], "answers again"))] == [True, True]
    assert all(str(port) in text for text in said)


async def test_an_endpoint_that_does_not_come_back_ends_the_job_with_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "MAX_OUTAGE_S", 0.5)
    port, dying = free_port(), DyingEndpoint()
    async with running_servers(servers(port, max_outage_s=1.0)) as client:
        async with stub_endpoint(dying.reply, port=port):
            collecting = asyncio.create_task(RolloutCollectionHelper().run_from_config(job(tmp_path), client=client))
            await dying.has_stopped.wait()
        with pytest.raises(SetupError, match=rf"127.0.0.1:{port}.*policy_base_url"):
            await collecting
    assert len(rows_of(tmp_path / "out.jsonl")) == DIES_AFTER


async def test_rows_wait_for_an_endpoint_that_their_own_process_never_reached(tmp_path: Path) -> None:
    """As in a worker that was started while the endpoint is down. Here it is another endpoint."""
    ports, rows = [free_port(), free_port()], [{**example_row(), "agent_ref": {"name": name}} for name in AGENTS]
    config = job(tmp_path).model_copy(update={"agent_name": None, "num_samples_in_parallel": 1})
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    started = [weather(), *(each for name, port in zip(AGENTS, ports, strict=True) for each in agent_at(name, port))]
    scored = asyncio.Event()
    async with running_servers(started) as client, stub_endpoint(lambda _: says("Hi."), port=ports[0]):
        run = RolloutCollectionHelper().run_from_config(config, client=client, report=lambda _: scored.set())
        collecting = asyncio.create_task(run)
        await scored.wait()
        await until((tmp_path / "out_failures.jsonl").exists)
        async with stub_endpoint(lambda _: says("Hi."), port=ports[1]):
            metrics = await collecting
    assert (metrics.scored, metrics.failed) == (2, {})
