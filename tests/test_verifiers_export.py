"""Our environments as environments of verifiers: the rewards are those of our own agent."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.testing import client_for
from tests.interop import play_all
from tests.servers.responses_api_models.choosing_model.app import ChoosingModel

vf: Any = pytest.importorskip(
    "verifiers.v1", reason="verifiers is not in this interpreter; tests/test_isolated_folders.py has one with it"
)

CONFIG = "resources_servers/example_stateful_counter/configs/stateful_counter.yaml"
ADD = [json.dumps({"name": "increment_counter", "arguments": {"count": count}}) for count in (1, 2)]
CHOICES = [*ADD, *ADD, json.dumps({"name": "get_counter_value", "arguments": {}}), "Done.", "Done."]
ROLLOUTS = 8
MODULE = """
import json
from typing import Any

import httpx
import verifiers.v1 as vf
from mcp import Client

from nemo_gym.interop.verifiers_env import verifiers_environment

CounterTaskset, CounterEnv = verifiers_environment({config!r}, rows_path={rows!r})
__all__ = ["CounterTaskset", "CounterEnv", "ToolHarness"]


class ToolHarness(vf.Harness[vf.HarnessConfig]):
    APPENDS_SYSTEM_PROMPT = SUPPORTS_MCP = True
    EXECUTES_CODE = NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        messages: list[dict[str, Any]] = [{{"role": each.role, "content": each.content}} for each in data.prompt]
        (url,) = mcp_urls.values()
        headers = {{"Authorization": f"Bearer {{secret}}"}}
        async with httpx.AsyncClient(headers=headers, timeout=60) as http, Client(url) as mcp:
            assert len((await mcp.list_tools()).tools) == 2
            while True:
                body = {{"model": ctx.model, "messages": messages}}
                reply = (await http.post(f"{{endpoint}}/chat/completions", json=body)).raise_for_status()
                messages.append(reply.json()["choices"][0]["message"])
                if not messages[-1].get("tool_calls"):
                    return vf.ProgramResult(exit_code=0, stdout="", stderr="")
                for call in messages[-1]["tool_calls"]:
                    function = call["function"]
                    result = await mcp.call_tool(function["name"], json.loads(function["arguments"]))
                    told = result.content[0].text
                    messages.append({{"role": "tool", "tool_call_id": call["id"], "content": told}})
"""


def rows() -> list[dict[str, Any]]:
    params = [{"input": [{"role": "user", "content": f"{number}: count to 3."}]} for number in range(ROLLOUTS)]
    return [{"responses_create_params": each, "initial_count": 0, "expected_count": 3} for each in params]


async def test_rewards_are_those_of_our_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows()))
    (tmp_path / "counter_export.py").write_text(MODULE.format(config=CONFIG, rows=str(tmp_path / "rows.jsonl")))
    monkeypatch.syspath_prepend(str(tmp_path))
    config = {"taskset": {"id": "counter_export"}, "agent": {"runtime": {"type": "subprocess"}}}
    env = vf.load_environment(vf.resolve_env_config(config))
    async with client_for(ChoosingModel, choices=CHOICES) as model, env.serving():
        client = vf.EvalClientConfig(base_url=f"{model.url}/v1", api_key_var="NO_KEY")
        context = vf.ModelContext("any", client)
        episodes = await asyncio.gather(*(env.run_episode(task, context) for task in env.taskset))
    assert all(episode.ok for episode in episodes), episodes[0].errors or episodes[0].traces[0].errors
    rewards = [episode.traces[0].reward for episode in episodes]
    results = await play_all(CONFIG, "stateful_counter_simple_agent", rows(), choices=CHOICES)
    assert rewards == [result["reward"] for result in results]
    assert set(rewards) == {0.0, 1.0}


def test_a_row_that_cannot_be_played_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps(rows()[0]) + '\n{"prompt": "Hi."}\n')
    code = MODULE.format(config=CONFIG, rows=str(tmp_path / "rows.jsonl"))
    (tmp_path / "invalid_export.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    env = vf.load_environment(vf.resolve_env_config({"taskset": {"id": "invalid_export"}}))
    with pytest.raises(ConfigError, match=r"Row 1 .*\n.*responses_create_params"):
        list(env.taskset)
    asyncio.run(env.stop())
