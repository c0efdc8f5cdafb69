"""Real harnesses from PyPI, unmodified, as the shipped configs run them."""

import importlib.util
from pathlib import Path
from typing import Any

import orjson
import pytest

from nemo_gym import ServerReply
from nemo_gym.sandbox import create_provider
from nemo_gym.testing import ServerSpec, example_row, rows_of, running_servers, server_spec, servers_of
from tests.token_items import generations, is_one_sequence

CONFIGS = "responses_api_agents/command_agent/configs"
COUNTER = "resources_servers/example_stateful_counter"
SERVERS = Path("tests/servers").absolute()
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"

pytestmark = pytest.mark.slow


def agent(config: str, name: str, **settings: Any) -> ServerSpec:
    """The agent of a shipped config, in the environment `environment`."""
    given = {"resources_server": {"name": "environment"}, **settings}
    paths = [f"{CONFIGS}/{config}", f"{COUNTER}/configs/stateful_counter.yaml"]
    model = "responses_api_models/scripted_model/configs/scripted_model.yaml"
    block = {name: {"responses_api_agents": {"command_agent": given}}}
    environment = {
        "environment": {"resources_servers": {"example_stateful_counter": {"entrypoint": "app.py", "domain": "agent"}}}
    }
    held = servers_of(*paths, model, **block, **environment)
    return next(server for server in held if server.name == name)


def model(*replies: dict[str, Any]) -> ServerSpec:
    folder = SERVERS / "responses_api_models/token_model"
    return server_spec("policy_model", "responses_api_models", "token_model", folder=folder, replies=list(replies))


async def play(servers: list[ServerSpec], row: dict[str, Any]) -> dict[str, Any]:
    async with running_servers(servers) as client:
        reply = await client.call(servers[0].name, "/run", row, answer=ServerReply)
    record: dict[str, Any] = orjson.loads(reply.content())
    return record


def needs(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")


async def test_openai_agents_uses_the_tools_of_the_environment() -> None:
    needs("agents")
    replies: list[dict[str, Any]] = [
        {"turn": 0, "call": [{"name": "increment_counter", "arguments": {"count": 3}}]},
        {"turn": 1, "call": [{"name": "increment_counter", "arguments": {"count": 4}}]},
        {"say": "The counter says 9."},
    ]
    counter = server_spec("environment", "resources_servers", "example_stateful_counter", domain="agent")
    servers = [agent("openai_agents.yaml", "openai_agents"), counter, model(*replies)]
    record = await play(servers, rows_of(f"{COUNTER}/data/example.jsonl")[0])
    assert (record["reward"], record["response"]["harness"]["stdout"]) == (1.0, "The counter says 9.\n")
    calls = generations(record["response"]["output"])
    assert len(calls) == 3
    assert is_one_sequence(calls)


@pytest.mark.parametrize(("answer", "reward"), [("42", 1.0), ("41", 0.0)])
async def test_mini_swe_agent_works_in_a_sandbox(answer: str, reward: float) -> None:
    needs("minisweagent")
    if create_provider({"auto": {}}).name != "bubblewrap":
        pytest.skip("bubblewrap does not work here")
    replies: list[dict[str, Any]] = [
        {"turn": 0, "say": "I look.", "call": [{"name": "bash", "arguments": {"command": "cat task.txt"}}]},
        {"turn": 1, "call": [{"name": "bash", "arguments": {"command": f"echo {answer} > answer.txt"}}]},
        {"call": [{"name": "bash", "arguments": {"command": SUBMIT}}]},
    ]
    folder = SERVERS / "resources_servers/written_file"
    environment = server_spec("environment", "resources_servers", "written_file", folder=folder, domain="agent")
    command = agent("mini_swe_agent_command.yaml", "mini_swe_agent_command", keep_files=["answer.txt"])
    row = example_row("Read task.txt and write the answer to answer.txt.", files={"task.txt": "6 x 7"}, expected="42")
    record = await play([command, environment, model(*replies)], row)
    assert record["reward"] == reward
    outputs = [item["output"] for item in record["response"]["output"] if item["type"] == "function_call_output"]
    assert "6 x 7" in outputs[0]
    calls = generations(record["response"]["output"])
    assert len(calls) == 3
    assert is_one_sequence(calls)
