"""Answers sent as events: piece by piece, ended with the client, and with errors reported as events."""

import asyncio
from collections.abc import AsyncGenerator

import pytest
from pydantic import BaseModel

from nemo_gym.client.server_client import ServerClient
from nemo_gym.common.deadline import TIME_LEFT_HEADER
from nemo_gym.llm_api.stream_events import EventStream, event
from nemo_gym.server.base import SimpleServer
from nemo_gym.server.endpoint import Endpoint
from nemo_gym.testing import BrowserLikeClient, client_for
from tests.polling import until


class Count(BaseModel):
    to: int


class Speaker(SimpleServer):
    """Answers in events."""

    def endpoints(self) -> list[Endpoint]:
        handlers = (self.count, self.stumble, self.drone)
        return [Endpoint(f"/{handler.__name__}", handler, cause="internal") for handler in handlers]

    async def count(self, body: Count) -> EventStream:
        return EventStream.of(event(number) for number in range(body.to))

    async def stumble(self) -> EventStream:
        async def events() -> AsyncGenerator[bytes, None]:
            yield event({"said": "one"})
            raise ValueError("lost the thread")

        return EventStream(events())

    async def drone(self) -> EventStream:
        async def events() -> AsyncGenerator[bytes, None]:
            try:
                while True:
                    yield event("and", name="more")
                    await asyncio.sleep(0.02)
            finally:
                ENDED.append("drone")

        return EventStream(events())


ENDED: list[str] = []


async def test_events_come_as_a_stream() -> None:
    async with client_for(Speaker) as client:
        answer = await client.post("/count", json={"to": 3})
        assert answer.status == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.content() == b"data: 0\n\ndata: 1\n\ndata: 2\n\n"


async def test_a_peer_in_the_same_worker_gets_all_events_at_once() -> None:
    config = {"name": "test", "host": "127.0.0.1", "port": 0, "entrypoint": "app.py"}
    app = Speaker(config=Speaker.config_class().model_validate(config), server_client=ServerClient()).asgi_app()
    answer = await app.direct("POST", "/count", {"to": 2}, {})
    assert (answer.status, answer.content()) == (200, b"data: 0\n\ndata: 1\n\n")


async def test_a_failure_after_the_first_event_is_sent_as_an_event() -> None:
    async with client_for(Speaker) as client:
        text = (await client.post("/stumble", json={})).text
        assert text.startswith('data: {"said":"one"}\n\nevent: error\ndata: {"type":"error"')
        assert "lost the thread" in text


async def test_a_stream_ends_when_its_time_is_up() -> None:
    async with client_for(Speaker) as client:
        answer = await client.request("POST", "/drone", b"{}", {TIME_LEFT_HEADER: "0.5"})
        assert answer.text.startswith('event: more\ndata: "and"\n\n')
        assert "event: error" in answer.text
        assert "did not finish within" in answer.text


async def test_a_stream_ends_when_the_client_goes_away() -> None:
    ENDED.clear()
    async with client_for(Speaker) as client:
        await hang_up_during(client, "/drone")
        await until(lambda: ENDED)
    assert ENDED == ["drone"]


async def hang_up_during(client: BrowserLikeClient, path: str) -> None:
    port = int(client.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    headers = "host: localhost\r\ncontent-type: application/json\r\ncontent-length: 2"
    writer.write(f"POST {path} HTTP/1.1\r\n{headers}\r\n\r\n{{}}".encode())
    assert b"200" in await asyncio.wait_for(reader.readline(), 60)
    writer.close()


@pytest.mark.parametrize(("name", "expected"), [(None, b'data: {"a":1}\n\n'), ("x", b'event: x\ndata: {"a":1}\n\n')])
def test_an_event_is_a_line_of_json(name: str | None, expected: bytes) -> None:
    assert event({"a": 1}, name=name) == expected
