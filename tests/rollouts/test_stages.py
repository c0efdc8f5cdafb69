"""Time by stage is known of servers here and of those of a running `ng_run`."""

import asyncio

from nemo_gym.client.server_client import ServerClient
from nemo_gym.config.types import BaseServerConfig
from nemo_gym.rollouts.stages import stage_times, times_since

METRICS = """\
# TYPE nemo_gym_stage_seconds histogram
nemo_gym_stage_seconds_bucket{stage="model",server="a",le="1"} 2
nemo_gym_stage_seconds_sum{stage="model",server="a",worker="0"} 1.5
nemo_gym_stage_seconds_count{stage="model",server="a",worker="0"} 3
nemo_gym_stage_seconds_sum{stage="model",server="a",worker="1"} 0.5
nemo_gym_stage_seconds_count{stage="model",server="a",worker="1"} 1
nemo_gym_stage_seconds_sum{stage="agent",server="b",worker="0"} 9
"""


async def test_the_times_of_all_workers_are_read_from_the_head_server() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = METRICS.encode()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s" % (len(body), body))
        writer.close()

    head = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with head:
        port = head.sockets[0].getsockname()[1]
        async with ServerClient(head_server_config=BaseServerConfig(host="127.0.0.1", port=port)) as client:
            assert await stage_times(client) == {"model": {"requests": 4.0, "seconds": 2.0}}


async def test_without_servers_and_with_a_silent_head_there_are_none() -> None:
    async with ServerClient(head_server_config=BaseServerConfig(host="127.0.0.1", port=1)) as client:
        assert await stage_times(client) == {}
    async with ServerClient() as client:
        assert await stage_times(client) == {}


def test_only_what_was_added_counts() -> None:
    before = {"model": {"requests": 2.0, "seconds": 1.0}, "tool": {"requests": 1.0, "seconds": 3.0}}
    now = {
        "model": {"requests": 5.0, "seconds": 2.5},
        "tool": before["tool"],
        "verify": {"requests": 1.0, "seconds": 0.1},
    }
    assert times_since(before, now) == {
        "model": {"requests": 3, "seconds": 1.5},
        "verify": {"requests": 1, "seconds": 0.1},
    }
