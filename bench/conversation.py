"""CPU time of long conversations: rollouts of many turns, each with a tool result of 1 KB, by the real
`ng_collect_rollouts`, start-up subtracted. The endpoint's CPU time is left out. Each request repeats the whole
conversation, so bytes sent grow with the square of the turns; all else should cost twice as much for twice the turns.
Beside it is what aiohttp takes to send requests of the same sizes, whose texts are made beforehand. The unit is one
bare aiohttp request to such an endpoint. A call of `/run`, without the collector, is a part of it."""

import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.report import Machine
from bench.rollout_cost import MODEL_CONFIG, TWO_TURNS, bare_request_s, collect, write_rows
from nemo_gym.bench.endpoint import Endpoint, EndpointSpec, serving_endpoint
from nemo_gym.bench.report import table
from nemo_gym.client.server_client import ServerReply
from nemo_gym.common.event_loop import run
from nemo_gym.testing import running_servers, server_spec

TURNS = (25, 50, 100, 200)
ROUNDS = 20
ROLLOUTS = 100
WARM_UP_ROLLOUTS = 2
COMMAND_ROUNDS = 3
BARE_REQUESTS = 10_000
BARE_CONVERSATIONS = 50
CITY = "x" * 480
"""The tool result has it twice."""


def spec(turns: int) -> EndpointSpec:
    return EndpointSpec(turns=turns, tool_arguments={"get_weather": f'{{"city": "{CITY}"}}'})


def measure_command(turns: int) -> float:
    """Return the CPU milliseconds of one rollout of the command, the median of several rounds."""
    with serving_endpoint(spec(turns)) as endpoint, tempfile.TemporaryDirectory() as folder:
        return statistics.median(_command_ms(endpoint, Path(folder)) for _ in range(COMMAND_ROUNDS))


def _command_ms(endpoint: Endpoint, folder: Path) -> float:
    arguments = [
        *(f"+config_paths=[{TWO_TURNS.config},{MODEL_CONFIG}]", f"+policy_base_url={endpoint.url}"),
        *("+policy_api_key=none", "+policy_model_name=stub", "+head_server.port=1"),
    ]

    def cpu_s(count: int) -> float:
        rows = write_rows(folder / f"rows_{count}.jsonl", TWO_TURNS, count)
        return collect(TWO_TURNS.agent, rows, folder / f"out_{time.time_ns()}.jsonl", count, arguments)

    start_up_s = cpu_s(WARM_UP_ROLLOUTS)
    return 1000 * (cpu_s(ROLLOUTS) - start_up_s) / (ROLLOUTS - WARM_UP_ROLLOUTS)


async def measure_call(turns: int) -> tuple[float, int]:
    """Return the CPU milliseconds of one call of `/run`, the best of several rounds, and the size of its record."""
    with serving_endpoint(spec(turns)) as endpoint:
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
    """CPU milliseconds of one bare request, the unit of all measurements."""
    with serving_endpoint() as endpoint:
        return 1000 * bare_request_s(f"{endpoint.url}/responses", TWO_TURNS, count=BARE_REQUESTS)


def bare_conversation_ms(turns: int, record_bytes: int) -> float:
    """Return the CPU milliseconds of bare requests that grow like those of a conversation with a record of this
    size."""
    with serving_endpoint() as endpoint:
        url, count = f"{endpoint.url}/responses", turns * BARE_CONVERSATIONS
        per_turn = record_bytes // turns
        return 1000 * turns * bare_request_s(url, TWO_TURNS, count=count, texts=turns, text_bytes=per_turn)


def measure_all() -> str:
    rows, before, bare, machine = [], (0.0, 0.0, 0.0), [bare_request_ms()], Machine()
    measured = [(turns, measure_command(turns), *run(measure_call(turns))) for turns in TURNS]
    bare.append(bare_request_ms())
    unit_ms = statistics.mean(bare)
    for turns, command_ms, call_ms, size in measured:
        alone_ms = bare_conversation_ms(turns, size)
        cells = [f"{command_ms:.1f}", f"{command_ms / unit_ms:.0f}", _ratio(command_ms, before[0])]
        parts = [f"{call_ms:.1f}", _ratio(call_ms, before[1]), f"{alone_ms:.1f}", _ratio(alone_ms, before[2])]
        rows.append([str(turns), f"{size:,}", *cells, *parts])
        before = command_ms, call_ms, alone_ms
    times, alone = "times the line above", "requests of these sizes by aiohttp, ms"
    head = [
        "turns",
        "bytes of the record",
        "CPU, ms",
        "bare requests",
        times,
        "one call of `/run`, ms",
        times,
        alone,
        times,
    ]
    return (
        f"# Long conversations\n\n{machine}. Made by `python -m bench.conversation`: {ROLLOUTS} rollouts of each "
        f"length by the real `ng_collect_rollouts`, the middle of {COMMAND_ROUNDS} rounds. A part of it is a call of "
        f"`/run`, the best of {ROUNDS}, one after the other. A bare aiohttp request takes {1000 * unit_ms:.0f} µs.\n\n"
        f"{table(head, rows)}\n"
    )


def _ratio(now: float, before: float) -> str:
    return f"{now / before:.2f}" if before else ""


def main() -> None:
    text = measure_all()
    print(text)
    (Path(__file__).parent / "conversation.md").write_text(text)


if __name__ == "__main__":
    main()
