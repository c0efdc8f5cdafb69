"""The servers of a simulated run: an environment whose score is known, and an LLM endpoint that makes faults.

The endpoint plays from the row alone: it calls the tool with the row's amounts, and says the total that the tool gave.
So every conversation, and every score, is known before."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import orjson

from nemo_gym.answers import last_number
from nemo_gym.base_resources_server import (
    BaseRunRequest,
    BaseVerifyRequest,
    Score,
    SessionState,
    SimpleResourcesServer,
    tool,
)
from tests.simulation.world import Process, World

Place = tuple[int, int]
"""A row and one of its repeats."""
SEED = 100
"""The seed of repeat 0."""

REQUEST_TIMEOUT_S = 60.0
GRACE_S = 15.0

_world: World | None = None


def set_world(world: World) -> None:
    """Have the environments report to this world what they see."""
    global _world  # noqa: PLW0603 - there is one world in a process
    _world = world


def _violated(text: str) -> None:
    if _world is not None:
        _world.violated(text)


class Account(SessionState):
    """The total of one rollout."""

    owner: str | None = None
    total: int = 0
    calls: int = 0
    is_closed: bool = False

    def close(self) -> None:
        if self.is_closed:
            _violated(f"the session of {self.owner} was closed twice")
        self.is_closed = True

    def used_by(self, owner: str) -> None:
        """Note who uses the session: one rollout, from its first call on, until the session is closed."""
        if self.is_closed:
            _violated(f"{owner} uses a session that is closed")
        if self.owner not in (None, owner):
            _violated(f"the session of {self.owner} is used by {owner}")
        self.owner = owner


class LedgerSeedRequest(BaseRunRequest):
    number: int


class LedgerVerifyRequest(BaseVerifyRequest):
    number: int


class Book(SimpleResourcesServer):
    """Adds up amounts."""

    async def seed_session(self, body: LedgerSeedRequest, session: Account) -> None:
        if session.calls:
            _violated(f"the session of {session.owner} is set up again for row {body.number}")

    @tool
    async def add(self, owner: str, turn: int, amount: int, session: Account) -> dict[str, int]:
        """Add an amount to the total."""
        session.used_by(owner)
        if turn != session.calls:
            _violated(f"call {turn} of {owner} meets a session that has had {session.calls}")
        session.calls += 1
        if amount % 7 == 0:
            await asyncio.sleep(amount % 10)
        session.total += amount
        return {"total": session.total}


class Ledger(Book):
    """The reward is the total that the model says, if it is the one that the session has."""

    async def verify(self, body: LedgerVerifyRequest, session: Account) -> Score:
        said = last_number(body.response)
        if said != session.total:
            _violated(f"row {body.number} says {said}, its session has {session.total}")
        return Score(session.total / 1000, owner=session.owner)


class CopiedLedger(Ledger):
    """Goes on from a copy of a session."""

    restore = "copy"


class ReplayedLedger(Ledger):
    """Goes on by calling the tools again."""

    restore = "replay"


class GroupLedger(Book):
    """Scores all rollouts of a row together: each gets its share of their sum."""

    async def verify_group(self, bodies: list[LedgerVerifyRequest]) -> list[float]:
        totals = [float(last_number(body.response) or 0) + 1 for body in bodies]
        return [each / sum(totals) for each in totals]


Fault = Callable[["EndpointConnection", bytes], None]


class EndpointConnection(asyncio.Protocol):
    """One connection to an LLM endpoint that speaks the Responses API."""

    def __init__(self, endpoint: "Endpoint") -> None:
        self._endpoint = endpoint
        self._received = b""
        self.transport: Any = None
        self.loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        if not end:
            return
        lines = head.lower().split(b"\r\n")
        length = next(int(line[15:]) for line in lines if line.startswith(b"content-length:"))
        if len(body) < length:
            return
        self._received = body[length:]
        self._endpoint.answer(self, orjson.loads(body[:length]))

    def reply(self, status: int, body: bytes, *, headers: bytes = b"") -> None:
        head = b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\n%bcontent-length: %d\r\n\r\n"
        self.transport.write(head % (status, headers, len(body)) + body)


class Endpoint:
    """The endpoint of a policy. `rate` is the share of requests that get a fault."""

    def __init__(self, world: World, *, think_s: tuple[float, float]) -> None:
        self.world, self._think_s = world, think_s
        self.rate = 0.0
        self.on_fault: Callable[[str], None] = lambda _kind: None
        self.calls = 0

    async def serve(self, process: Process, listener: Any) -> None:
        """Serve until the process ends."""
        await process.loop.create_server(lambda: EndpointConnection(self), sock=listener)

    def answer(self, connection: EndpointConnection, asked: dict[str, Any]) -> None:
        world = self.world
        self.calls += 1
        place, step = place_and_step(asked)
        think_s = world.random.uniform(*self._think_s)
        if self.rate and world.random.random() < self.rate:
            kind, act = world.random.choice(_FAULTS)
            world.say(f"row {place[0]} repeat {place[1]} asks for step {step}: {kind}")
            self.on_fault(kind)
            connection.loop.call_later(think_s, act, connection, response(asked))
            if act in (_hang, _silent):
                world.after(REQUEST_TIMEOUT_S + GRACE_S, self._check_given_up, connection.transport, world.now)
            return
        world.say(f"row {place[0]} repeat {place[1]} asks for step {step}")
        connection.loop.call_later(think_s, connection.reply, 200, response(asked))

    def _check_given_up(self, transport: Any, asked_at: float) -> None:
        """The client of a request that gets no reply must have ended it, if it was able to."""
        client = transport.peer.process
        is_well = client is not None and client.is_alive and client.frozen_until < asked_at
        if is_well and transport.peer.is_open and not transport.is_cut:
            self.world.violated(f"{client.name} still waits for a reply that is {GRACE_S:g} s too late")


def amounts(number: int, repeat: int) -> list[list[int]]:
    """The amounts that the model adds in each of its turns."""
    return [
        [number + 1 + turn + SEED + repeat + call for call in range(1 + (number + turn) % 2)]
        for turn in range(number % 4)
    ]


def total(number: int, repeat: int) -> int:
    return sum(map(sum, amounts(number, repeat)))


def place_and_step(asked: dict[str, Any]) -> tuple[Place, int]:
    """The row and repeat that a request is of, and the number of its turn."""
    number = int(asked["input"][0]["content"].split()[1])
    repeat = int(asked["metadata"]["seed"]) - SEED
    outputs = sum(item.get("type") == "function_call_output" for item in asked["input"])
    for step, turn in enumerate(amounts(number, repeat)):
        if outputs <= 0:
            return (number, repeat), step
        outputs -= len(turn)
    return (number, repeat), number % 4


def response(asked: dict[str, Any]) -> bytes:
    """What the model says next."""
    (number, repeat), step = place_and_step(asked)
    turns = amounts(number, repeat)
    for item in asked["input"]:
        if item.get("type") == "function_call_output" and '"total"' not in item["output"]:
            _violated(f"the model of row {number} repeat {repeat} gets as a tool's output {item['output']!r:.300}")
    outputs = [orjson.loads(item["output"]) for item in asked["input"] if item.get("type") == "function_call_output"]
    if step < len(turns):
        output = list(_calls(number, repeat, step))
    else:
        text = f"The total is {outputs[-1]['total'] if outputs else 0}"
        content = [{"type": "output_text", "text": text, "annotations": []}]
        output = [{"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": content}]
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    usage = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5, **details}
    about = {"id": f"r-{number}-{repeat}-{step}", "created_at": 1, "model": "m", "object": "response"}
    choices = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    return orjson.dumps({**about, **choices, "output": output, "usage": usage})


def _calls(number: int, repeat: int, step: int) -> Iterator[dict[str, Any]]:
    turns = amounts(number, repeat)
    before = sum(map(len, turns[:step]))
    for index, amount in enumerate(turns[step]):
        arguments = {"owner": f"row {number} repeat {repeat}", "turn": before + index, "amount": amount}
        call = {"type": "function_call", "name": "add", "call_id": f"c{step}-{index}", "id": f"f{step}-{index}"}
        yield {**call, "arguments": orjson.dumps(arguments).decode(), "status": "completed"}


# Faults of the endpoint: each gets the connection and the reply that would be right


def _status(status: int, headers: bytes = b"") -> Fault:
    def act(connection: EndpointConnection, _body: bytes) -> None:
        connection.reply(status, b'{"error": {"message": "no"}}', headers=headers)

    return act


def _reset(connection: EndpointConnection, _body: bytes) -> None:
    connection.transport.abort()


def _cut_off(connection: EndpointConnection, body: bytes) -> None:
    connection.transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body[: len(body) // 2])
    connection.transport.abort()


def _hang(connection: EndpointConnection, body: bytes) -> None:
    connection.transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body[: len(body) // 3])


def _silent(_connection: EndpointConnection, _body: bytes) -> None:
    pass


def _garbage(connection: EndpointConnection, _body: bytes) -> None:
    connection.reply(200, b'{"object": "response", "output": "none"}')


def _twice(connection: EndpointConnection, body: bytes) -> None:
    """The reply, and with it another one that nobody asked for. If that came later, it could not be told from the
    reply to the next request."""
    wrong = body.replace(b"The total is", b"No, it is 9").replace(b"amount", b"no_amount")
    head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n"
    connection.transport.write_whole(head % len(body) + body + head % len(wrong) + wrong)


def _closes(connection: EndpointConnection, body: bytes) -> None:
    """The reply, and then the end of the connection without a word."""
    connection.reply(200, body)
    connection.loop.call_later(0.0, connection.transport.close)


_FAULTS: list[tuple[str, Fault]] = [
    ("429", _status(429, b"retry-after: 2\r\n")),
    ("500", _status(500)),
    ("503", _status(503)),
    ("reset", _reset),
    ("a reply that is cut off", _cut_off),
    ("a reply that never ends", _hang),
    ("no reply", _silent),
    ("a reply that is no response", _garbage),
    ("two replies", _twice),
    ("a reply, then the connection ends", _closes),
]
