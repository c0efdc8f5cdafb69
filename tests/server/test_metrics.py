"""What `/metrics` tells: rollouts by outcome, time by stage, what is in flight, sessions, lag, pools, the process."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.client.server_client import CookieJar, ServerReply
from nemo_gym.common.metrics import stage_loads
from nemo_gym.errors import RolloutError
from nemo_gym.runtime.stack import Stack, StackSpec
from nemo_gym.server.uvicorn_runner import serving
from nemo_gym.server_utils import ServerClient
from nemo_gym.testing import bind, server_spec
from tests.polling import until
from tests.stacks import scripted_model, simple_agent, weather

SERVERS = Path(__file__).parent.parent / "servers"
CALL_AND_SAY = [
    {"turn": 0, "call": [{"name": "get_weather", "arguments": {"city": "Oslo"}}]},
    {"turn": 1, "say": "It is cold."},
]
TOOL = {"type": "function", "name": "get_weather", "parameters": {}, "strict": False}
ROW = {"responses_create_params": {"input": "How is the weather?", "tools": [TOOL]}}


def weather_stack(**model: Any) -> Stack:
    servers = [weather(), scripted_model(**(model or {"replies": CALL_AND_SAY})), simple_agent("weather")]
    return Stack(StackSpec(servers))


def values(page: bytes, name: str) -> dict[str, float]:
    """The values of one metric by their labels."""
    lines = (line.rpartition(" ") for line in page.decode().splitlines() if not line.startswith("#"))
    return {key.removeprefix(name): float(value) for key, _, value in lines if key.partition("{")[0] == name}


def matching(page: bytes, name: str, *labels: str) -> float:
    [value] = [value for key, value in values(page, name).items() if all(label in key for label in labels)]
    return value


async def test_rollouts_are_counted_by_outcome_and_stages_by_time() -> None:
    async with weather_stack() as stack:
        for _ in range(3):
            await stack.client.call("agent", "/run", ROW, answer=ServerReply)
        page, loads = stack.apps["weather"].pages["/metrics"](), stage_loads(stack.apps["weather"].families())
    assert values(page, "nemo_gym_rollouts_total") == {'{agent="agent",outcome="scored",worker="0"}': 3}
    for stage, count in {"rollout": 3, "seed": 3, "model": 6, "tool": 3, "verify": 3}.items():
        counts = [value for key, value in values(page, "nemo_gym_stage_seconds_count").items() if f'"{stage}"' in key]
        assert sum(counts) == loads[stage]["requests"] == count, stage
        assert (loads[stage]["seconds"] > 0, loads[stage]["in_flight"]) == (count > 0, 0)
    assert matching(page, "nemo_gym_rollouts_in_flight") == 0
    assert matching(page, "nemo_gym_sessions", 'server="weather"') == 0


async def test_a_failed_rollout_counts_under_its_cause() -> None:
    async with weather_stack(replies=[{"turn": 0, "status": 500}]) as stack:
        with pytest.raises(RolloutError) as raised:
            await stack.client.call("agent", "/run", ROW, answer=ServerReply)
        page = stack.apps["agent"].pages["/metrics"]()
    assert matching(page, "nemo_gym_rollouts_total", f'outcome="{raised.value.cause}"') == 1
    assert matching(page, "nemo_gym_rollouts_total", 'outcome="scored"') == 0


async def test_what_is_in_flight_shows_and_a_cancelled_request_is_no_success() -> None:
    folder = SERVERS / "resources_servers/breakable"
    server = server_spec("waiting", "resources_servers", "breakable", folder=folder, domain="other")
    async with Stack(StackSpec([server])) as stack:
        page = stack.apps["waiting"].pages["/metrics"]
        calls = [asyncio.create_task(stack.client.post("waiting", "/hang", json={})) for _ in range(5)]
        await until(lambda: matching(page(), "nemo_gym_requests_in_flight", '"/hang"') == 5)
        assert stage_loads(stack.apps["waiting"].families())["tool"]["in_flight"] == 5
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        assert matching(page(), "nemo_gym_requests_in_flight", '"/hang"') == 0
        assert matching(page(), "nemo_gym_requests_total", '"/hang"', '"cancelled"') == 5
        assert matching(page(), "nemo_gym_requests_total", '"/hang"', '"ok"') == 0
        with pytest.raises(RolloutError):
            await stack.client.send("waiting", "/hang", {}, timeout_s=0.2)
        assert matching(page(), "nemo_gym_requests_total", '"/hang"', '"timeout"') == 1


@pytest.mark.parametrize("transport", ["direct", "http"])
async def test_routes_that_a_server_adds_with_fastapi_count_too(transport: str) -> None:
    folder = SERVERS / "resources_servers/legacy_ledger"
    ledger = server_spec("ledger", "resources_servers", "legacy_ledger", folder=folder, domain="other", currency="NOK")
    async with Stack(StackSpec([ledger])) as stack:
        with bind("127.0.0.1", 0) as listening:
            port = listening.getsockname()[1]
            async with serving({port: stack.apps["ledger"]}, [listening]):
                addresses = {"ledger": f"http://127.0.0.1:{port}"}
                far = ServerClient(addresses=addresses, http=stack.client.http)
                client = stack.client if transport == "direct" else far
                jar = CookieJar()
                await client.send("ledger", "/seed_session", {"opening_balance": 1}, jar=jar)
                await client.send("ledger", "/book", {"amount": 1}, jar=jar)
                await client.send("ledger", "/explode", {}, jar=jar)
                page = await (await far.get("ledger", "/metrics")).read()
    assert matching(page, "nemo_gym_requests_total", '"/seed_session"', '"ok"') == 1
    assert matching(page, "nemo_gym_requests_total", '"/book"', '"ok"') == 1
    assert matching(page, "nemo_gym_requests_total", '"/explode"', '"internal"') == 1


async def test_a_worker_reports_its_loop_its_pools_and_its_process() -> None:
    async with weather_stack() as stack:
        page = stack.apps["agent"].pages["/metrics"]
        await until(lambda: matching(page(), "nemo_gym_event_loop_lag_seconds_count") > 0)
        assert values(page(), "nemo_gym_http_connections").keys() == {
            '{state="in_use",worker="0"}',
            '{state="idle",worker="0"}',
        }
        assert matching(page(), "nemo_gym_compute_tasks", '"waiting"') == 0
        for name in ("process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds"):
            assert matching(page(), name) > 0
