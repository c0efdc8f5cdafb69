"""Have an environment verify a response that is there already, stored or made up. No model is called.

The calls that a stored rollout made to its environment are read from its record: those of tools by all participants,
and `next_message`. Made again, they bring an environment into the state that the rollout left it in."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import orjson

from nemo_gym.client.call_log import Call, CallKind
from nemo_gym.client.server_client import CookieJar, ServerClient, ServerReply
from nemo_gym.common.deadline import timeout
from nemo_gym.llm_api.base import JsonObject, type_of
from nemo_gym.llm_api.builders import response_of, tool_output
from nemo_gym.llm_api.json_codec import encode
from nemo_gym.participants import ENVIRONMENT, USER
from nemo_gym.rollouts.attempts import parse_scored
from nemo_gym.server.tools import PARTICIPANT_COOKIE, POLICY, offered_tools

NEXT_MESSAGE = "next_message"
_CALL, _OUTPUT = "function_call", "function_call_output"
_WITHOUT_MESSAGE = ("incomplete", "silent", "max_steps")


class Verified(NamedTuple):
    """The result of a verification."""

    record: JsonObject
    """The reply of the environment, with a finite reward."""
    tool_outputs: list[str]
    """The replies of the tools, call by call."""
    seconds: float
    """How long verifying took, without what came before."""


async def verified(
    client: ServerClient,
    environment: str,
    row: JsonObject,
    calls: Iterable[Call],
    response: Callable[[list[str]], JsonObject],
    *,
    timeout_s: float,
    what: str,
) -> Verified:
    """In a session of its own: seed it with the row, make the calls, and have the response to them verified."""
    jar, outputs = CookieJar(), []
    async with timeout(timeout_s, what=what), client.sessions(jar):
        await client.call(environment, "/seed_session", encode(row), answer=ServerReply, cause="environment", jar=jar)
        for call in calls:
            own = jar if not call.participant else CookieJar({**jar, PARTICIPANT_COOKIE: call.participant})
            reply = await client.send(environment, call.name, call.request.encode(), cause="tool", jar=own)
            outputs.append(reply.text())
        body, started = encode({**row, "response": response(outputs)}), time.perf_counter()
        reply = await client.call(
            environment, "/verify", body, answer=ServerReply, cause="verifier", jar=jar, ends_session=True
        )
        record = parse_scored(reply)
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
    """Have output items verified, each tool call that the row allows followed by what the tool replies now."""
    offered = offered_tools(row["responses_create_params"].get("tools"))
    made = [item for item in items if item["type"] == _CALL and item["name"] in offered]

    def with_outputs(outputs: list[str]) -> JsonObject:
        replies, all_items = iter(outputs), []
        for item in items:
            all_items.append(item)
            if item in made:
                all_items.append(tool_output(next(replies), call_id=item["call_id"]))
        return response_of(*all_items)

    calls = [_environment_call(item["name"], item["arguments"]) for item in made]
    return await verified(client, environment, row, calls, with_outputs, timeout_s=timeout_s, what=what)


def calls_in_record(row: JsonObject, record: JsonObject) -> list[Call]:
    """All calls of a rollout that reached the environment, in their order."""
    response = record["response"]
    harness = response.get("harness")
    if harness:  # its own names for tools need not be the environment's
        made = harness["tool_calls"]
        return [_environment_call(call["name"], call["arguments"], call["output"]) for call in made]
    participants = [_Participant(response.get("participant") or POLICY, _offered(record), response["output"])]
    for name, other in (response.get("participants") or {}).items():
        participants.append(_Participant(name, _offered(other), other["response"]["output"]))
    turns = response.get("turns")
    if turns is None:
        return list(_tool_calls(participants[0], participants[0].items))
    calls: list[Call] = []
    for turn in range(turns + 1):
        for participant in participants:
            calls += _tool_calls(participant, [item for item in participant.items if item.get("turn") == turn])
        if all(participant.name != USER for participant in participants):
            calls += _next_message(row, record, participants, turn)
    return calls


def is_repeated(call: Call, reply: str) -> bool:
    """True if a new reply to a call of `calls_in_record` says the same as the old one."""
    return (_message_in(reply) if call.kind == "message" else reply) == call.reply


def _environment_call(
    name: str, arguments: str, reply: str = "", participant: str = POLICY, kind: CallKind = "tool"
) -> Call:
    caller = "" if participant == POLICY else participant
    return Call(name=f"/{name}", kind=kind, participant=caller, request=arguments, reply=reply)


class _Participant(NamedTuple):
    name: str
    offered: list[str]
    items: list[JsonObject]


def _offered(record: JsonObject) -> list[str]:
    return offered_tools(record["responses_create_params"].get("tools"))


def _tool_calls(participant: _Participant, items: list[JsonObject]) -> Iterator[Call]:
    outputs = _outputs_of_calls(items)
    for place, item in enumerate(items):
        if place in outputs and item["name"] in participant.offered:
            yield _environment_call(item["name"], item["arguments"], outputs[place], participant.name)


def _outputs_of_calls(items: list[JsonObject]) -> dict[int, str]:
    """By the place of each call that was made, its output. Endpoints may use an id again, also within a reply, so
    outputs belong, in their order, to the nearest calls before them that have their id and no output yet."""
    waiting: defaultdict[str, list[int]] = defaultdict(list)
    found: dict[int, str] = {}
    relevant = [(place, item) for place, item in enumerate(items) if type_of(item) in (_CALL, _OUTPUT)]
    for kind, group in groupby(relevant, key=lambda one: type_of(one[1])):
        places = defaultdict(list)
        for place, item in group:
            places[item["call_id"]].append(place)
        for call_id, same_id in places.items():
            calls = waiting[call_id]
            if kind == _CALL:
                calls += same_id
            else:
                outputs = [_text(items[place]["output"]) for place in same_id]
                found |= zip(calls[-len(outputs) :], outputs, strict=False)
                del calls[-len(outputs) :]
    return found


def _next_message(row: JsonObject, record: JsonObject, participants: list[_Participant], turn: int) -> Iterator[Call]:
    """The call of `next_message` after a turn, if there was one."""
    response = record["response"]
    found = [(each, item) for each in participants for item in each.items if item.get("turn") == turn]
    replies = [item["content"] for _, item in found if item["produced_by"] == ENVIRONMENT]
    if turn == 0 and not replies and response["turns"]:
        return  # the row began with a message of the user
    if turn == response["turns"] and response["ended_by"] in _WITHOUT_MESSAGE:
        return
    own = [(each, item) for each, item in found if item["produced_by"] != ENVIRONMENT]
    acting = own[0][0] if own else participants[0]
    body = {
        **row,
        "responses_create_params": record["responses_create_params"],
        "response": response_of(*(item for each, item in own if each is acting)),
        "turn": turn,
        "participant": acting.name,
    }
    reply = encode(replies[0] if replies else None).decode()
    yield _environment_call(NEXT_MESSAGE, encode(body).decode(), reply, acting.name, "message")


def _message_in(reply: str) -> str:
    try:
        message = orjson.loads(reply)["message"]
        return encode(None if message is None else message["content"]).decode()
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return reply


def _text(output: object) -> str:
    return output if isinstance(output, str) else encode(output).decode()
