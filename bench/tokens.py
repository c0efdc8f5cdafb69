"""`python -m bench.tokens`: what tokens cost.

One reply of 65,536 tokens, with ids and log-probs, on its way from the endpoint to the record, as a multiple of one
bare decode and encode of the same bytes. And long conversations of 63,670 tokens: bytes sent, the size of their
records and files, CPU time, and memory with many in flight."""

import argparse
import asyncio
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Literal

import orjson

from bench.report import Machine
from bench.token_engine import FIRST, READ, SAMPLED, TURNS, engine_stats, serving_token_engine
from nemo_gym.bench.endpoint import EndpointSpec, serving_endpoint
from nemo_gym.bench.report import table
from nemo_gym.client.server_client import ServerClient, ServerReply
from nemo_gym.rollouts.attempts import attempt
from nemo_gym.rollouts.types import Outcome, Row
from nemo_gym.testing import ServerSpec, example_row, running_servers, server_spec
from nemo_gym.training.token_file import TokenWriter

TOKENS = 65_536
ROUNDS = 7
LONG_ROUNDS = 3
IN_FLIGHT = (32, 512)
Protocol = Literal["chat", "tokens"]


def completion() -> bytes:
    """Return a reply of vLLM with tokens."""
    ids = [100 + number % 30_000 for number in range(TOKENS)]
    logprobs: list[dict[str, Any]] = [
        {"token": f"token_id:{token}", "logprob": -0.001 * (token % 700), "bytes": None, "top_logprobs": []}
        for token in ids
    ]
    message = {"role": "assistant", "content": "word " * TOKENS, "refusal": None}
    choice = {
        "index": 0,
        "finish_reason": "stop",
        "message": message,
        "logprobs": {"content": logprobs},
        "token_ids": ids,
    }
    usage = {"prompt_tokens": 16, "completion_tokens": TOKENS, "total_tokens": TOKENS + 16}
    return orjson.dumps(
        {
            "id": "c",
            "created": 0,
            "model": "m",
            "object": "chat.completion",
            "choices": [choice],
            "prompt_token_ids": list(range(16)),
            "usage": usage,
        }
    )


async def measure() -> str:
    body = completion()
    with serving_endpoint(EndpointSpec(turns=1, body=body.decode())) as endpoint:  # the row offers tools
        return await _measured(body, endpoint.url)


async def _measured(body: bytes, url: str) -> str:
    bare, rollouts, record = [], [], b""
    async with running_servers(_servers(url, "chat")) as client:
        for _ in range(ROUNDS):
            started = time.process_time()
            orjson.dumps(orjson.loads(body))
            bare.append(time.process_time() - started)
            started = time.process_time()
            record = (await client.call("agent", "/run", example_row("Go on."), answer=ServerReply)).content()
            rollouts.append(time.process_time() - started)
    item = orjson.loads(record)["response"]["output"][-1]
    if len(item["generation_token_ids"]) != TOKENS or len(item["generation_log_probs"]) != TOKENS:
        raise AssertionError("tokens were lost on the way")
    return page(len(body), len(record), statistics.median(bare), statistics.median(rollouts))


def _servers(url: str, protocol: Protocol) -> list[ServerSpec]:
    model: dict[str, Any] = {"base_url": url, "api_key": "none", "model": "m", "uses_reasoning_parser": True}
    model |= {"return_token_id_information": True, "protocol": protocol}
    return [
        server_spec("weather", "resources_servers", "example_simple_weather", domain="agent"),
        server_spec("policy_model", "responses_api_models", "vllm_model", **model),
        server_spec(
            "agent",
            "responses_api_agents",
            "simple_agent",
            resources_server={"type": "resources_servers", "name": "weather"},
            model_server={"type": "responses_api_models", "name": "policy_model"},
        ),
    ]


def page(received: int, written: int, bare_s: float, rollout_s: float) -> str:
    head = ["bytes received", "bytes of the record", "bare decode + encode, ms", "rollout, ms", "ratio"]
    costs = [f"{1000 * bare_s:.1f}", f"{1000 * rollout_s:.1f}", f"{rollout_s / bare_s:.2f}"]
    return (
        f"# A reply of {TOKENS:,} tokens\n\n{Machine()}. Made by `python -m bench.tokens`: the median of {ROUNDS} "
        "rounds, CPU time of the process that holds the stack.\n\n"
        f"{table(head, [[f'{received:,}', f'{written:,}', *costs]])}\n"
    )


async def measure_conversation(protocol: Protocol, in_flight: int) -> list[str]:
    """A row of the table: one long rollout after another, then many at once."""
    with serving_token_engine() as url, tempfile.TemporaryDirectory() as folder:
        async with running_servers(_servers(url, protocol)) as client:
            await _rollout(client)
            before = engine_stats(url)["received"]
            seconds = []
            for _ in range(LONG_ROUNDS):
                started = time.process_time()
                outcome = await _rollout(client)
                seconds.append(time.process_time() - started)
            sent = (engine_stats(url)["received"] - before) / LONG_ROUNDS
            writer = TokenWriter(Path(folder) / "tokens.arrow", Path(folder) / "rollouts.jsonl")
            (text,) = writer.split([outcome])
            writer.close()
            arrow = writer.path.stat().st_size
            scored = await asyncio.gather(*(_rollout(client) for _ in range(in_flight)))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    sizes = [f"{size / 1e6:.2f}" for size in (sent, len(outcome.record), arrow, len(text))]
    return [protocol, *sizes, f"{statistics.median(seconds):.3f}", f"{len(scored)}", f"{memory:.0f}"]


async def _rollout(client: ServerClient) -> Outcome:
    outcome = await attempt(client, Row(0, 0, "0" * 16, "agent", orjson.dumps(example_row("Go on."))))
    if outcome.error is not None:
        raise outcome.error
    return outcome


def conversations() -> str:
    """The table, each row measured in a process of its own."""
    rows = []
    for protocol, in_flight in (("chat", IN_FLIGHT[0]), ("tokens", IN_FLIGHT[0]), ("tokens", IN_FLIGHT[1])):
        command = [sys.executable, "-m", "bench.tokens", "--conversation", protocol, "--in-flight", str(in_flight)]
        rows.append(orjson.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))
    head = [
        "protocol",
        "sent, MB",
        "record, MB",
        "Arrow, MB",
        "text beside it, MB",
        "CPU, s",
        "in flight",
        "memory, MB",
    ]
    total = FIRST + READ * (TURNS - 1) + SAMPLED * TURNS
    return (
        f"\n# Conversations of {TURNS} turns and {total:,} tokens\n\n{SAMPLED * TURNS:,} of the tokens are sampled. "
        f"CPU is the median of {LONG_ROUNDS} rollouts, one after another; memory is the most that the process took "
        f"with so many rollouts in flight, all of which were scored.\n\n{table(head, rows)}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.tokens", description=__doc__)
    parser.add_argument("--conversation", choices=("chat", "tokens"), help=argparse.SUPPRESS)
    parser.add_argument("--in-flight", type=int, default=IN_FLIGHT[0], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.conversation:
        row = asyncio.run(measure_conversation(options.conversation, options.in_flight))
        sys.stdout.buffer.write(orjson.dumps(row))
        return
    text = asyncio.run(measure()) + conversations()
    print(text)
    (Path(__file__).parent / "tokens.md").write_text(text)


if __name__ == "__main__":
    main()
