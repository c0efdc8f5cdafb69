import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nemo_gym import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming, ServerClient
from nemo_gym.base_responses_api_agent import Conversation
from nemo_gym.client.server_client import base_url
from nemo_gym.errors import ProcessLostError
from nemo_gym.rollouts.types import FAILURE_FIELDS
from nemo_gym.testing import (
    TRANSPORTS,
    Stack,
    StackSpec,
    Transport,
    example_row,
    response_of,
    running_servers,
    says,
    server_spec,
)
from tests.stacks import simple_agent

Replies = list[dict[str, Any]]

AWKWARD = Path(__file__).parent / "resources_servers/awkward"
OFFERED = [
    {"type": "function", "name": name} for name in ("note", "meet", "crash", "hang", "tell_strangely", "missing")
]
ASK: dict[str, Any] = {"input": "Hello there.", "tools": OFFERED}
NOT_TOOLS = ["verify", "seed_session", "run", "health", "session"]
PATH_TRICKS = ["../verify", "/verify", "note/../verify", "note?x=1", "note#x", "%76erify", "v1/responses", "note ", ""]


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> Transport:
    chosen: Transport = request.param
    return chosen


@asynccontextmanager
async def stack(transport: Transport, *replies: dict[str, Any], **config: Any) -> AsyncIterator[ServerClient]:
    """An agent with a model that follows this script, in an awkward environment."""
    servers = [
        server_spec("policy_model", "responses_api_models", "scripted_model", replies=list(replies)),
        server_spec("environment", "resources_servers", "awkward", folder=AWKWARD),
        simple_agent("environment", **config),
    ]
    async with running_servers(servers, transport=transport) as client:
        yield client


def call(tool: str, /, **arguments: Any) -> dict[str, Any]:
    """A tool call in a script."""
    return {"name": tool, "arguments": arguments}


async def ask(client: ServerClient, **fields: Any) -> dict[str, Any]:
    answer = await client.post("agent", "/v1/responses", json={**ASK, **fields})
    assert answer.status == 200, await answer.text()
    response: dict[str, Any] = await answer.json()
    return response


async def run(client: ServerClient, **fields: Any) -> tuple[int, dict[str, Any]]:
    row = example_row(**fields)
    row["responses_create_params"]["tools"] = OFFERED
    answer = await client.post("agent", "/run", json=row)
    return answer.status, await answer.json()


async def open_visits(client: ServerClient) -> int:
    """How many rollouts still have state in the environment."""
    return int((await client.send("environment", "/count_open_visits")).text)


async def until_open_visits_are(client: ServerClient, count: int) -> None:
    async with asyncio.timeout(60):
        while await open_visits(client) != count:  # noqa: ASYNC110 - the environment tells of no event
            await asyncio.sleep(0.01)


def kinds(response: dict[str, Any]) -> list[str]:
    return [item["type"] for item in response["output"]]


def outputs(response: dict[str, Any]) -> list[str]:
    """What the tools answered."""
    return [item["output"] for item in response["output"] if item["type"] == "function_call_output"]


def last_text(response: dict[str, Any]) -> str:
    text: str = response["output"][-1]["content"][0]["text"]
    return text


async def test_a_model_that_just_answers_is_asked_once(transport: Transport) -> None:
    async with stack(transport, {"say": "Hello yourself."}) as client:
        response = await ask(client)
    assert kinds(response) == ["message"]
    assert last_text(response) == "Hello yourself."


async def test_the_output_is_all_that_came_after_the_input(transport: Transport) -> None:
    script: Replies = [
        {"user": "^Hello there.$", "turn": 0, "think": "A note first.", "call": [call("note", text="one")]},
        {"tool_output": r'^\["one"\]$', "say": "And one more.", "call": [call("note", text="two")]},
        {"tool_output": "two", "say": "Noted."},
    ]
    async with stack(transport, *script) as client:
        response = await ask(client, temperature=0.5)
    called = ["function_call", "function_call_output"]
    assert kinds(response) == ["reasoning", *called, "message", *called, "message"]
    assert outputs(response) == ['["one"]', '["one","two"]']
    calls = {item["call_id"] for item in response["output"] if item["type"] == "function_call"}
    assert calls == {item["call_id"] for item in response["output"] if item["type"] == "function_call_output"}
    assert (response["temperature"], response["tools"][0]["name"]) == (0.5, "note")


@pytest.mark.parametrize(
    ("name", "arguments", "result"),
    [
        ("note", "no JSON", '"type":"json_invalid"'),
        ("note", "[]", '"detail":['),
        ("note", "{}", '"msg":"Field required"'),
        ("note", '{"text": 7}', '"detail":['),
        ("note", "\x00\ufffd", '"type":"json_invalid"'),
        ("crash", "{}", "RuntimeError('the tool broke')"),
        ("tell_strangely", "{}", "complex has no JSON form"),
        ("missing", "{}", '{"detail":"Not Found"}'),
        (
            "unheard_of",
            "{}",
            "There is no tool 'unheard_of'. Tools: crash, hang, meet, missing, note, tell_strangely.",
        ),
    ],
)
async def test_what_a_tool_objects_to_goes_back_to_the_model(
    transport: Transport, name: str, arguments: str, result: str
) -> None:
    script: Replies = [
        {"turn": 0, "call": [{"name": name, "arguments": arguments}]},
        {"tool_output": ".", "say": "I see."},
    ]
    async with stack(transport, *script) as client:
        response = await ask(client)
    assert kinds(response) == ["function_call", "function_call_output", "message"]
    assert result in outputs(response)[0]


async def test_a_tool_that_crashes_does_not_lose_the_session(transport: Transport) -> None:
    script: Replies = [
        {"turn": 0, "call": [call("note", text="before")]},
        {"turn": 1, "call": [call("crash")]},
        {"turn": 2, "call": [{"name": "note", "arguments": "no JSON"}]},
        {"turn": 3, "call": [call("note", text="after")]},
        {"say": "Done."},
    ]
    async with stack(transport, *script) as client:
        status, scored = await run(client)
    assert (status, scored["notes"]) == (200, ["seeded", "before", "after"])


@pytest.mark.parametrize("name", [*NOT_TOOLS, *PATH_TRICKS])
async def test_only_tools_can_be_called_even_if_the_row_offers_more(transport: Transport, name: str) -> None:
    script: Replies = [{"turn": 0, "call": [{"name": name, "arguments": "{}"}]}, {"say": "I see."}]
    async with stack(transport, *script) as client:
        response = await ask(client, tools=[*OFFERED, {"type": "function", "name": name}])
    result = json.loads(outputs(response)[0])["error"]
    assert result.startswith(f"There is no tool '{name}'.")
    assert not any(listed in NOT_TOOLS for listed in result.rpartition(": ")[2].strip(".").split(", "))


async def test_a_row_without_tools_has_no_tools(transport: Transport) -> None:
    async with stack(transport, {"turn": 0, "call": [call("note", text="one")]}, {"say": "I see."}) as client:
        response = await ask(client, tools=[])
    assert outputs(response) == ["""{"error":"There is no tool 'note'. Tools: none."}"""]


@pytest.mark.parametrize("silent", [{"think": "Hm."}, {}])
async def test_a_model_that_never_says_anything_is_not_asked_for_ever(
    transport: Transport, silent: dict[str, Any]
) -> None:
    async with stack(transport, {**silent, "times": 3}, {"say": "At last."}) as client:
        assert set(kinds(await ask(client))) <= {"reasoning"}
        assert last_text(await ask(client)) == "At last.", "it was asked three times"


async def test_a_model_may_think_before_it_speaks(transport: Transport) -> None:
    async with stack(transport, {"think": "Hm."}, {"think": "Hm!"}, {"say": "Hello."}) as client:
        assert kinds(await ask(client)) == ["reasoning", "reasoning", "message"]


async def test_silence_is_counted_anew_after_a_tool_call(transport: Transport) -> None:
    script: Replies = [
        {"think": "1"},
        {"think": "2"},
        {"call": [call("note", text="x")]},
        {"think": "3"},
        {"say": "Hello."},
    ]
    async with stack(transport, *script) as client:
        assert last_text(await ask(client)) == "Hello."


@pytest.mark.parametrize("max_steps", [1, 2])
async def test_the_last_step_still_runs_its_tools(transport: Transport, max_steps: int) -> None:
    script: Replies = [{"call": [call("note", text="x")], "times": 5}, {"say": "Too late."}]
    async with stack(transport, *script, max_steps=max_steps) as client:
        response = await ask(client)
    assert kinds(response) == ["function_call", "function_call_output"] * max_steps
    assert outputs(response)[-1] == json.dumps(["x"] * max_steps, separators=(",", ":"))


async def test_concurrent_tool_calls_run_at_once_and_answer_in_order(transport: Transport) -> None:
    together = [call("meet", name="slow", linger_s=0.05), call("unheard_of"), call("meet", name="quick")]
    async with stack(transport, {"call": together}, {"say": "Done."}, concurrent_tool_calls=True) as client:
        response = await ask(client)
    assert [text if "error" not in text else "error" for text in outputs(response)] == ["slow", "error", "quick"]
    assert kinds(response) == ["function_call"] * 3 + ["function_call_output"] * 3 + ["message"]


async def test_tools_called_together_share_the_session(transport: Transport) -> None:
    together = [call("note", text=text) for text in ("a", "b", "c")]
    async with stack(transport, {"call": together}, {"say": "Done."}) as client:
        status, scored = await run(client)
    assert (status, scored["notes"]) == (200, ["seeded", "a", "b", "c"])


async def test_usage_is_the_sum_of_all_replies(transport: Transport) -> None:
    script: Replies = [{"say": "one two", "call": [call("note", text="a b")]}, {"say": "three"}]
    async with stack(transport, *script) as client:
        usage = (await ask(client))["usage"]
    first, second = 2, 6  # the words of `Hello there.`, then of `Hello there. one two ["a b"]`
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (first + second, 3, 11)
    assert usage["output_tokens_details"] == {"reasoning_tokens": 0}


@pytest.mark.parametrize("position", [0, 1, 2])
async def test_a_reply_without_usage_does_not_undo_the_sum(transport: Transport, position: int) -> None:
    silent = {"type": "reasoning", "id": "rs_1", "summary": []}
    used = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}
    replies = [response_of(silent, usage=used), response_of(silent, usage=used), {**says("Done."), "usage": used}]
    del replies[position]["usage"]
    script: Replies = [{"garbage": json.dumps(reply), "times": 1} for reply in replies]
    async with stack(transport, *script) as client:
        assert (await ask(client))["usage"]["total_tokens"] == 6


async def test_a_reply_that_was_cut_off_ends_the_conversation(transport: Transport) -> None:
    script: Replies = [
        {"say": "I will", "call": [call("note", text="x")], "incomplete": "max_output_tokens"},
        {"say": "No."},
    ]
    async with stack(transport, *script) as client:
        response = await ask(client)
    assert kinds(response) == ["message", "function_call"]
    assert (response["status"], response["incomplete_details"]["reason"]) == ("incomplete", "max_output_tokens")


async def test_whoever_asks_the_agent_itself_gets_the_session_to_verify_with(transport: Transport) -> None:
    async with stack(transport, {"turn": 0, "call": [call("note", text="x")]}, {"say": "Done."}) as client:
        seeded = await client.post("environment", "/seed_session", json=example_row())
        answer = await client.post("agent", "/v1/responses", json=ASK, cookies=seeded.cookies)
        body = example_row(response=await answer.json())
        cookies = {**seeded.cookies, **answer.cookies}
        assert (await (await client.post("environment", "/verify", json=body, cookies=cookies)).json())["notes"] == [
            "seeded",
            "x",
        ]
        unseeded = await client.post("agent", "/v1/responses", json=ASK)
        body = example_row(response=await unseeded.json())
        scored = await client.post("environment", "/verify", json=body, cookies=unseeded.cookies)
        assert (await scored.json())["notes"] == ["x"]


async def test_a_rollout_is_seeded_played_scored_and_forgotten(transport: Transport) -> None:
    async with stack(transport, {"turn": 0, "call": [call("note", text="x")]}, {"say": "Done."}) as client:
        status, scored = await run(client, verify="fine", unheard_of=1)
        assert (status, scored["reward"], scored["notes"]) == (200, 2.0, ["seeded", "x"])
        assert set(scored) - FAILURE_FIELDS == {"responses_create_params", "response", "reward", "notes"}
        assert last_text(scored["response"]) == "Done."
        assert await open_visits(client) == 0


async def test_rollouts_at_the_same_time_share_nothing(transport: Transport) -> None:
    script: Replies = [
        {"user": r"(\d+)", "turn": 0, "call": [call("note", text=r"\1")]},
        {"user": r"(\d+)", "turn": 1, "call": [call("note", text=r"\1")]},
        {"say": "Done."},
    ]
    async with stack(transport, *script) as client:
        played = await asyncio.gather(*(run(client, prompt=str(number)) for number in range(10)))
        assert [scored["notes"] for _, scored in played] == [["seeded", str(n), str(n)] for n in range(10)]
        assert await open_visits(client) == 0


FAILURES = [
    pytest.param([{"status": 500}], {}, {}, "model", "policy_model", id="the model answers an error"),
    pytest.param([{"garbage": "<html>"}], {}, {}, "model", "policy_model", id="the model answers garbage"),
    pytest.param([{"user": "unheard of"}], {}, {}, "model", "policy_model", id="the model has nothing to say"),
    pytest.param([{"say": "x"}], {"seed": "crash"}, {}, "environment", "environment", id="seeding crashes"),
    pytest.param([{"say": "x"}], {"verify": "crash"}, {}, "verifier", "environment", id="verifying crashes"),
    pytest.param([{"say": "x"}], {"verify": "nan"}, {}, "verifier", "environment", id="the reward is no number"),
    pytest.param([{"say": "x"}], {"seed": "unheard of"}, {}, "input", "environment", id="the row does not fit seed"),
    pytest.param([{"say": "x"}], {"verify": 7}, {}, "input", "environment", id="the row does not fit verify"),
    pytest.param([{"say": "x"}], {"seed": "hang"}, {"seed_timeout_s": 0.1}, "timeout", None, id="seeding hangs"),
    pytest.param([{"say": "x"}], {"verify": "hang"}, {"verify_timeout_s": 0.1}, "timeout", None, id="verifying hangs"),
    pytest.param([{"latency_s": 30}], {}, {"model_timeout_s": 0.1}, "timeout", None, id="the model hangs"),
    pytest.param([{"call": [call("hang")]}], {}, {"tool_timeout_s": 0.1}, "timeout", None, id="a tool hangs"),
    pytest.param(
        [{"call": [call("hang"), call("hang")]}], {}, {"tool_timeout_s": 0.1}, "timeout", None, id="two tools hang"
    ),
    pytest.param(
        [{"call": [call("hang")]}], {}, {"rollout_timeout_s": 0.1}, "timeout", None, id="the rollout takes too long"
    ),
    pytest.param(
        *([{"call": [call("note", text="x")]}], {}, {"rollout_timeout_s": 0.1, "max_steps": None}, "timeout", None),
        id="it never ends",
    ),
]


@pytest.mark.parametrize(("replies", "row", "config", "cause", "server"), FAILURES)
async def test_a_failure_names_its_boundary_and_leaves_no_session(
    transport: Transport,
    replies: list[dict[str, Any]],
    row: dict[str, Any],
    config: dict[str, float | None],
    cause: str,
    server: str | None,
) -> None:
    async with stack(transport, *replies, **config) as client:
        status, result = await run(client, **row)
        assert result["error"]["cause"] == cause
        assert status == {"input": 422, "timeout": 504}.get(cause, 502)
        assert server is None or result["error"]["server"] == server
        await until_open_visits_are(client, 0)


async def test_a_row_that_is_none_is_refused_at_once(transport: Transport) -> None:
    async with stack(transport, {"say": "x"}) as client:
        answer = await client.post("agent", "/run", json={"prompt": "Hello."})
        assert (answer.status, (await answer.json())["detail"][0]["loc"]) == (422, ["body", "responses_create_params"])


async def test_giving_up_on_a_rollout_ends_all_that_it_started(transport: Transport) -> None:
    async with stack(transport, {"call": [call("hang")]}) as client:
        rollout = asyncio.create_task(run(client))
        await until_open_visits_are(client, 1)
        rollout.cancel()
        await until_open_visits_are(client, 0)
        with pytest.raises(asyncio.CancelledError):
            await rollout


@asynccontextmanager
async def breaking_off_at(path: str, answers: dict[str, Any]) -> AsyncIterator[str]:
    """A server that breaks the connection off when it is asked for `path`, and else answers as told."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        asked = head.split()[1].decode()
        if asked != path:
            body = json.dumps(answers.get(asked, {})).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            await writer.drain()
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield base_url("127.0.0.1", server.sockets[0].getsockname()[1])


@pytest.mark.parametrize("path", ["/seed_session", "/v1/responses", "/note", "/verify"])
async def test_a_server_that_dies_during_a_call_is_a_lost_process_and_no_answer(path: str) -> None:
    noted = response_of({"type": "function_call", "name": "note", "arguments": "{}", "call_id": "call_1"})
    spoken = noted if path == "/note" else says("Done.")
    async with breaking_off_at(path, {"/v1/responses": spoken}) as url:
        addresses = {"environment": url, "policy_model": url}
        async with Stack(StackSpec([simple_agent("environment")], addresses=addresses)) as held_agent:
            with pytest.raises(ProcessLostError, match="closed the connection") as lost:
                await run(held_agent.client)
    assert lost.value.server == ("policy_model" if path == "/v1/responses" else "environment")


def test_a_model_cannot_add_to_a_response_what_only_agents_add() -> None:
    talk = Conversation.of("policy_model", NeMoGymResponseCreateParamsNonStreaming(input="Hello."))
    added = {"ended_by": "max_steps", "harness": 1, "participants": {"other": {}}, "turns": 3}
    talk.add(NeMoGymResponse.model_validate({**says("Done."), **added, "provider": "example"}), seconds=0.1)
    assert talk.response().model_extra == {"provider": "example"}
