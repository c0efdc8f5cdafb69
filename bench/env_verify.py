"""`python -m bench.env_verify`: the CPU time that scoring one rollout takes, environment by environment.

Each example row is answered with its gold response. A call is measured from the bytes of the request to the bytes of
the record, in the process of the server: decoding, scoring and encoding."""

import argparse
import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nemo_gym.base_resources_server import SimpleResourcesServer
from nemo_gym.client.server_client import CookieJar, ServerClient, ServerReply
from nemo_gym.llm_api.builders import message, response_of, tool_output
from nemo_gym.llm_api.json_codec import encode
from nemo_gym.testing import rows_of, running_servers, server_spec
from resources_servers.calendar.app import CalendarResourcesServer
from resources_servers.math_advanced_calculations.app import MathAdvancedCalculationsResourcesServer
from resources_servers.workplace_assistant.app import WorkplaceAssistantResourcesServer

Row = dict[str, Any]
Items = list[dict[str, Any]]

LONGEST_S = 300.0
WARM_UP_CALLS = 50


@dataclass(frozen=True, slots=True)
class Measured:
    """An environment to measure."""

    gold: Callable[[Row], Items | None]
    config: Row


def from_class(kind: type[SimpleResourcesServer], **config: Any) -> Measured:
    def gold(row: Row) -> Items | None:
        said = kind.gold_response(row)
        return [message(said)] if isinstance(said, str) else said

    return Measured(gold, config)


def boxed_letter(row: Row) -> Items:
    return [message(rf"It is \boxed{{{row['expected_answer']}}}.")]


MEASURED = {
    "workplace_assistant": from_class(WorkplaceAssistantResourcesServer),
    "math_advanced_calculations": from_class(MathAdvancedCalculationsResourcesServer),
    "calendar": from_class(CalendarResourcesServer),
    "google_search": Measured(boxed_letter, {"google_api_key": "none", "google_cx": "none"}),
}


async def cpu_ms_per_verify(name: str, *, count: int) -> float:
    """Return the mean CPU time of one call of `verify` over the example rows."""
    measured = MEASURED[name]
    rows = rows_of(f"resources_servers/{name}/data/example.jsonl")
    server = server_spec(name, "resources_servers", name, domain="agent", **measured.config)
    async with asyncio.timeout(LONGEST_S), running_servers([server]) as client:
        bodies = [await _solved(client, name, row, measured.gold(row) or []) for row in rows]
        await _verify(client, name, bodies, WARM_UP_CALLS)
        started = time.process_time()
        await _verify(client, name, bodies, count)
        return (time.process_time() - started) / count * 1000


async def _solved(client: ServerClient, name: str, row: Row, items: Items) -> bytes:
    """Return the row with the gold response and the tools' replies to it, as it is sent to `verify`."""
    jar, output = CookieJar(), []
    await client.call(name, "/seed_session", encode(row), answer=ServerReply, cause="environment", jar=jar)
    for item in items:
        output.append(item)
        if item["type"] == "function_call":
            arguments = item["arguments"].encode()
            reply = await client.send(name, f"/{item['name']}", arguments, cause="tool", jar=jar)
            output.append(tool_output(reply.text, call_id=item["call_id"]))
    return encode({**row, "response": response_of(*output)})


async def _verify(client: ServerClient, name: str, bodies: list[bytes], count: int) -> None:
    for number in range(count):
        body = bodies[number % len(bodies)]
        reply = await client.call(name, "/verify", body, answer=ServerReply, cause="verifier")
        if b'"reward":1.0' not in reply.content():
            raise RuntimeError(f"{name} does not reward its gold response: {reply.text[-200:]}")


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m bench.env_verify", description=__doc__)
    parser.add_argument("--count", type=int, default=500, help="how many calls to measure")
    parser.add_argument("environments", nargs="*", default=list(MEASURED), help="which environments")
    arguments = parser.parse_args()
    print("| environment | CPU ms per verify |\n| --- | --- |")
    for name in arguments.environments:
        print(f"| {name} | {asyncio.run(cpu_ms_per_verify(name, count=arguments.count)):.2f} |")


if __name__ == "__main__":
    main()
