"""A model endpoint that misbehaves at random: `python -m bench.fault_endpoint <port> <log> <fault rate> <seed>`.

It plays the policy and the judge of `bench.faults`. Every fault it commits goes to the log with its time and its row,
so that the cause of each failure can be checked."""

import asyncio
import json
import os
import random
import re
import sys
import time
from collections.abc import Awaitable, Callable

import orjson

ROW = re.compile(rb"row (\d+)")
ADD = re.compile(r"row \d+: add (\d+) and (\d+)")
SAY = re.compile(r"row \d+: say '([^']*)'")
JUDGED = re.compile(r"GOLD '([^']*)' SAID '([^']*)'")
STALL_S = 30.0
MAX_LATENCY_S = 0.3
"""Latency long enough that kills hit rollouts in every phase."""

Fault = Callable[[asyncio.StreamWriter, bytes], Awaitable[None]]


def http(body: bytes, status: str = "200 OK", headers: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n{headers}\r\n"
    return head.encode() + body


async def stall(_writer: asyncio.StreamWriter, _good: bytes) -> None:
    await asyncio.sleep(STALL_S)


async def hang_up(writer: asyncio.StreamWriter, _good: bytes) -> None:
    writer.transport.abort()


async def half(writer: asyncio.StreamWriter, good: bytes) -> None:
    writer.write(good[: len(good) // 2])
    await writer.drain()
    writer.transport.abort()


async def pieces(writer: asyncio.StreamWriter, good: bytes) -> None:
    """Not a fault, but slow: the reply comes in small pieces."""
    for start in range(0, len(good), 100):
        writer.write(good[start : start + 100])
        await asyncio.sleep(0)


async def twice(writer: asyncio.StreamWriter, good: bytes) -> None:
    """Send two replies to one request: the second must not be taken for the reply to another request."""
    writer.write(good + http(orjson.dumps(response({"type": "message", "text": "a stray reply"}))))


def answering(status: str, body: bytes = b'{"error": "injected"}', headers: str = "") -> Fault:
    async def answer(writer: asyncio.StreamWriter, _good: bytes) -> None:
        writer.write(http(body, status, headers))

    return answer


FAULTS: dict[str, Fault] = {
    "stall": stall,
    "hang up": hang_up,
    "half a reply": half,
    "in pieces": pieces,
    "two replies": twice,
    "429": answering("429 Too Many Requests", headers="retry-after: 0\r\n"),
    "500": answering("500 Internal Server Error"),
    "503": answering("503 Service Unavailable", headers="retry-after: 0\r\n"),
    "400": answering("400 Bad Request"),
    "HTML": answering("200 OK", b"<html>Sign in</html>"),
    "cut JSON": answering("200 OK", b'{"id": "resp_1", "output": ['),
    "other JSON": answering("200 OK", b'{"hello": "world"}'),
    "failed": answering(
        "200 OK", b'{"id":"r","object":"response","created_at":0,"model":"m","output":[],"status":"failed"}'
    ),
    "empty": answering("200 OK", b""),
}


def response(item: dict[str, object]) -> dict[str, object]:
    if item["type"] == "message":
        content = [{"type": "output_text", "text": item["text"], "annotations": []}]
        item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}
    fields = {"object": "response", "created_at": 0, "model": "m", "status": "completed"}
    return {"id": f"resp_{random.getrandbits(60):x}", **fields, "output": [item]}


def reply_to(body: bytes) -> dict[str, object]:
    """Return the reply of a model without faults: add both numbers, one call each, or repeat a given text; a judge
    compares."""
    text = body.decode()
    if judged := JUDGED.search(text):
        same = judged[1] == judged[2]
        return response({"type": "message", "text": "[[A=B]]" if same else "[[A!=B]]"})
    if said := SAY.search(text):
        return response({"type": "message", "text": said[1]})
    numbers, done = ADD.search(text), text.count('"function_call_output"')
    if numbers is None or done >= 2:
        return response({"type": "message", "text": "Done."})
    arguments = json.dumps({"count": int(numbers[done + 1])})
    call_id = f"call_{random.getrandbits(60):x}"
    return response({"type": "function_call", "call_id": call_id, "name": "increment_counter", "arguments": arguments})


async def main(port: int, log: str, fault_rate: float, seed: int) -> None:
    chance = random.Random(seed)
    log_fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
                body = await reader.readexactly(int(length[1]) if length else 0)
                good, row = http(orjson.dumps(reply_to(body))), ROW.search(body)
                await asyncio.sleep(chance.uniform(0, MAX_LATENCY_S))
                if chance.random() < fault_rate:
                    name = chance.choice(list(FAULTS))
                    found = {"time": time.time(), "row": int(row[1]) if row else None, "fault": name}
                    os.write(log_fd, orjson.dumps(found) + b"\n")
                    await FAULTS[name](writer, good)
                else:
                    writer.write(good)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async with await asyncio.start_server(handle, "127.0.0.1", port, reuse_address=True, backlog=1024) as server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]), int(sys.argv[4])))
