"""One suite over both transports: a server cannot tell how it is called, and a caller cannot tell either."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from nemo_gym.base_resources_server import BaseVerifyRequest
from nemo_gym.client.server_client import CookieJar, ServerReply
from nemo_gym.errors import RolloutError, SessionLostError
from nemo_gym.rollouts.collector import RolloutCollectionHelper
from nemo_gym.rollouts.config import RolloutCollectionConfig
from nemo_gym.runtime.stack import ServerSpec
from nemo_gym.testing import (
    Transport,
    calls,
    example_row,
    message,
    response_of,
    running_servers,
    server_spec,
    tool_output,
)
from tests.stacks import counter, references, scripted_model, simple_agent

SERVERS = Path(__file__).parent / "servers"
TRANSPORTS: tuple[Transport, ...] = ("direct", "http")
LEDGER_TOOL = {"type": "function", "name": "book", "parameters": {}, "strict": False}


def legacy_ledger() -> ServerSpec:
    folder = SERVERS / "resources_servers/legacy_ledger"
    return server_spec("ledger", "resources_servers", "legacy_ledger", folder=folder, domain="other", currency="NOK")


def agent(environment: str, *, legacy: bool = False) -> ServerSpec:
    if legacy:
        folder = SERVERS / "responses_api_agents/legacy_agent"
        return server_spec("agent", "responses_api_agents", "legacy_agent", folder=folder, **references(environment))
    return simple_agent(environment)


LEDGER_SCRIPT = [
    {"turn": 0, "call": [{"name": "book", "arguments": {"amount": 5}}, {"name": "book", "arguments": {"amount": -2}}]},
    {"turn": 1, "say": "Booked."},
]
LEDGER_ROW = {
    "responses_create_params": {
        "input": [{"role": "user", "content": "Book 5, then take 2 back."}],
        "tools": [LEDGER_TOOL],
        "metadata": {"unknown": "kept"},
    },
    "opening_balance": 10,
    "expected_balance": 13,
}


def without_ids(record: bytes) -> bytes:
    """Random ids and times differ between any two runs; everything else must not."""
    record = re.sub(rb'"(resp|msg|fc|call|rs)_[0-9a-f]{32}"', b'"<id>"', record)
    return re.sub(rb'"(created_at|model|tools)":[0-9.e-]+', rb'"\1":0', record)  # times


async def test_a_legacy_environment_with_our_agent_gives_the_same_record_byte_for_byte() -> None:
    records = [
        await played([legacy_ledger(), agent("ledger"), scripted_model(LEDGER_SCRIPT)], LEDGER_ROW, transport)
        for transport in TRANSPORTS
    ]
    assert records[0] == records[1]
    assert (orjson.loads(records[0])["reward"], orjson.loads(records[0])["balance"]) == (1.0, 13)


async def test_a_legacy_agent_gives_the_same_record_byte_for_byte() -> None:
    records = [
        await played(
            [legacy_ledger(), agent("ledger", legacy=True), scripted_model(LEDGER_SCRIPT)], LEDGER_ROW, transport
        )
        for transport in TRANSPORTS
    ]
    assert records[0] == records[1]
    assert b'"reward":1.0' in records[0]
    assert b'"balance":13' in records[0]


async def test_a_new_environment_with_a_legacy_agent_gives_the_same_record_byte_for_byte() -> None:
    script: list[dict[str, Any]] = [
        {"turn": 0, "call": [{"name": "increment_counter", "arguments": {"count": 2}}]},
        {"say": "Done."},
    ]
    row = example_row(initial_count=1, expected_count=3)
    records = [
        await played([counter(), agent("counter", legacy=True), scripted_model(script)], row, transport)
        for transport in TRANSPORTS
    ]
    assert records[0] == records[1]
    assert b'"reward":1.0' in records[0]


def untyped() -> ServerSpec:
    folder = SERVERS / "resources_servers/untyped"
    return server_spec("untyped", "resources_servers", "untyped", folder=folder, domain="other")


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_fields_that_take_anything_hold_json(transport: Transport, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps(example_row("Say done.")) + "\n")
    job = RolloutCollectionConfig(
        agent_name="agent",
        input_jsonl_fpath=str(tmp_path / "rows.jsonl"),
        output_jsonl_fpath=str(tmp_path / "out.jsonl"),
    )
    servers = [untyped(), agent("untyped"), scripted_model([{"say": "done", "incomplete": "max_output_tokens"}])]
    async with running_servers(servers, transport=transport) as client:
        await RolloutCollectionHelper().run_from_config(job, client=client)
    record = json.loads((tmp_path / "out.jsonl").read_text())
    assert (record["reward"], record["response"]["status"]) == (1.0, "incomplete")


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_body_or_a_reply_that_is_a_dict_holds_json(transport: Transport) -> None:
    sent = BaseVerifyRequest.model_validate(example_row("Hello.", response=response_of(message("hi"))))
    async with running_servers([untyped()], transport=transport) as client:
        answer = await client.call("untyped", "/aggregate_metrics", sent, answer=dict)
    assert answer["types"] == {"responses_create_params": "dict", "response": "dict"}
    assert answer["seed"] == {"responses_create_params": None}


async def played(servers: Sequence[ServerSpec], row: dict[str, Any], transport: Transport) -> bytes:
    async with running_servers(servers, transport=transport) as client:
        return without_ids((await client.call("agent", "/run", row, answer=ServerReply)).content())


CALLS: list[tuple[str, str, Any]] = [
    ("ledger", "/seed_session", {"opening_balance": 1}),
    ("ledger", "/seed_session", {}),
    ("ledger", "/book", {"amount": 3}),
    ("ledger", "/book", {"amount": "three"}),
    ("ledger", "/book", b"{not json"),
    ("ledger", "/explode", {}),
    ("ledger", "/refuse", {}),
    ("ledger", "/nowhere", {}),
    ("ledger", "/verify", example_row(response=response_of(), expected_balance=1)),
    ("ledger", "/verify", example_row(response=response_of())),
    ("counter", "/seed_session", {"initial_count": "7"}),
    ("counter", "/seed_session", b"[]"),
    ("counter", "/increment_counter", b'{"count": 1, "more": true}'),
    ("counter", "/increment_counter", {"count": 1.5}),
    ("counter", "/get_counter_value", None),
    ("counter", "/nowhere", {}),
    ("counter", "/verify", example_row(response=response_of(message("hi")), expected_count=0)),
    (
        "counter",
        "/verify",
        example_row(response=response_of(calls("x", "{", call_id="c"), tool_output("y")), expected_count="0"),
    ),
    ("policy_model", "/v1/responses", {"input": "hi", "unheard_of": 1}),
    ("policy_model", "/v1/responses", {"input": [{"role": "tool", "content": "x"}]}),
]


@pytest.mark.parametrize(("server", "path", "body"), CALLS)
async def test_every_answer_is_the_same_byte_for_byte(server: str, path: str, body: Any) -> None:
    answers = []
    for transport in TRANSPORTS:
        async with running_servers(
            [legacy_ledger(), counter(), scripted_model([{"say": "Hi."}])], transport=transport
        ) as client:
            answer = await client.send(server, path, body)
            answers.append((answer.status, answer.content(), sorted(answer.cookies)))
    assert answers[0] == answers[1]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_tool_that_raises_keeps_the_session(transport: Transport) -> None:
    async with running_servers([legacy_ledger()], transport=transport) as client:
        jar = CookieJar()
        await client.send("ledger", "/seed_session", {"opening_balance": 1}, jar=jar)
        failed = await client.send("ledger", "/explode", {}, jar=jar)
        assert (failed.status, failed.content()) == (500, b"\"ValueError('tool failed')\"")
        assert (await client.send("ledger", "/book", {"amount": 1}, jar=jar)).content() == (
            b'{"balance":2,"currency":"NOK"}'
        )


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_session_that_was_ended_is_forgotten_by_both_sides(transport: Transport) -> None:
    async with running_servers([legacy_ledger(), counter()], transport=transport) as client:
        for server, seed in (("ledger", {"opening_balance": 1}), ("counter", {"initial_count": 1})):
            jar = CookieJar()
            await client.send(server, "/seed_session", seed, jar=jar)
            row = example_row(response=response_of(message("hi")), expected_balance=1, expected_count=1)
            assert (await client.send(server, "/verify", row, jar=jar, ends_session=True)).status == 200
            assert not jar


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_the_first_answer_carries_the_session_even_when_it_is_an_error(transport: Transport) -> None:
    async with running_servers([legacy_ledger(), counter()], transport=transport) as client:
        for server, path in (("ledger", "/explode"), ("counter", "/increment_counter")):
            jar = CookieJar()
            assert (await client.send(server, path, {}, jar=jar)).status >= 400
            assert len(jar) == 1


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_what_a_peer_does_to_its_body_does_not_reach_the_sender(transport: Transport) -> None:
    servers = [
        server_spec(
            "vandal", "resources_servers", "breakable", folder=SERVERS / "resources_servers/breakable", domain="other"
        )
    ]
    row = example_row("Hello.", response=response_of(message("hi")))
    async with running_servers(servers, transport=transport) as client:
        sent = BaseVerifyRequest.model_validate(row)
        await client.call("vandal", "/seed_session", sent, answer=ServerReply)
        assert sent == BaseVerifyRequest.model_validate(row)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_reward_that_is_no_number_is_a_failure_of_the_verifier(transport: Transport) -> None:
    servers = [
        server_spec(
            "vandal", "resources_servers", "breakable", folder=SERVERS / "resources_servers/breakable", domain="other"
        )
    ]
    async with running_servers(servers, transport=transport) as client:
        with pytest.raises(RolloutError, match="expected a finite number") as caught:
            await client.call(
                "vandal", "/verify", example_row(response=response_of()), answer=ServerReply, cause="internal"
            )
        assert caught.value.cause == "verifier"


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_an_unknown_server_is_named_with_the_nearest(transport: Transport) -> None:
    async with running_servers([counter()], transport=transport) as client:
        with pytest.raises(ValueError, match=r"'countr'.*'counter'"):
            await client.send("countr", "/verify", {})


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_two_sessions_of_one_server_are_separate(transport: Transport) -> None:
    async with running_servers([counter()], transport=transport) as client:
        first, second = CookieJar(), CookieJar()
        await client.send("counter", "/seed_session", {"initial_count": 1}, jar=first)
        await client.send("counter", "/seed_session", {"initial_count": 2}, jar=second)
        assert (await client.send("counter", "/get_counter_value", jar=first)).content() == b'{"count":1}'
        assert (await client.send("counter", "/get_counter_value", jar=second)).content() == b'{"count":2}'


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(
    ("server", "seed", "tool"),
    [("ledger", {"opening_balance": 1}, "/book"), ("counter", {"initial_count": 1}, "/get_counter_value")],
)
async def test_every_reply_carries_the_session_cookie(
    transport: Transport, server: str, seed: dict[str, int], tool: str
) -> None:
    async with running_servers([legacy_ledger(), counter()], transport=transport) as client:
        seeded = (await client.post(server, "/seed_session", json=seed)).cookies
        reply = await client.post(server, tool, json={"amount": 1}, cookies=seeded)
        again = await client.post(server, tool, json={"amount": 1}, cookies=reply.cookies)
        failed = await client.post(server, "/verify", json={}, cookies=again.cookies)
        assert failed.status == 422
        assert seeded == reply.cookies == again.cookies == failed.cookies


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_conversation_without_tool_calls_keeps_the_session_of_its_caller(transport: Transport) -> None:
    servers = [counter(), agent("counter"), scripted_model([{"say": "Done."}])]
    async with running_servers(servers, transport=transport) as client:
        seeded = await client.post("counter", "/seed_session", json={"initial_count": 7})
        said = await client.post("agent", "/v1/responses", json={"input": "Hello."}, cookies=seeded.cookies)
        assert said.cookies == seeded.cookies


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("server", ["ledger", "counter"])
async def test_a_lost_session_raises_for_every_way_to_call(transport: Transport, server: str) -> None:
    async with running_servers([legacy_ledger(), counter()], transport=transport) as client:
        jar = CookieJar()
        await client.send(server, "/seed_session", {"opening_balance": 1, "initial_count": 1}, jar=jar)
        lost = dict(jar)
        async with client.sessions(closing := CookieJar()):
            closing.update(lost)
        calls = (
            client.send(server, "/verify", {}, cause="verifier", jar=CookieJar(lost)),
            client.call(server, "/verify", {}, answer=ServerReply, cause="verifier", jar=CookieJar(lost)),
            client.post(server, "/verify", json={}, cookies=lost),
        )
        for call in calls:
            with pytest.raises(SessionLostError) as caught:
                await call
            assert (caught.value.cause, caught.value.retryable) == ("environment", True)
            assert caught.value.server == server


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_handler_may_read_the_body_from_the_request(transport: Transport) -> None:
    """Also the fields that its type does not declare."""
    folder = SERVERS / "resources_servers/mcp_shop"
    spec = server_spec("shop", "resources_servers", "mcp_shop", folder=folder, domain="agent")
    async with running_servers([spec], transport=transport) as client:
        answer = await client.call("shop", "/seed_session", {"note": "hi"}, answer=dict, jar=CookieJar())
    assert answer == {"note": "hi", "size": 13}
