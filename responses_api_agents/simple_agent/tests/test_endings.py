"""How a conversation ends when the model does not end it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from nemo_gym.client.server_client import base_url
from nemo_gym.errors import RolloutError
from nemo_gym.rollouts.collector import RolloutCollectionHelper
from nemo_gym.rollouts.config import RolloutCollectionConfig
from nemo_gym.testing import ServerSpec, Stack, StackSpec, example_row, running_servers, says
from tests.stacks import counter, scripted_servers, simple_agent

TOOL = {"type": "function", "name": "increment_counter"}


def servers(**config: Any) -> list[ServerSpec]:
    """An agent, a counter, and a model that calls the counter's tool for ever."""
    forever = [{"call": [{"name": "increment_counter", "arguments": {"count": 1}}]}]
    return scripted_servers(counter(), forever, **config)


@pytest.mark.parametrize(("config", "steps"), [({"max_steps": 3}, 3), ({}, 200)])
async def test_endless_tool_calling_is_scored_as_it_stands_at_the_first_attempt(
    tmp_path: Path, config: dict[str, Any], steps: int
) -> None:
    row = example_row("Count.", initial_count=0, expected_count=steps)
    row["responses_create_params"]["tools"] = [TOOL]
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    job = RolloutCollectionConfig(
        agent_name="agent",
        input_jsonl_fpath=str(tmp_path / "rows.jsonl"),
        output_jsonl_fpath=str(tmp_path / "out.jsonl"),
    )
    async with running_servers(servers(**config)) as client:
        await RolloutCollectionHelper().run_from_config(job, client=client)
    record = orjson.loads((tmp_path / "out.jsonl").read_bytes())
    assert (record["reward"], record["_attempts"]) == (1.0, 1)
    assert [item["type"] for item in record["response"]["output"]] == ["function_call", "function_call_output"] * steps


@asynccontextmanager
async def replying(reply: dict[str, Any]) -> AsyncIterator[str]:
    """A server that gives this reply to every request."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = orjson.dumps(reply)
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield base_url("127.0.0.1", server.sockets[0].getsockname()[1])


DIED = {"code": "server_error", "message": "GPU died"}


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"status": "queued"}, "queued"),
        ({"status": "in_progress"}, "in_progress"),
        ({"status": "failed"}, "failed"),
        ({"status": "cancelled"}, "cancelled"),
        ({"status": None, "error": DIED}, "failed"),
        ({"status": "completed", "error": DIED}, "failed"),
        ({"status": "incomplete", "output": []}, "failed"),
        ({"status": "incomplete", "incomplete_details": {"reason": "server_error"}}, "failed"),
    ],
)
async def test_a_reply_that_is_not_an_answer_is_no_result_of_the_model(fields: dict[str, Any], code: str) -> None:
    async with replying({**says("Half an ans"), **fields}) as url:
        spec = StackSpec([counter(), simple_agent("counter")], addresses={"policy_model": url})
        async with Stack(spec) as stack:
            with pytest.raises(RolloutError, match=f"status '{fields['status']}'") as caught:
                await stack.client.call("agent", "/run", example_row(initial_count=0, expected_count=0), answer=dict)
    assert (caught.value.cause, caught.value.retryable, caught.value.code) == ("model", True, code)
