"""`python -m bench.tokens`: what a reply of 65,536 tokens, with ids and log-probs, costs on its way from the endpoint
to the record, as a multiple of one bare decode and encode of the same bytes."""

import asyncio
import statistics
import time
from pathlib import Path
from typing import Any

import orjson

from bench.report import Machine
from nemo_gym.bench.endpoint import serving_endpoint
from nemo_gym.bench.report import table
from nemo_gym.client.server_client import ServerReply
from nemo_gym.testing import example_row, running_servers, server_spec

TOKENS = 65_536
ROUNDS = 7


def completion() -> bytes:
    """What vLLM answers when asked for tokens."""
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
    with serving_endpoint(body=body) as endpoint:
        return await _measured(body, endpoint.url)


async def _measured(body: bytes, url: str) -> str:
    model: dict[str, Any] = {"base_url": url, "api_key": "none", "model": "m", "uses_reasoning_parser": True}
    servers = [
        server_spec("weather", "resources_servers", "example_simple_weather", domain="agent"),
        server_spec("policy_model", "responses_api_models", "vllm_model", return_token_id_information=True, **model),
        server_spec(
            "agent",
            "responses_api_agents",
            "simple_agent",
            resources_server={"type": "resources_servers", "name": "weather"},
            model_server={"type": "responses_api_models", "name": "policy_model"},
        ),
    ]
    bare, rollouts, record = [], [], b""
    async with running_servers(servers) as client:
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


def page(received: int, written: int, bare_s: float, rollout_s: float) -> str:
    head = ["bytes received", "bytes of the record", "bare decode + encode, ms", "rollout, ms", "ratio"]
    costs = [f"{1000 * bare_s:.1f}", f"{1000 * rollout_s:.1f}", f"{rollout_s / bare_s:.2f}"]
    return (
        f"# A reply of {TOKENS:,} tokens\n\n{Machine()}. Made by `python -m bench.tokens`: the median of {ROUNDS} "
        "rounds, CPU time of the process that holds the stack.\n\n"
        f"{table(head, [[f'{received:,}', f'{written:,}', *costs]])}\n"
    )


def main() -> None:
    text = asyncio.run(measure())
    print(text)
    (Path(__file__).parent / "tokens.md").write_text(text)


if __name__ == "__main__":
    main()
