"""Rows sent to workers: to one that is ready and has room, answered once each, and cancelled with their caller."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest
from msgspec.structs import replace

from nemo_gym.client.head import WorkerAddress
from nemo_gym.config.secrets import Secrets, set_process_secrets
from nemo_gym.errors import HeadServerError, StartupError
from nemo_gym.rollouts import dispatch
from nemo_gym.rollouts.attempts import InFlight
from nemo_gym.rollouts.dispatch import WorkerPool
from nemo_gym.rollouts.live import LiveRollouts
from nemo_gym.rollouts.types import Outcome, Row
from nemo_gym.rollouts.worker import RowServer
from nemo_gym.rollouts.worker_protocol import LENGTHS, MAX_TURN_BYTES, VERSION, Kind
from nemo_gym.server.uvicorn_runner import bind
from nemo_gym.testing import ServerSpec, Stack, StackSpec
from tests.polling import PATIENCE_S, until

SERVERS = Path(__file__).parent.parent / "servers"
LONG_S = 600.0


@asynccontextmanager
async def stack() -> AsyncIterator[Stack]:
    folder = SERVERS / "responses_api_agents" / "patient"
    spec = ServerSpec(
        name="agent",
        server_type="responses_api_agents",
        implementation="patient",
        entrypoint="app.py",
        folder=folder,
        config={"entrypoint": "app.py", "host": "127.0.0.1"},
    )
    async with Stack(StackSpec([spec])) as opened:
        yield opened


class Workers:
    """Row servers in this process, each on its own port, and a pool that is connected to them."""

    def __init__(self, opened: Stack, exit_stack: AsyncExitStack, *, token: str | None = None) -> None:
        self._stack, self._exit, self._token = opened, exit_stack, token
        self.servers: list[RowServer] = []
        self.addresses: list[WorkerAddress] = []

    async def add(self, *, capacity: int = 100, drain_s: float = 0.0) -> AsyncExitStack:
        """Start one. Closing what this gives stops it."""
        listening, number = bind("127.0.0.1", 0), len(self.servers)
        server = RowServer(self._stack.client, worker=number, capacity=capacity, token=self._token)
        self.servers.append(server)
        self.addresses.append(WorkerAddress(number, "", f"127.0.0.1:{listening.getsockname()[1]}", ("agent",)))
        running = await self._exit.enter_async_context(AsyncExitStack())
        running.callback(listening.close)
        await running.enter_async_context(server.serving(listening, drain_s=drain_s))
        return running

    async def list(self) -> list[WorkerAddress]:
        return self.addresses

    def pool(self, token: str | None = None) -> WorkerPool:
        return WorkerPool(self.list, token=token)


@asynccontextmanager
async def workers(token: str | None = None) -> AsyncIterator[Workers]:
    async with stack() as opened, AsyncExitStack() as exit_stack:
        yield Workers(opened, exit_stack, token=token)


def row(number: int = 0, *, agent: str = "agent", **fields: Any) -> Row:
    return Row(number, 0, "0" * 16, agent, orjson.dumps(fields))


def in_flight(made: Workers) -> list[int]:
    return [server.in_flight for server in made.servers]


async def attempt(pool: WorkerPool, a_row: Row, *, timeout_s: float = 60.0) -> Outcome:
    return await pool.attempt(replace(a_row, timeout_s=timeout_s, attempt=2))


async def test_a_collector_gets_no_secret_in_an_error_that_only_the_worker_knows() -> None:
    set_process_secrets(Secrets(frozenset(("pineapple",))))
    async with workers() as made:
        await made.add()
        pool = made.pool()
        async with pool.connected():
            scored = await attempt(pool, row(reply='{"reward": 1, "said": "pineapple 7"}'))
            failed = await attempt(pool, row(reply='{"said": "pineapple 7"}'))
    assert scored.error is None
    assert orjson.loads(scored.record)["said"] == "pineapple 7"
    assert failed.error is not None
    assert "pineapple" not in str(failed.error)


async def test_an_outcome_arrives_as_if_it_had_been_made_here() -> None:
    async with workers() as made:
        await made.add()
        pool = made.pool()
        async with pool.connected():
            scored = await attempt(pool, row(3, reply='{"reward": 0.5, "n": 7}'))
            assert scored.error is None
            assert (scored.row.task_index, orjson.loads(scored.record)["n"], scored.row.attempt) == (3, 7, 2)
            assert (scored.values["reward"], scored.values["n"]) == (0.5, 7)
            large = await attempt(
                pool, row(5, reply='{"reward": 1, "response": {"usage": {"input_tokens": 1%s}}}' % ("0" * 30))
            )
            assert large.error is None
            assert large.tokens[0] == 1e30
            failed = await attempt(pool, row(4, reply="not JSON"))
            assert failed.error is not None
            assert (failed.row.task_index, failed.error.cause, failed.row.attempt) == (4, "internal", 2)
            assert orjson.loads(failed.line())["row"] == {"reply": "not JSON"}
            late = await attempt(pool, row(5, seconds=LONG_S), timeout_s=0.1)
            assert late.error is not None
            assert late.error.cause == "timeout"


async def test_rows_and_outcomes_larger_than_a_turn_of_the_loop_all_arrive() -> None:
    async with workers() as made:
        await made.add(capacity=300)
        pool, text = made.pool(), "x" * (MAX_TURN_BYTES // 3)
        async with pool.connected():
            replies = [orjson.dumps({"reward": 1.0, "n": number, "text": text}).decode() for number in range(200)]
            made_here = [attempt(pool, row(number, reply=reply)) for number, reply in enumerate(replies)]
            for number, outcome in enumerate(await asyncio.gather(*made_here)):
                assert outcome.error is None
                assert (outcome.row.task_index, orjson.loads(outcome.record)["n"]) == (number, number)
                assert orjson.loads(outcome.record)["text"] == text


async def test_the_worker_with_the_fewest_in_flight_gets_the_next_row() -> None:
    async with workers() as made:
        for _ in range(3):
            await made.add()
        pool = made.pool()
        async with pool.connected(), asyncio.TaskGroup() as group:
            waiting = [group.create_task(attempt(pool, row(seconds=LONG_S))) for _ in range(9)]
            await until(lambda: in_flight(made) == [3, 3, 3])
            for task in waiting:
                task.cancel()
            await until(lambda: in_flight(made) == [0, 0, 0])


async def test_rows_wait_for_room_and_a_cancelled_one_leaves_its_place_to_the_next(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with workers() as made:
        await made.add(capacity=1)
        pool = made.pool()
        async with pool.connected(), asyncio.TaskGroup() as group:
            first, second, third = (group.create_task(attempt(pool, row(seconds=LONG_S))) for _ in range(3))
            await until(lambda: in_flight(made) == [1])
            last = group.create_task(attempt(pool, row(9)))
            await asyncio.sleep(0)
            second.cancel()
            first.cancel()
            await until(lambda: in_flight(made) == [1])
            third.cancel()
            assert (await last).error is None
    assert "take 1 rollouts at once" in caplog.text


async def test_a_worker_that_stops_finishes_what_it_can_and_the_rest_is_lost_to_it() -> None:
    async with workers() as made:
        running = await made.add(drain_s=2.0)
        pool = made.pool()
        async with pool.connected(), asyncio.TaskGroup() as group:
            short = group.create_task(attempt(pool, row(seconds=0.3)))
            long = group.create_task(attempt(pool, row(seconds=LONG_S)))
            await until(lambda: in_flight(made) == [2])
            stopping = group.create_task(running.aclose())
            assert (await short).error is None
            await made.add()  # rows that come while the first one drains go to another
            assert (await attempt(pool, row())).error is None
            await stopping
            lost = await long
            assert lost.error is not None
            assert (lost.error.code, lost.error.retryable, lost.row.attempt) == ("worker_lost", True, 2)


async def test_a_row_that_was_sent_before_the_collector_knew_that_the_worker_stops_is_made() -> None:
    async with workers() as made:
        running = await made.add(drain_s=PATIENCE_S)
        reader, writer = await asyncio.open_connection(*made.addresses[0].rows_address)
        writer.write(HELLO)
        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
            assert (await next_frame(reader))[0] == Kind.HELLO
            group.create_task(running.aclose())
            assert (await next_frame(reader))[0] == Kind.DRAINING
            writer.write(frame([Kind.ROW, 7, "agent", 0, 0, "", 5.0, 1], b"{}") + frame([Kind.DRAINING]))
            assert (await next_frame(reader))[:2] == [Kind.OUTCOME, 7]
        writer.close()


async def test_a_row_whose_worker_never_sends_an_outcome_has_timed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "OUTCOME_GRACE_S", 0.1)
    monkeypatch.setattr(dispatch, "PING_EVERY_S", 0.05)
    cancelled = asyncio.Event()

    async def forget_rows(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (head := await next_frame(reader))[0] != Kind.CANCEL:
            if head[0] == Kind.HELLO:
                writer.write(frame([Kind.HELLO, VERSION, 0, 1, 1, ["agent"]]))
        writer.write(frame([Kind.OUTCOME, head[1], 0, 0, 0.1, {}], b"{}"))  # too late
        cancelled.set()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(forget_rows, "127.0.0.1", 0) as server:
        address = WorkerAddress(0, "", f"127.0.0.1:{server.sockets[0].getsockname()[1]}", ("agent",))
        pool = WorkerPool(partial(asyncio.sleep, 0, [address]))
        async with asyncio.timeout(PATIENCE_S), pool.connected():
            late = await attempt(pool, row(), timeout_s=0.1)
            await cancelled.wait()
    assert late.error is not None
    assert (late.error.cause, late.error.retryable, late.row.attempt) == ("timeout", True, 2)


async def test_rows_wait_until_a_worker_is_ready() -> None:
    async with workers() as made:
        pool = made.pool()
        async with pool.connected():
            waiting = asyncio.create_task(attempt(pool, row()))
            await asyncio.sleep(0.05)
            assert not waiting.done()
            await made.add()
            assert (await waiting).error is None


async def test_workers_without_the_agent_are_no_room_for_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "REFRESH_S", 0.01)
    monkeypatch.setattr(dispatch, "NO_WORKER_TIMEOUT_S", 0.1)
    async with workers() as made:
        await made.add()
        gone = WorkerAddress(1, "", "127.0.0.1:1", ("elsewhere",))
        made.addresses.append(gone)
        pool = made.pool()
        async with pool.connected():
            with pytest.raises(StartupError, match="No worker was ready"):
                await asyncio.wait_for(attempt(pool, row(agent="elsewhere")), 30)
    assert "rollouts at once" not in caplog.text


async def test_a_run_whose_head_and_workers_are_gone_is_named_in_the_error(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "REFRESH_S", 0.01)
    monkeypatch.setattr(dispatch, "NO_WORKER_TIMEOUT_S", 0.5)
    is_gone = asyncio.Event()

    async def list_workers() -> list[WorkerAddress]:
        if is_gone.is_set():
            raise HeadServerError("Nobody answers there.")
        return made.addresses

    async with workers() as made:
        running = await made.add()
        pool = WorkerPool(list_workers)
        async with pool.connected():
            waiting = asyncio.create_task(attempt(pool, row(seconds=LONG_S)))
            await until(lambda: in_flight(made) == [1])
            is_gone.set()
            await running.aclose()
            assert (await waiting).error is not None
            gone = "No worker was ready for 0.5 s.*worker 0.*connections to all workers are gone.*Nobody answers there"
            with pytest.raises(StartupError, match=gone):
                await asyncio.wait_for(attempt(pool, row()), PATIENCE_S)
    assert caplog.text.count("with 'agent'") == 1


async def test_an_agent_that_no_run_has_is_an_error_of_its_row() -> None:
    async with workers() as made:
        await made.add()
        pool = made.pool()
        async with pool.connected():
            failed = await attempt(pool, row(agent="nobody"))
    assert failed.error is not None
    assert (failed.error.cause, failed.error.retryable) == ("input", False)
    assert "'nobody'" in str(failed.error)
    assert "agent" in str(failed.error)


async def test_a_worker_that_requires_a_token_gets_no_row_without_it() -> None:
    async with workers(token="right") as made:
        await made.add()
        pool = made.pool(token="wrong")
        async with pool.connected():
            with pytest.raises(StartupError, match="it requires the run's token"):
                await attempt(pool, row())
        pool = made.pool(token="right")
        async with pool.connected():
            assert (await attempt(pool, row())).error is None


def frame(head: Any, body: bytes = b"") -> bytes:
    encoded = orjson.dumps(head)
    return LENGTHS.pack(len(encoded), len(body)) + encoded + body


HELLO = frame([Kind.HELLO, VERSION, ""])


async def next_frame(reader: asyncio.StreamReader) -> list[Any]:
    head_bytes, body_bytes = LENGTHS.unpack(await reader.readexactly(LENGTHS.size))
    head: list[Any] = orjson.loads(await reader.readexactly(head_bytes))
    await reader.readexactly(body_bytes)
    return head


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n",
        frame({}),
        frame([]),
        frame([Kind.ROW, 1, "agent", 0, 0, "", 1.0, 1], b"{}"),
        frame([Kind.HELLO, VERSION]),
        LENGTHS.pack(2**31, 0),
        LENGTHS.pack(4, 0) + b"nope",
        HELLO + frame(["x"]),
        HELLO + frame([Kind.ROW, "1", "agent", 0, 0, "", 1.0, 1]),
        HELLO + frame([Kind.ROW]),
        HELLO + frame([Kind.CANCEL, [1]]),
        HELLO + LENGTHS.pack(2**30, 2**30),
        bytes(range(255, 191, -1)),
    ],
)
async def test_what_is_no_frame_ends_the_connection_and_nothing_else(sent: bytes) -> None:
    async with workers() as made:
        await made.add()
        reader, writer = await asyncio.open_connection(*made.addresses[0].rows_address)
        writer.write(sent)
        async with asyncio.timeout(30):
            await reader.read()
        writer.close()
        pool = made.pool()
        async with pool.connected():
            assert (await attempt(pool, row())).error is None


async def test_a_version_that_is_not_ours_is_named() -> None:
    async with workers() as made:
        await made.add()
        reader, writer = await asyncio.open_connection(*made.addresses[0].rows_address)
        writer.write(frame([Kind.HELLO, VERSION + 1, ""]))
        assert f"version {VERSION + 1}".encode() in await reader.read()
        writer.close()


async def test_frames_that_arrive_byte_by_byte_are_put_together() -> None:
    async with workers() as made:
        await made.add()
        with socket.create_connection(made.addresses[0].rows_address) as client:
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            asked = frame([Kind.ROW, 7, "agent", 0, 0, "", 5.0, 1], b"{}")
            for byte in HELLO + asked + asked.replace(b"7", b"8"):
                await loop.sock_sendall(client, bytes([byte]))
            received = b""
            async with asyncio.timeout(30):
                while received.count(b'{"reward": 1.0}') < 2:
                    received += await loop.sock_recv(client, 65536)


async def test_a_worker_reports_where_its_rollouts_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "STAGES_TIMEOUT_S", PATIENCE_S)
    async with workers() as made:
        await made.add()
        pool, live, slow = made.pool(), LiveRollouts(), row(3, seconds=LONG_S)
        async with pool.connected(), asyncio.TaskGroup() as group:
            waiting = group.create_task(attempt(pool, slow, timeout_s=LONG_S))
            await until(lambda: in_flight(made) == [1])
            live.in_flight[1], live.ask_workers = InFlight(1, slow), pool.stages
            (rollout,) = (await live.snapshot())["rollouts"]
            assert (rollout["task_index"], rollout["server"], rollout["path"]) == (3, "agent", "/run")
            assert rollout["stage"] == "rollout"
            waiting.cancel()
