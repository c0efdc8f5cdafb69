"""CPU time of long conversations: rollouts of many turns, each with a tool result of 1 KB, in a process that holds the
servers. The endpoint's CPU time is left out. Twice the turns should cost about twice the time, beside the bytes that
are sent: each request repeats the whole conversation. The unit is one bare aiohttp request to such an endpoint."""

import asyncio
import statistics
import time
from pathlib import Path
from typing import Any

from bench.report import Machine
from bench.rollout_cost import TWO_TURNS, bare_request_s
from nemo_gym.analysis.bench.endpoint import EndpointSpec, serving_endpoint
from nemo_gym.analysis.bench.report import table
from nemo_gym.client.server_client import ServerReply
from nemo_gym.common.event_loop import run
from nemo_gym.testing import running_servers, server_spec

TURNS = (25, 50, 100, 200)
ROUNDS = 20
BARE_REQUESTS = 10_000
CITY = "x" * 480
"""The tool result has it twice."""


async def measure(turns: int) -> tuple[float, int]:
    """CPU milliseconds of one rollout, the best of some rounds, and the size of its record."""
    arguments = {"get_weather": f'{{"city": "{CITY}"}}'}
    with serving_endpoint(EndpointSpec(turns=turns, tool_arguments=arguments)) as endpoint:
        model = {"openai_base_url": endpoint.url, "openai_api_key": "none", "openai_model": "m"}
        references: dict[str, Any] = {
            "resources_server": {"type": "resources_servers", "name": "weather"},
            "model_server": {"type": "responses_api_models", "name": "policy_model"},
        }
        servers = [
            server_spec("weather", "resources_servers", "example_simple_weather", domain="agent"),
            server_spec("policy_model", "responses_api_models", "openai_model", **model),
            server_spec("agent", "responses_api_agents", "simple_agent", **references),
        ]
        async with running_servers(servers) as client:
            best_s, record = float("inf"), b""
            for _ in range(ROUNDS):
                started = time.process_time()
                record = (await client.call("agent", "/run", TWO_TURNS.row, answer=ServerReply)).content()
                best_s = min(best_s, time.process_time() - started)
                await asyncio.sleep(0)
    if record.count(b'"function_call_output"') != turns - 1:
        raise AssertionError("the conversation has another length")
    return 1000 * best_s, len(record)


def bare_request_ms() -> float:
    """CPU milliseconds of one bare request, the unit of all figures."""
    with serving_endpoint() as endpoint:
        return 1000 * bare_request_s(f"{endpoint.url}/responses", TWO_TURNS, count=BARE_REQUESTS)


async def measure_all() -> str:
    rows, before, bare, machine = [], 0.0, [bare_request_ms()], Machine()
    measured = [(turns, *await measure(turns)) for turns in TURNS]
    bare.append(bare_request_ms())
    unit_ms = statistics.mean(bare)
    for turns, cpu_ms, size in measured:
        ratio = f"{cpu_ms / before:.2f}" if before else ""
        rows.append([str(turns), f"{size:,}", f"{cpu_ms:.1f}", f"{cpu_ms / unit_ms:.0f}", ratio])
        before = cpu_ms
    head = ["turns", "bytes of the record", "CPU, ms", "bare requests", "times the line above"]
    return (
        f"# Long conversations\n\n{machine}. Made by `python -m bench.conversation`: the best of {ROUNDS} rollouts of "
        f"each length. A bare aiohttp request takes {1000 * unit_ms:.0f} µs.\n\n{table(head, rows)}\n"
    )


def main() -> None:
    text = run(measure_all())
    print(text)
    (Path(__file__).parent / "conversation.md").write_text(text)


if __name__ == "__main__":
    main()
