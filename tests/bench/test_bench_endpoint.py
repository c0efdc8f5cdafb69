"""The simulated endpoint follows its settings, and its metrics are right."""

import random
from collections.abc import Sequence
from typing import Any

import orjson
import pytest

from nemo_gym.bench.endpoint import (
    CONNECTIONS_PER_PROCESS,
    FAULTS,
    EndpointSpec,
    EndpointStats,
    Latency,
    Replies,
    serving_endpoint,
)
from nemo_gym.bench.measure import Environment, example_value, padded
from nemo_gym.client.pool import HttpClient
from nemo_gym.errors import ConfigError, UpstreamError

TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "required": ["at"], "properties": {}}}


def request(path: str, body: dict[str, Any]) -> bytes:
    return f"POST {path} HTTP/1.1\r\n\r\n".encode() + orjson.dumps(body)


@pytest.mark.parametrize(
    ("text", "mean"),
    [("constant:0.5", 0.5), ("uniform:1:3", 2.0), ("exponential:2", 2.0), ("lognormal:1:0.5", 1.133)],
)
def test_latencies_have_the_mean_of_their_distribution(text: str, mean: float) -> None:
    latency, chance = Latency.parse(text), random.Random(1)
    assert str(latency) == text
    assert sum(latency.sample(chance) for _ in range(20_000)) / 20_000 == pytest.approx(mean, rel=0.05)


@pytest.mark.parametrize(
    "text", ["", "1", "constant", "constant:x", "uniform:1", "gauss:1:2", "constant:-1", "constant:inf"]
)
def test_a_latency_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"latency|not negative"):
        Latency.parse(text)


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions"])
def test_tools_are_called_on_all_turns_but_the_last(path: str) -> None:
    replies = Replies(turns=3, payload_bytes=2000, tool_arguments={"look": '{"at": 1}'})
    is_chat = path.endswith("completions")
    done = {"role": "tool"} if is_chat else {"type": "function_call_output"}
    for count in range(4):
        body = {"input": [done] * count, "tools": [TOOL]}
        reply = replies.to(request(path, body)).partition(b"\r\n\r\n")[2]
        assert (b'"look"' in reply) == (count < 2)
        assert len(reply) > 2000
    assert b'"look"' not in replies.to(request(path, {"input": []}))


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({}, {}),
        ({"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}, "b": {}}}, {"a": 1}),
        ({"type": "array", "items": {"type": "boolean"}, "minItems": 2}, [True, True]),
        ({"enum": ["x", "y"]}, "x"),
        ({"anyOf": [{"type": "null"}, {"type": "string"}]}, None),
        ({"type": ["number", "null"], "minimum": 3}, 3),
    ],
)
def test_arguments_fit_their_schema(schema: dict[str, Any], value: Any) -> None:
    assert example_value(schema) == value


def test_rows_are_padded_and_their_tools_found() -> None:
    rows: Sequence[dict[str, Any]] = [{"responses_create_params": {"input": "Hi.", "tools": [TOOL]}}]
    [row] = padded(rows, 5000)
    assert len(orjson.dumps(row["responses_create_params"]["input"])) >= 5000
    assert Environment([], "agent", rows).tool_arguments() == {"look": '{"at":"text"}'}


async def test_the_endpoint_counts_requests_latency_and_faults() -> None:
    spec = EndpointSpec(latency="constant:0.01", fault_rate=1.0, faults=("503",))
    with serving_endpoint(spec) as endpoint:
        async with HttpClient() as http:
            for _ in range(3):
                reply = await http.fetch("POST", f"{endpoint.url}/responses", body=b"{}", timeout_s=30)
                assert reply.status == 503
        stats = endpoint.stats()
    assert (stats.requests, stats.faults, stats.in_flight, stats.most_in_flight) == (3, 3, 0, 1)
    assert stats.latency_s == pytest.approx(0.03)
    assert stats.last_at > stats.first_at > 0


@pytest.mark.parametrize("fault", ["cut", "hang_up"])
async def test_a_fault_may_break_the_connection(fault: str) -> None:
    with serving_endpoint(EndpointSpec(fault_rate=1.0, faults=(fault,))) as endpoint:
        async with HttpClient() as http:
            with pytest.raises(UpstreamError):
                await http.fetch("POST", f"{endpoint.url}/responses", body=b"{}", timeout_s=30)


def test_every_fault_is_a_reply_or_a_way_not_to_reply() -> None:
    assert all(bool(fault.reply) != (fault.stalls or fault.cuts or fault.hangs_up) for fault in FAULTS.values())


def test_many_connections_get_several_processes_whose_metrics_add_up() -> None:
    with serving_endpoint(EndpointSpec(), connections=CONNECTIONS_PER_PROCESS + 1) as endpoint:
        assert len(set(endpoint.urls)) == len(set(endpoint.pids)) == 2
        assert endpoint.stats() == EndpointStats()
    one, two = EndpointStats(1, 2, 3, 4, 5.0, 0.0, 7.0), EndpointStats(1, 1, 1, 1, 1.0, 6.0, 9.0)
    assert one + two == EndpointStats(2, 3, 4, 5, 6.0, 6.0, 9.0)
