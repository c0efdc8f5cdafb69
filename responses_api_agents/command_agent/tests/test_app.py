"""Harnesses that we did not write: their model calls become the trace, their failures have a cause."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import psutil
import pytest

from nemo_gym import ServerReply
from nemo_gym.errors import ConfigError, RolloutError
from nemo_gym.testing import (
    TRANSPORTS,
    ServerSpec,
    Transport,
    example_row,
    response_of,
    rows_of,
    running_servers,
    server_spec,
)
from nemo_gym.training import samples_of
from tests.polling import until
from tests.stub_endpoint import completion, stub_endpoint
from tests.token_items import generations, is_one_sequence

ROW = rows_of("resources_servers/example_stateful_counter/data/example.jsonl")[0]
SERVERS = Path("tests/servers").absolute()
LINUX_ONLY = pytest.mark.skipif(sys.platform != "linux", reason="subreapers and bubblewrap")
INCREMENT = {"name": "increment_counter", "arguments": {"count": 3}}

LIBRARY = """
import json, os, sys, urllib.error, urllib.request

def post(url, body):
    headers = {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as reply:
        return json.loads(reply.read())

def ask(messages, **more):
    body = {"model": os.environ["NEMO_GYM_MODEL"], "messages": messages, **more}
    return post(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body)["choices"][0]["message"]

def call_tool(name, arguments):
    params = {"name": name, "arguments": arguments}
    request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    return post(os.environ["NEMO_GYM_MCP_URL"], request)["result"]["content"][0]["text"]

def play(messages):
    while True:
        said = ask(messages)
        messages.append(said)
        if not said.get("tool_calls"):
            return said["content"]
        for call in said["tool_calls"]:
            output = call_tool(call["function"]["name"], json.loads(call["function"]["arguments"]))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": output})
"""
LOOP = "print(play([{'role': 'system', 'content': 'Count.'}, {'role': 'user', 'content': sys.argv[1]}]))"
REPLIES: list[dict[str, Any]] = [
    {"turn": 0, "call": [INCREMENT]},
    {"turn": 1, "call": [{"name": "increment_counter", "arguments": {"count": 4}}]},
    {"turn": 2, "say": "It is 9."},
]


def servers(
    script: str, *replies: dict[str, Any], environment: str = "example_stateful_counter", **config: Any
) -> list[ServerSpec]:
    folder = SERVERS / "resources_servers" / environment
    own = {"folder": folder} if folder.is_dir() else {}
    settings: dict[str, Any] = {
        "resources_server": {"type": "resources_servers", "name": "environment"},
        "model_server": {"type": "responses_api_models", "name": "policy_model"},
        "command": ["python3", "harness.py", "{prompt}"],
        "files": {"harness.py": LIBRARY + script},
        "sandbox_provider": None,
        **config,
    }
    model = SERVERS / "responses_api_models/token_model"
    return [
        server_spec("agent", "responses_api_agents", "command_agent", **settings),
        server_spec("environment", "resources_servers", environment, domain="agent", **own),
        server_spec(
            "policy_model", "responses_api_models", "token_model", folder=model, replies=list(replies or REPLIES)
        ),
    ]


async def play(
    servers: list[ServerSpec], row: dict[str, Any] = ROW, *, transport: Transport = "direct"
) -> dict[str, Any]:
    async with running_servers(servers, transport=transport) as client:
        reply = await client.call("agent", "/run", row, answer=ServerReply)
    record: dict[str, Any] = orjson.loads(reply.content())
    return record


def outline(record: dict[str, Any]) -> list[tuple[str, int, str]]:
    return [(item["produced_by"], item["thread"], item["type"]) for item in record["response"]["output"]]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_the_calls_of_a_harness_are_the_trace_of_the_rollout(transport: Transport) -> None:
    record = await play(servers(LOOP), transport=transport)
    response, params = record["response"], record["response"]["harness"]["request"]
    assert record["reward"] == 1.0
    assert outline(record) == [
        ("policy", 0, "function_call"),
        ("tool", 0, "function_call_output"),
        ("policy", 0, "function_call"),
        ("tool", 0, "function_call_output"),
        ("policy", 0, "message"),
    ]
    calls = generations(response["output"])
    assert [call.text for call in calls] == [
        'increment_counter({"count":3})<end>',
        'increment_counter({"count":4})<end>',
        "It is 9.<end>",
    ]
    assert is_one_sequence(calls)
    assert [item["content"] for item in params["input"]] == [
        "Count.",
        ROW["responses_create_params"]["input"][0]["content"],
    ]
    assert calls[0].prompt.startswith("<system>Count.<end><user>Add 3")
    assert (response["model_calls"], response["ended_by"], response["usage"]["output_tokens"]) == (3, "harness", 3)
    harness = response["harness"]
    assert (harness["return_code"], harness["stdout"], harness["stderr"]) == (0, "It is 9.\n", "")
    assert [(call["name"], call["arguments"]) for call in harness["tool_calls"]] == [
        ("increment_counter", '{"count":3}'),
        ("increment_counter", '{"count":4}'),
    ]


RESPONSES = """
items = [{"role": "user", "content": sys.argv[1]}]
while True:
    body = {"model": "m", "instructions": "Count.", "input": items}
    reply = post(os.environ["OPENAI_BASE_URL"] + "/responses", body)
    items += reply["output"]
    calls = [item for item in reply["output"] if item["type"] == "function_call"]
    if not calls:
        break
    for call in calls:
        output = call_tool(call["name"], json.loads(call["arguments"]))
        items.append({"type": "function_call_output", "call_id": call["call_id"], "output": output})
"""
MESSAGES = """
messages = [{"role": "user", "content": sys.argv[1]}]
while True:
    body = {"model": "m", "max_tokens": 100, "system": "Count.", "messages": messages}
    reply = post(os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages", body)
    messages.append({"role": "assistant", "content": reply["content"]})
    calls = [block for block in reply["content"] if block["type"] == "tool_use"]
    if not calls:
        break
    outputs = [(call["id"], call_tool(call["name"], call["input"])) for call in calls]
    content = [{"type": "tool_result", "tool_use_id": name, "content": output} for name, output in outputs]
    messages.append({"role": "user", "content": content})
"""


@pytest.mark.parametrize("script", [RESPONSES, MESSAGES], ids=["responses", "messages"])
async def test_other_apis_give_the_same_trace(script: str) -> None:
    record = await play(servers(script))
    kinds = [kind for _, _, kind in outline(record)]
    assert kinds == ["function_call", "function_call_output"] * 2 + ["message"]
    assert record["reward"] == 1.0
    assert record["response"]["harness"]["request"]["input"][0]["content"] == "Count."
    calls = generations(record["response"]["output"])
    assert len(calls) == 3
    assert is_one_sequence(calls)


async def test_a_stream_is_given_and_recorded_whole() -> None:
    script = """
body = {"messages": [{"role": "user", "content": "Hi"}], "stream": True}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
print(urllib.request.urlopen(request).read().decode())
"""
    record = await play(servers(script, {"say": "Hello there."}))
    assert "data: [DONE]" in record["response"]["harness"]["stdout"]
    assert "token_ids" not in record["response"]["harness"]["stdout"]
    assert [call.text for call in generations(record["response"]["output"])] == ["Hello there.<end>"]


async def test_sub_agents_and_compaction_start_threads_of_their_own() -> None:
    script = """
main = [{"role": "user", "content": "Main."}]
main.append(ask(main))
helper = [{"role": "system", "content": "Sub-agent."}, {"role": "user", "content": "Help."}]
helper.append(ask(helper))
main.append({"role": "user", "content": helper[-1]["content"]})
main.append(ask(main))
helper.append({"role": "user", "content": "More."})
ask(helper)
ask([{"role": "user", "content": "Summary: all is well."}])
"""
    record = await play(servers(script, {"say": "Yes."}))
    assert [(who, thread) for who, thread, _ in outline(record)] == [
        ("policy", 0),
        *[("harness", 1), ("harness", 1), ("policy", 1)],
        *[("harness", 0), ("policy", 0)],
        *[("harness", 1), ("policy", 1)],
        *[("harness", 2), ("policy", 2)],
    ]
    assert [len(sample.tokens.policy_versions) for sample in samples_of(record)] == [2, 2, 1]
    items = record["response"]["output"]
    for thread in range(3):
        assert is_one_sequence(generations(item for item in items if item["thread"] == thread))


async def test_the_harness_sees_no_tokens() -> None:
    script = "print(ask([{'role': 'user', 'content': 'Hi'}]))"
    record = await play(servers(script, {"say": "Yes."}))
    assert "token_ids" not in record["response"]["harness"]["stdout"]


async def test_sampling_parameters_of_the_row_win_and_the_harness_sees_no_variables_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MY_SECRET_KEY", "hunter2hunter2")
    script = """
reply = post(os.environ["OPENAI_BASE_URL"] + "/responses", {"input": "Hi", "temperature": 0.1})
print(reply["temperature"], sorted(os.environ), os.getcwd(), sep="|")
"""
    row = {**ROW, "responses_create_params": {**ROW["responses_create_params"], "temperature": 0.75}}
    harness = (await play(servers(script, {"say": "Yes."}, env={"MINE": "{model}"}), row))["response"]["harness"]
    temperature, names, folder = harness["stdout"].strip().split("|")
    assert temperature == "0.75"
    assert "MY_SECRET_KEY" not in names
    assert "MINE" in names
    assert Path(folder).name not in os.listdir(Path(folder).parent)


async def test_files_go_in_and_come_out(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    script = f"""
ask([{{"role": "user", "content": open("notes/task.txt").read()}}])
open("answer.txt", "w").write("42")
os.symlink("{tmp_path}/secret.txt", "link.txt")
"""
    row = {**ROW, "files": {"notes/task.txt": "What is 6 x 7? {model}"}, "expected": "42"}
    kept = ["answer.txt", "link.txt", "missing.txt"]
    record = await play(servers(script, {"say": "42"}, environment="written_file", keep_files=kept), row)
    assert (record["reward"], record["response"]["harness"]["files"]) == (1.0, {"answer.txt": "42"})
    assert record["response"]["harness"]["request"]["input"][0]["content"] == "What is 6 x 7? {model}"


@pytest.mark.parametrize("path", ["../out.txt", "/etc/passwd", "", "a/../../b"])
async def test_a_row_cannot_write_elsewhere(path: str) -> None:
    with pytest.raises(RolloutError, match="inside the workspace") as caught:
        await play(servers(LOOP), {**ROW, "files": {path: "x"}})
    assert (caught.value.cause, caught.value.retryable) == ("input", False)


@pytest.mark.parametrize("prompt", ["a\0b", "x" * 200_000], ids=["null", "long"])
async def test_a_prompt_that_is_no_argument_is_an_input_error_but_may_be_a_file(prompt: str) -> None:
    row = {**ROW, "responses_create_params": {**ROW["responses_create_params"], "input": prompt}}
    with pytest.raises(RolloutError, match="prompt_file") as caught:
        await play(servers(LOOP), row)
    assert caught.value.cause == "input"
    script = "text = open(sys.argv[1]).read(); ask([{'role': 'user', 'content': 'Hi'}]); print(len(text))"
    record = await play(servers(script, {"say": "Hm."}, command=["python3", "harness.py", "{prompt_file}"]), row)
    assert record["response"]["harness"]["stdout"] == f"{len(prompt)}\n"


@pytest.mark.parametrize(
    ("script", "config", "cause", "message"),
    [
        ("", {"command": ["no-such-program"]}, "environment", "Cannot run no-such-program"),
        ("sys.exit('Bad luck.')", {}, "environment", "code 1 and never called the model: Bad luck."),
        ("import time; time.sleep(600)", {"command_timeout_s": 0.5}, "timeout", "did not end within 0.5 s"),
    ],
)
async def test_a_harness_that_fails_before_it_asks_is_no_result(
    script: str, config: dict[str, Any], cause: str, message: str
) -> None:
    with pytest.raises(RolloutError, match=message) as caught:
        await play(servers(script, **config))
    assert caught.value.cause == cause


async def test_a_harness_that_crashes_after_it_asked_is_scored_as_it_stands() -> None:
    record = await play(servers("ask([{'role': 'user', 'content': 'Hi'}]); sys.exit(3)", {"say": "Hm."}))
    assert (record["reward"], record["response"]["harness"]["return_code"]) == (0.0, 3)


@pytest.mark.parametrize(
    ("name", "cause"), [("SIGKILL", "environment"), ("SIGTERM", "environment"), ("SIGSEGV", None)]
)
async def test_a_harness_that_is_killed_is_no_result_and_one_that_crashes_is_scored(
    name: str, cause: str | None
) -> None:
    script = f"ask([{{'role': 'user', 'content': 'Hi'}}]); os.kill(os.getpid(), __import__('signal').{name})"
    if cause is None:
        assert (await play(servers(script, {"say": "Hm."})))["reward"] == 0.0
        return
    with pytest.raises(RolloutError, match=name) as caught:
        await play(servers(script, {"say": "Hm."}))
    assert (caught.value.cause, caught.value.retryable) == (cause, True)


FORGED = {
    "prompt_token_ids": [7, 7],
    "generation_token_ids": [8, 8],
    "generation_log_probs": [-0.1, -0.1],
    "policy_version": 9,
}
FORGERIES = {
    "responses": """
message = {"type": "message", "id": "m", "role": "assistant", "status": "completed",
           "content": [{"type": "output_text", "text": "Forged", "annotations": []}], **FORGED}
call = {"type": "function_call", "id": "f", "call_id": "c", "name": "n", "arguments": "{}", **FORGED}
thought = {"type": "reasoning", "id": "r", "summary": [], **FORGED}
for items in ([message], [message, call], [thought, message]):
    user = [{"role": "user", "content": "Hi"}]
    body = json.dumps({"input": [*user, *items, *user]}).replace("prompt_token", "prompt\\u005ftoken")
    post(os.environ["OPENAI_BASE_URL"] + "/responses", {**json.loads(body), **FORGED})
    send(os.environ["OPENAI_BASE_URL"] + "/responses", body)
""",
    "chat": """
for name in ("content", "reasoning_content"):
    message = {"role": "assistant", "content": "Forged", name: "Forged", **FORGED}
    ask([{"role": "user", "content": "Hi"}, message, {"role": "user", "content": "Go on"}])
""",
    "messages": """
use = {"type": "tool_use", "id": "t", "name": "x", "input": {}, **FORGED}
result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "o", **FORGED}], **FORGED}
thought = {"type": "thinking", "thinking": "Forged", "signature": "s", **FORGED}
said = {"type": "text", "text": "Forged", **FORGED}
for blocks, answer in (([said], said), ([use], result), ([thought, said], said)):
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": blocks, **FORGED},
                {"role": "user", "content": [answer], **FORGED}]
    body = {"model": "policy", "max_tokens": 9, "messages": messages, "system": [said], **FORGED}
    post(os.environ["OPENAI_BASE_URL"] + "/messages", body)
""",
    "top level": """
post(os.environ["OPENAI_BASE_URL"] + "/responses", {"input": "Forged", **FORGED})
post(os.environ["OPENAI_BASE_URL"] + "/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], **FORGED})
""",
}


@pytest.mark.parametrize("api", FORGERIES)
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_tokens_that_a_harness_forges_are_not_trained_on(api: str, transport: Transport) -> None:
    send = """
def send(url, body):
    request = urllib.request.Request(url, body.encode(), {"Content-Type": "application/json"})
    return json.loads(urllib.request.urlopen(request).read())
"""
    script = f"FORGED = {FORGED}\n{send}{FORGERIES[api]}ask([{{'role': 'user', 'content': 'Hi'}}])"
    record = await play(servers(script, {"say": "Hm."}), transport=transport)
    items = [*record["response"]["output"], *record["response"]["harness"]["request"]["input"]]
    assert any("Forged" in str(item) for item in items)
    assert not any(8 in item.get("generation_token_ids", ()) or item.get("policy_version") == 9 for item in items)
    assert sum("generation_token_ids" in item for item in items) == record["response"]["model_calls"]
    assert all(8 not in sample.tokens.ids for sample in samples_of(record))


async def test_what_is_sampled_under_a_constraint_is_no_sample_and_a_harness_cannot_steer_sampling() -> None:
    script = """
user = {"role": "user", "content": "Hi"}
ask([user], guided_choice=["I solved it"], logit_bias={"5": 100}, chat_template="x", prompt_token_ids=[1])
ask([user], response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": {"const": "I solved it"}}})
post(os.environ["OPENAI_BASE_URL"] + "/responses", {"input": "Hi", "tool_choice": "required"})
grammar = {"type": "grammar", "syntax": "regex", "definition": "I solved it"}
tools = [{"type": "custom", "name": "t", "format": grammar}]
post(os.environ["OPENAI_BASE_URL"] + "/responses", {"input": "Hi", "tools": tools})
"""
    record = await play(servers(script, {"say": "Hm."}))
    assert record["response"]["model_calls"] == 4
    own = [item for item in record["response"]["output"] if item["produced_by"] == "policy"]
    assert ["generation_token_ids" in item for item in own] == [True, False, False, False]
    assert len(list(samples_of(record))) == 1


async def test_only_known_parameters_of_a_harness_reach_the_endpoint() -> None:
    script = """
STEER = {"logit_bias": {"5": 100}, "guided_choice": ["B"], "prompt_token_ids": [1], "chat_template": "x"}
more = {"metadata": {"extra_body": json.dumps(STEER), "chat_template_kwargs": "{}"}, "extra_body": STEER, **STEER}
url = os.environ["OPENAI_BASE_URL"]
ask([{"role": "user", "content": "Hi"}], **more)
post(url + "/responses", {"input": "Hi", **more})
post(url + "/messages", {"model": "policy", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}], **more})
"""
    async with stub_endpoint(lambda _: completion()) as stub:
        endpoint: dict[str, Any] = {"base_url": stub.url, "api_key": "none", "model": "m"}
        options: dict[str, Any] = {"return_token_id_information": False, "uses_reasoning_parser": False}
        *others, _ = servers(script)
        model = server_spec("policy_model", "responses_api_models", "vllm_model", **endpoint, **options)
        record = await play([*others, model])
    assert record["response"]["model_calls"] == len(stub.requests) == 3
    assert {name for request in stub.requests for name in request.body} == {"messages", "model", "max_tokens"}


def calls(name: str, arguments: object, output: str) -> str:
    """Messages of a harness with a call that the model never made, and an output of its own."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    made = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "1", "type": "function", "function": function}],
    }
    return repr([made, {"role": "tool", "tool_call_id": "1", "content": output}])


def forged(environment: str) -> tuple[dict[str, Any], list[str]]:
    """An example row, and scripts of harnesses that write what would solve it."""
    row = next(iter(rows_of(f"resources_servers/{environment}/data/example.jsonl")))
    chat, responses = "ask([USER, SAID, *{}])", 'post(os.environ["OPENAI_BASE_URL"] + "/responses", {{"input": {}}})'
    if environment == "math_advanced_calculations":
        numbers = json.loads(row["ground_truth"])
        made = "[*" + ", *".join(calls("add", {}, json.dumps({"solution": number})) for number in numbers) + "]"
        return row, [chat.format(made)]
    if environment == "workplace_assistant":
        (truth,) = row["ground_truth"]
        made = calls(truth["name"], json.loads(truth["arguments"]), "ok")
        item = {"type": "function_call", "call_id": "1", **truth}
        given = [item, {"type": "function_call_output", "call_id": "1", "output": "ok"}]
        return row, [chat.format(made), "BEFORE" + responses.format([{"role": "user", "content": "Hi"}, *given])]
    if environment == "example_multi_step":
        values = {"synonym_values": row["expected_synonym_values"]}
        return row, [chat.format(calls("extract_synonym_values", values, "ok"))]
    text = f"\\boxed{{{row['expected_answer']}}}"
    part = {"type": "output_text", "text": text, "annotations": []}
    message = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [part]}
    return row, [
        responses.format(f"[USER, {message}, USER]"),
        chat.format([{"role": "assistant", "content": text}, {"role": "user", "content": "Thanks"}]),
    ]


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize(
    "environment", ["math_advanced_calculations", "workplace_assistant", "example_multi_step", "mcqa"]
)
async def test_what_a_harness_writes_in_the_name_of_the_model_is_not_rewarded(environment: str, number: int) -> None:
    row, scripts = forged(environment)
    script = scripts[number % len(scripts)]
    first = "USER = {'role': 'user', 'content': 'Hi'}\nSAID = ask([USER])\n"
    script = script.removeprefix("BEFORE") + "\n" if script.startswith("BEFORE") else first + script
    record = await play(servers(script, {"say": "Hm."}, environment=environment), row)
    assert record["reward"] == 0.0
    given, asked = (each["responses_create_params"]["input"] for each in (record, row))
    assert [item["content"] for item in given] == [item["content"] for item in asked]
    own = [item for item in record["response"]["output"] if item["produced_by"] == "policy"]
    assert {item["type"] for item in own} == {"message"}


async def test_tool_calls_that_a_client_gives_up_are_in_the_record() -> None:
    script = """
ask([{"role": "user", "content": "Book 1."}])
params = {"name": "book", "arguments": {"amount": 1, "seconds": 1.0}}
request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
headers = {"Content-Type": "application/json"}
sent = urllib.request.Request(os.environ["NEMO_GYM_MCP_URL"], json.dumps(request).encode(), headers)
for _ in range(2):
    try:
        urllib.request.urlopen(sent, timeout=0.5)
    except TimeoutError:
        pass
call_tool("book", {"amount": 1, "seconds": 0.0})
"""
    asked = servers(script, {"say": "Done."}, environment="slow_ledger")
    record = await play(asked, example_row(expected_balance=1))
    assert [each["output"] is None for each in record["response"]["harness"]["tool_calls"]] == [True, True, False]


DIED = {"garbage": orjson.dumps(response_of(error={"code": "server_error", "message": "GPU died"})).decode()}


@pytest.mark.parametrize(("script", "reply"), [(LOOP, {"status": 500}), (RESPONSES, DIED), (MESSAGES, DIED)])
async def test_a_model_that_fails_is_no_result_of_the_model(script: str, reply: dict[str, Any]) -> None:
    with pytest.raises(RolloutError) as caught:
        await play(servers(script, {"turn": 0, "call": [INCREMENT]}, reply))
    assert (caught.value.cause, caught.value.server) == ("model", "policy_model")


async def test_a_harness_that_tries_again_and_succeeds_is_scored() -> None:
    script = """
try:
    ask([{"role": "user", "content": "Hi"}])
except urllib.error.HTTPError as error:
    print(error.code, json.loads(error.read())["error"]["message"])
ask([{"role": "user", "content": "Hi"}])
"""
    record = await play(servers(script, {"status": 500, "times": 1}, {"say": "Hm."}))
    assert record["response"]["harness"]["stdout"].startswith("502")
    assert record["response"]["model_calls"] == 1


INVALID_REQUESTS = {
    "chat": 'ask([{"role": "wizard", "content": 3}])',
    "chat, a parameter": 'ask([{"role": "user", "content": "Hi"}], temperature="hot")',
    "responses": """
part = {"type": "output_text", "text": 5}
post(os.environ["OPENAI_BASE_URL"] + "/responses", {"input": [{"role": "assistant", "content": [part]}]})
""",
}


@pytest.mark.parametrize("request_of_harness", INVALID_REQUESTS.values(), ids=list(INVALID_REQUESTS))
async def test_a_request_that_is_invalid_voids_no_rollout(request_of_harness: str) -> None:
    asked = 'ask([{"role": "user", "content": "Hi"}])\n'
    record = await play(servers(asked + request_of_harness, {"say": "Hm."}))
    assert (record["reward"], record["response"]["model_calls"]) == (0.0, 1)
    assert "HTTP Error 4" in record["response"]["harness"]["stderr"]
    with pytest.raises(RolloutError) as refused:  # a harness whose only request is refused was set up wrongly
        await play(servers(request_of_harness, {"say": "Hm."}))
    assert refused.value.cause == "model"


async def test_after_max_steps_the_model_does_not_answer() -> None:
    record = await play(servers(LOOP, {"call": [INCREMENT]}, max_steps=2))
    assert (record["response"]["model_calls"], record["response"]["ended_by"]) == (2, "max_steps")
    assert "HTTP Error 4" in record["response"]["harness"]["stderr"]


async def test_only_the_tools_of_the_row_can_be_called() -> None:
    script = """
ask([{"role": "user", "content": "Hi"}])
for name in ("verify", "seed_session", "get_counter_value", "../verify"):
    params = {"name": name, "arguments": {}}
    request = {"id": 1, "method": "tools/call", "params": params}
    print(post(os.environ["NEMO_GYM_MCP_URL"], request)["error"]["message"])
"""
    params = {**ROW["responses_create_params"], "tools": ROW["responses_create_params"]["tools"][:1]}
    record = await play(servers(script, {"say": "Hm."}), {**ROW, "responses_create_params": params})
    refused = record["response"]["harness"]["stdout"].splitlines()
    assert [line.endswith("Tools: increment_counter.") for line in refused] == [True] * 4


async def test_a_path_ends_with_its_rollout_and_no_other_path_answers() -> None:
    script = "ask([{'role': 'user', 'content': 'Hi'}]); print(os.environ['OPENAI_BASE_URL'])"
    async with running_servers(servers(script, {"say": "Hm."})) as client:
        reply = await client.call("agent", "/run", ROW, answer=ServerReply)
        url = orjson.loads(reply.content())["response"]["harness"]["stdout"].strip()
        root = url.rsplit("/", 2)[0]
        for dead in (url, f"{root}/v1", f"{root}//v1"):
            body = b'{"messages":[{"role":"user","content":"Hi"}]}'
            answer = await client.http.fetch("POST", f"{dead}/chat/completions", body=body, timeout_s=30)
            assert answer.status == 404


@pytest.mark.parametrize("leaves_session", [False, pytest.param(True, marks=LINUX_ONLY)])
async def test_a_cancelled_rollout_ends_the_harness_and_its_children(leaves_session: bool) -> None:
    script = f"""
import subprocess, time
child = [sys.executable, "-c", "import time; time.sleep(600)"]
subprocess.Popen(child, start_new_session={leaves_session})
ask([{{"role": "user", "content": "Started."}}])
time.sleep(600)
"""
    async with running_servers(servers(script, {"say": "Hm."})) as client:
        running = asyncio.create_task(client.call("agent", "/run", ROW, answer=ServerReply))

        def children() -> list[psutil.Process]:
            return [process for process in psutil.Process().children(recursive=True) if is_sleeping(process)]

        await until(lambda: len(children()) == 1)
        (child,) = children()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


def is_sleeping(process: psutil.Process) -> bool:
    try:
        return "sleep(600)" in " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # it has ended, or is about to be waited for
        return False


@LINUX_ONLY
async def test_what_a_harness_leaves_running_ends_with_it() -> None:
    script = """
import time
ask([{"role": "user", "content": "Hi"}])
reading, writing = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(writing, str(os.getpid()).encode())
        time.sleep(600)
    os._exit(0)
print(os.read(reading, 20).decode())
sys.exit(3)
"""
    harness = (await play(servers(script, {"say": "Hm."})))["response"]["harness"]
    assert harness["return_code"] == 3
    assert not psutil.pid_exists(int(harness["stdout"]))


@LINUX_ONLY
def test_a_harness_ends_with_the_process_that_runs_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pid")
    code = f"""
import asyncio
from pathlib import Path
from responses_api_agents.command_agent.commands import LocalWorkspace
command = ["sh", "-c", "echo $$ > pid; exec sleep 600"]
asyncio.run(LocalWorkspace(Path({str(tmp_path)!r}), 0).run(command, {{}}, timeout_s=600, keep=[]))
"""
    with subprocess.Popen([sys.executable, "-c", code]) as runner:
        harness = psutil.Process(int((tmp_path / "pid").read_text()))
        runner.kill()
    harness.wait(timeout=30)


@pytest.mark.slow
@LINUX_ONLY
async def test_in_a_sandbox_there_is_the_gateway_and_nothing_else() -> None:
    script = f"""
import socket
{LOOP}
for target in (("127.0.0.1", int(sys.argv[2])), ("8.8.8.8", 53)):
    try:
        socket.create_connection(target, timeout=2)
        print("reached", target)
    except OSError as error:
        print("refused")
print(os.path.exists({str(Path(__file__))!r}), os.getcwd())
open("answer.txt", "w").write("42")
"""
    from nemo_gym.sandbox import create_provider

    if create_provider({"auto": {}}).name != "bubblewrap":
        pytest.skip("bubblewrap does not work here")
    with_port: dict[str, Any] = {
        "command": ["python3", "harness.py", "{prompt}", "22"],
        "keep_files": ["answer.txt", "no.txt"],
    }
    record = await play(servers(script, sandbox_provider={"auto": {}}, **with_port))
    harness = record["response"]["harness"]
    assert harness["stdout"].splitlines() == ["It is 9.", "refused", "refused", "False /work"]
    assert (record["reward"], harness["files"], harness["return_code"]) == (1.0, {"answer.txt": "42"}, 0)
    assert is_one_sequence(generations(record["response"]["output"]))


async def test_a_config_must_say_whether_there_is_a_sandbox() -> None:
    unsaid = servers(LOOP)
    del unsaid[0].config["sandbox_provider"]
    with pytest.raises(ConfigError, match="sandbox_provider"):
        await play(unsaid)


async def test_a_sandbox_that_cannot_reach_the_model_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match="bubblewrap only"):
        await play(servers(LOOP, sandbox_provider={"unconfined": {}}))
