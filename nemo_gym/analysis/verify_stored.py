"""Have an environment verify a response that is there already, stored or made up. No model is asked."""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from nemo_gym.client.server_client import CookieJar, ServerClient, ServerReply
from nemo_gym.common.deadline import timeout
from nemo_gym.llm_api.base import JsonObject
from nemo_gym.llm_api.builders import response_of, tool_output
from nemo_gym.llm_api.json_codec import encode
from nemo_gym.rollouts.attempts import parse_scored
from nemo_gym.server.tools import PARTICIPANT_COOKIE, POLICY, offered_tools


class Verified(NamedTuple):
    """What came of a verification."""

    record: JsonObject
    """What the environment answers, with a finite reward."""
    tool_outputs: list[str]
    """What the tools answered, call by call."""
    seconds: float
    """How long verifying took, without what came before."""


async def verified(
    client: ServerClient,
    environment: str,
    row: JsonObject,
    calls: Iterable[JsonObject],
    response: Callable[[list[str]], JsonObject],
    *,
    timeout_s: float,
    what: str,
) -> Verified:
    """In a session of its own: seed it with the row, make the tool calls, and have the response to them verified."""
    jar, outputs = CookieJar(), []
    async with timeout(timeout_s, what=what), client.sessions(jar):
        await client.call(environment, "/seed_session", encode(row), answer=ServerReply, cause="environment", jar=jar)
        for call in calls:
            arguments, caller = call["arguments"].encode(), call.get("participant", POLICY)
            own = jar if caller == POLICY else CookieJar({**jar, PARTICIPANT_COOKIE: caller})
            answer = await client.send(environment, f"/{call['name']}", arguments, cause="tool", jar=own)
            outputs.append(answer.text())
        body, started = encode({**row, "response": response(outputs)}), time.perf_counter()
        answer = await client.call(
            environment, "/verify", body, answer=ServerReply, cause="verifier", jar=jar, ends_session=True
        )
        record = parse_scored(answer)
        return Verified(record, outputs, time.perf_counter() - started)


async def verify_items(
    client: ServerClient,
    environment: str,
    row: JsonObject,
    items: Sequence[JsonObject],
    *,
    timeout_s: float,
    what: str,
) -> Verified:
    """Have output items verified, each tool call that the row allows followed by what the tool answers now."""
    offered = offered_tools(row["responses_create_params"].get("tools"))
    made = [item for item in items if item["type"] == "function_call" and item["name"] in offered]

    def played(outputs: list[str]) -> JsonObject:
        answers, all_items = iter(outputs), []
        for item in items:
            all_items.append(item)
            if item in made:
                all_items.append(tool_output(next(answers), call_id=item["call_id"]))
        return response_of(*all_items)

    return await verified(client, environment, row, made, played, timeout_s=timeout_s, what=what)
