"""The calls that a stored rollout made to its environment, in their order: those of tools by all participants, and
`next_message`. Made again, they bring an environment into the state that the rollout left it in."""

from collections import defaultdict
from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

import orjson

from nemo_gym.llm_api.base import JsonObject, type_of
from nemo_gym.llm_api.builders import response_of
from nemo_gym.llm_api.json_codec import encode
from nemo_gym.participants import ENVIRONMENT, POLICY, USER
from nemo_gym.server.tools import offered_tools

NEXT_MESSAGE = "next_message"
_CALL, _OUTPUT = "function_call", "function_call_output"
_WITHOUT_MESSAGE = ("incomplete", "silent", "max_steps")


class ReplayedCall(NamedTuple):
    """One call, and what came of it."""

    name: str
    arguments: str
    participant: str
    output: str

    def is_repeated_by(self, reply: str) -> bool:
        """True if a new reply says the same as the old one."""
        return (_message_in(reply) if self.name == NEXT_MESSAGE else reply) == self.output


class _Side(NamedTuple):
    name: str
    offered: list[str]
    items: list[JsonObject]


def replayed_calls(row: JsonObject, record: JsonObject) -> list[ReplayedCall]:
    """All calls of a rollout that reached the environment."""
    response = record["response"]
    harness = response.get("harness")
    if harness:  # its own names for tools need not be the environment's
        made = harness["tool_calls"]
        return [ReplayedCall(call["name"], call["arguments"], POLICY, call["output"]) for call in made]
    sides = [_Side(response.get("participant") or POLICY, _offered(record), response["output"])]
    for name, other in (response.get("participants") or {}).items():
        sides.append(_Side(name, _offered(other), other["response"]["output"]))
    turns = response.get("turns")
    if turns is None:
        return list(_tool_calls(sides[0], sides[0].items))
    calls: list[ReplayedCall] = []
    for turn in range(turns + 1):
        for side in sides:
            items = [item for item in side.items if item.get("turn") == turn]
            calls += _tool_calls(side, items)
        if all(side.name != USER for side in sides):
            calls += _next_message(row, record, sides, turn)
    return calls


def _offered(record: JsonObject) -> list[str]:
    return offered_tools(record["responses_create_params"].get("tools"))


def _tool_calls(side: _Side, items: list[JsonObject]) -> Iterator[ReplayedCall]:
    outputs = _outputs_of_calls(items)
    for place, item in enumerate(items):
        if place in outputs and item["name"] in side.offered:
            yield ReplayedCall(item["name"], item["arguments"], side.name, outputs[place])


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


def _next_message(row: JsonObject, record: JsonObject, sides: list[_Side], turn: int) -> Iterator[ReplayedCall]:
    """The call of `next_message` after a turn, if there was one."""
    response = record["response"]
    found = [(side, item) for side in sides for item in side.items if item.get("turn") == turn]
    replies = [item["content"] for _, item in found if item["produced_by"] == ENVIRONMENT]
    if turn == 0 and not replies and response["turns"]:
        return  # the row began with a message of the user
    if turn == response["turns"] and response["ended_by"] in _WITHOUT_MESSAGE:
        return
    own = [(side, item) for side, item in found if item["produced_by"] != ENVIRONMENT]
    acting = own[0][0] if own else sides[0]
    body = {
        **row,
        "responses_create_params": record["responses_create_params"],
        "response": response_of(*(item for side, item in own if side is acting)),
        "turn": turn,
        "participant": acting.name,
    }
    yield ReplayedCall(
        NEXT_MESSAGE, encode(body).decode(), acting.name, encode(replies[0] if replies else None).decode()
    )


def _message_in(reply: str) -> str:
    try:
        message = orjson.loads(reply)["message"]
        return encode(None if message is None else message["content"]).decode()
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return reply


def _text(output: object) -> str:
    return output if isinstance(output, str) else encode(output).decode()
