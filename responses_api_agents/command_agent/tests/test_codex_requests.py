"""Requests of the shape that the Codex CLI (0.169) sends, in a loop like its own: event streams, `client_metadata`,
tools in namespaces, of free text and of the service."""

import json
from typing import Any

import pytest

from nemo_gym import ServerReply
from nemo_gym.testing import ServerSpec, running_servers, server_spec
from responses_api_agents.command_agent.tests.test_app import ROW
from tests.stub_endpoint import Request, completion, stub_endpoint

HARNESS = """
import json, os, urllib.error, urllib.request

SCHEMA = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
def function(name):
    return {"type": "function", "name": name, "description": "", "strict": False, "parameters": SCHEMA}
TOOLS = [
    function("exec_command"),
    {"type": "namespace", "name": "multi_agent_v1", "description": "Agents.", "tools": [function("wait_agent")]},
    {"type": "custom", "name": "apply_patch", "description": "A patch.", "format": {"type": "text"}},
    {"type": "web_search", "external_web_access": False},
]
BASE = os.environ["OPENAI_BASE_URL"]

def post(path, body):
    headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
    return urllib.request.urlopen(urllib.request.Request(BASE + path, json.dumps(body).encode(), headers)).read()

def turn(items):
    body = {"model": "policy", "instructions": "You are a coding agent.", "input": items, "tools": TOOLS,
            "tool_choice": "auto", "parallel_tool_calls": False, "reasoning": None, "store": False, "stream": True,
            "include": [], "prompt_cache_key": "k", "client_metadata": {"x-codex-installation-id": "i"}}
    events = [json.loads(line[6:]) for line in post("/responses", body).decode().splitlines()
              if line.startswith("data: {")]
    assert events[-1]["type"] == "response.completed", events[-1]
    return [event["item"] for event in events if event["type"] == "response.output_item.done"]

for path in ("/embeddings", "/responses/input_tokens"):
    try:
        post(path, {"model": "policy", "input": "Hi."})
    except urllib.error.HTTPError as error:
        print(error.code, json.loads(error.read())["error"]["type"])
items = [{"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Rules."}]},
         {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Do it."}]}]
while True:
    made = turn(items)
    calls = [item for item in made if item["type"] != "message"]
    for item in made:
        item.pop("id", None)
        items.append(item)
    for call in calls:
        print(call["type"], call.get("namespace"), call["name"], call.get("input"))
        items.append({"type": call["type"] + "_output", "call_id": call["call_id"], "output": "done"})
    if not calls:
        break
"""
CALLS = [("exec_command", {}), ("multi_agent_v1__wait_agent", {}), ("apply_patch", {"input": "*** Begin"})]


def endpoint(request: Request) -> Any:
    """Call each of the tools, then end."""
    turn = sum(message["role"] == "tool" for message in request.body["messages"])
    if turn == len(CALLS):
        return completion("Done.")
    name, arguments = CALLS[turn]
    call = {"id": f"c{turn}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
    return completion({"role": "assistant", "content": None, "tool_calls": [call]}, finish_reason="tool_calls")


def servers(url: str) -> list[ServerSpec]:
    refs: dict[str, Any] = {
        "resources_server": {"type": "resources_servers", "name": "environment"},
        "model_server": {"type": "responses_api_models", "name": "policy_model"},
    }
    command: dict[str, Any] = {
        "command": ["python3", "harness.py"],
        "files": {"harness.py": HARNESS},
        "sandbox_provider": None,
    }
    model: dict[str, Any] = {"base_url": url, "api_key": "k", "model": "m", "return_token_id_information": False}
    return [
        server_spec("agent", "responses_api_agents", "command_agent", **refs, **command),
        server_spec("environment", "resources_servers", "example_stateful_counter", domain="agent"),
        server_spec("policy_model", "responses_api_models", "vllm_model", uses_reasoning_parser=False, **model),
    ]


async def test_the_loop_of_codex_plays_with_a_chat_endpoint(caplog: pytest.LogCaptureFixture) -> None:
    async with stub_endpoint(endpoint) as stub, running_servers(servers(stub.url)) as client:
        reply = await client.call("agent", "/run", ROW, answer=ServerReply)
    record = json.loads(reply.content())
    assert record["response"]["harness"]["stdout"].splitlines() == [
        "404 not_found_error",
        "404 not_found_error",
        "function_call None exec_command None",
        "function_call multi_agent_v1 wait_agent None",
        "custom_tool_call None apply_patch *** Begin",
    ]
    offered = [[tool["function"]["name"] for tool in request.body["tools"]] for request in stub.requests]
    assert offered == [["exec_command", "multi_agent_v1__wait_agent", "apply_patch"]] * 4
    made = [(item["type"], item["produced_by"], item["thread"]) for item in record["response"]["output"]]
    pairs = [
        (kind, by, 0) for kind in ("function_call",) * 2 for kind, by in ((kind, "policy"), (f"{kind}_output", "tool"))
    ]
    custom = [("custom_tool_call", "policy", 0), ("custom_tool_call_output", "tool", 0)]
    assert made == [*pairs, *custom, ("message", "policy", 0)]
    assert record["response"]["model_calls"] == 4
