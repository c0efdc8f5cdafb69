"""`python -m bench.log_probs`: replies of `local_model`, cut off at every length, have one log-prob for each token id.

Every fourth reply is in characters of several tokens. Takes minutes; `--replies` says how many to make."""

import argparse
import asyncio
from collections import Counter
from typing import Any

from nemo_gym.client.pool import HttpClient
from nemo_gym.client.server_client import ServerClient
from nemo_gym.testing import BrowserLikeClient, client_for
from responses_api_models.local_model.app import LocalModel

MAX_LENGTH = 24
IN_FLIGHT = 4
GRAMMAR = 'root ::= ("🎉" | "日本" | "é" | "a" | " ")+'
PROMPTS = ("Tell me about tea.", "Say hello in Japanese, Greek and Russian.", "Write ten emoji.")


async def reply(model: BrowserLikeClient, number: int) -> dict[str, Any]:
    prompt, grammar = PROMPTS[number % len(PROMPTS)], {"grammar": GRAMMAR} if number % 4 == 0 else {}
    body = {"messages": [{"role": "user", "content": prompt}], "seed": number, "max_tokens": 1 + number % MAX_LENGTH}
    answer = await model.post("/v1/chat/completions", json={**body, **grammar})
    if answer.status != 200:
        raise SystemExit(f"reply {number}: {answer.text}")
    message: dict[str, Any] = answer.json()["choices"][0]["message"]
    return message


async def measure(count: int) -> Counter[str]:
    numbers, counts = iter(range(count)), Counter[str]()
    settings: dict[str, Any] = {"threads": 1, "context_tokens": 256, "num_concurrent_requests": IN_FLIGHT}

    async def work(model: BrowserLikeClient) -> None:
        for number in numbers:
            message = await reply(model, number)
            ids, log_probs = message["generation_token_ids"], message["generation_log_probs"]
            counts["replies"] += 1
            counts["tokens"] += len(ids)
            counts["unequal lengths"] += len(ids) != len(log_probs)
            counts["cut inside a character"] += message["content"].endswith("\N{REPLACEMENT CHARACTER}")

    async with (
        HttpClient() as http,
        client_for(
            LocalModel, server_client=ServerClient(http=http), return_token_id_information=True, **settings
        ) as model,
        asyncio.TaskGroup() as workers,
    ):
        for _ in range(IN_FLIGHT):
            workers.create_task(work(model))
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.log_probs", description=__doc__)
    parser.add_argument("--replies", type=int, default=1000)
    for name, value in asyncio.run(measure(parser.parse_args().replies)).items():
        print(f"{name}: {value}")


if __name__ == "__main__":
    main()
