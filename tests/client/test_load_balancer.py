"""Endpoints are chosen by load and by health, a rollout stays on one, and nobody waits or tries for ever."""

import asyncio
import itertools
import json
import socket
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.client.load_balancer import (
    FIRST_COOLDOWN_S,
    MAX_COOLDOWN_S,
    Balancer,
    EndpointPool,
    EndpointSettings,
    Lease,
)
from nemo_gym.client.pool import HttpClient
from nemo_gym.client.server_client import CookieJar
from nemo_gym.common.deadline import fresh_deadline, timeout
from nemo_gym.common.retry import track_retries
from nemo_gym.errors import RolloutError, UnreachableError, UpstreamError
from tests.commands import free_port
from tests.polling import until
from tests.raw_server import raw_server
from tests.stub_endpoint import Request, completion, stub_endpoint

KEY = "sk-0123456789"


def test_new_sessions_go_round_and_then_stay() -> None:
    balancer = Balancer(2)
    first = [served(balancer, session) for session in "abc"]
    assert first == [0, 1, 0]
    assert [served(balancer, session) for session in "cabcab"] == [0, 0, 1, 0, 0, 1]


def served(balancer: Balancer, session: str | None, *, now: float = 0.0, is_healthy: bool | None = True) -> int:
    lease = balancer.start(session, now=now)
    balancer.end(lease, is_healthy=is_healthy, now=now)
    return lease.endpoint


def test_the_least_busy_endpoint_is_next_but_a_session_stays_on_its_own() -> None:
    balancer = Balancer(3)
    busy = [balancer.start(session, now=0) for session in "abc"]
    assert [lease.endpoint for lease in busy] == [0, 1, 2]
    balancer.end(busy[1], is_healthy=True, now=0)
    assert balancer.start(None, now=0).endpoint == 1
    assert balancer.start("a", now=0).endpoint == 0


def test_a_sick_endpoint_cools_down_for_a_growing_time_and_one_request_probes_it() -> None:
    balancer, now = Balancer(2), 0.0
    cooldowns = []
    assert served(balancer, None, now=now, is_healthy=False) == 0
    for failures in range(1, 9):
        cooldown = min(MAX_COOLDOWN_S, FIRST_COOLDOWN_S * 2 ** (failures - 1))
        assert served(balancer, None, now=now + cooldown * 0.99) == 1
        now += cooldown
        trial = balancer.start(None, now=now)
        assert trial.endpoint == 0
        assert served(balancer, None, now=now) == 1
        balancer.end(trial, is_healthy=False, now=now)
        cooldowns.append(cooldown)
    assert cooldowns[0] == FIRST_COOLDOWN_S
    assert cooldowns[-1] == MAX_COOLDOWN_S
    trial = balancer.start(None, now=now + MAX_COOLDOWN_S)
    balancer.end(trial, is_healthy=True, now=now + MAX_COOLDOWN_S)
    assert {served(balancer, name, now=now + MAX_COOLDOWN_S) for name in "xy"} == {0, 1}


def test_a_session_leaves_a_sick_endpoint_and_does_not_come_back() -> None:
    balancer = Balancer(2)
    assert served(balancer, "a", is_healthy=False) == 0
    assert [served(balancer, "a", now=now) for now in (0.0, 0.5, 100.0)] == [1, 1, 1]


def test_requests_that_fail_together_count_as_one_failure() -> None:
    balancer = Balancer(2)
    leases = [balancer.start(None, now=0) for _ in range(100)]
    for lease in leases[::2]:
        balancer.end(lease, is_healthy=False, now=1)
    assert served(balancer, None, now=1 + FIRST_COOLDOWN_S) == 0


def test_when_all_are_sick_the_one_due_first_is_tried() -> None:
    balancer = Balancer(2)
    assert served(balancer, None, now=0, is_healthy=False) == 0
    assert served(balancer, None, now=0.5, is_healthy=False) == 1
    assert served(balancer, None, now=0.6, is_healthy=None) == 0


EVENTS = st.lists(
    st.tuples(st.sampled_from(["start", "end"]), st.integers(0, 9), st.sampled_from([True, False, None])),
    max_size=60,
)


@settings(deadline=None)
@given(count=st.integers(1, 4), events=EVENTS, max_sessions=st.integers(1, 5))
def test_whatever_happens_nothing_is_lost_count_of(
    count: int, events: list[tuple[str, int, bool | None]], max_sessions: int
) -> None:
    balancer = Balancer(count, max_sessions=max_sessions)
    open_leases: list[Lease] = []
    for now, (what, number, is_healthy) in enumerate(events):
        if what == "start":
            resting = [balancer._endpoints[index].cools_down_until > now for index in range(count)]
            lease = balancer.start(str(number) if number else None, now=now)
            assert all(resting) or not resting[lease.endpoint]
            open_leases.append(lease)
        elif open_leases:
            balancer.end(open_leases.pop(number % len(open_leases)), is_healthy=is_healthy, now=now)
        assert sum(endpoint.in_flight for endpoint in balancer._endpoints) == len(open_leases)
        sessions = sum(endpoint.sessions for endpoint in balancer._endpoints)
        assert sessions == len(balancer._index_of_session) <= max_sessions
        assert all(endpoint.in_flight >= 0 and endpoint.sessions >= 0 for endpoint in balancer._endpoints)


def pool(urls: list[str], http: HttpClient, **settings: Any) -> EndpointPool:
    return EndpointPool.of(urls, api_key=KEY, settings=EndpointSettings(**settings), http=lambda: http)


async def chat(endpoints: EndpointPool, session: str | None = None) -> dict[str, Any]:
    return await endpoints.call(lambda client: client.create_chat_completion(messages=[]), session=session)


async def test_a_dead_endpoint_is_passed_over_and_found_again() -> None:
    async with stub_endpoint(lambda _: completion("live")) as live, HttpClient() as http:
        endpoints = pool(["http://127.0.0.1:9/v1", live.url], http, max_tries=2)
        answers = [await chat(endpoints, name) for name in "abcd"]
        assert len(answers) == len(live.requests) == 4


@pytest.mark.parametrize("ending", ["close", "reset", "bytes"])
async def test_one_bad_connection_before_the_first_reply_is_tried_again(ending: str) -> None:
    connections = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        if connections == 1 and ending == "reset":
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        elif connections == 1 and ending == "bytes":
            writer.write(b"HTTP/1.1 200 OK\r\n")
        elif connections > 1:
            await reader.readuntil(b"\r\n\r\n")
            body = json.dumps(completion("hello")).encode()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
            await reader.read()

    async with raw_server(handle) as port, HttpClient() as http:
        assert await chat(pool([f"http://127.0.0.1:{port}/v1"], http))
    assert connections == 2


async def test_an_endpoint_that_was_never_reached_is_not_tried_again() -> None:
    async with HttpClient() as http:
        with pytest.raises(UnreachableError), track_retries() as retries:
            await chat(pool(["http://127.0.0.1:9/v1"], http))
    assert retries.retries == 0


@pytest.mark.parametrize("status", [502, 503, 504, 429, 500])
async def test_what_may_pass_is_tried_again_elsewhere_or_there(status: int) -> None:
    answers = itertools.chain([(status, {"error": "no"}, {"Retry-After": "0"})], itertools.repeat(completion()))
    async with stub_endpoint(lambda _: next(answers)) as stub, HttpClient() as http:
        await chat(pool([stub.url], http))
        assert len(stub.requests) == 2


@pytest.mark.parametrize(("status", "tries"), [(400, 1), (401, 1), (404, 1), (422, 1), (503, 3)])
async def test_tries_are_counted(status: int, tries: int) -> None:
    async with stub_endpoint(lambda _: (status, {"error": f"{KEY} no"})) as stub, HttpClient() as http:
        with pytest.raises(UpstreamError, match=rf"answered {status}: .*\*\*\*\* no") as caught:
            await chat(pool([stub.url], http, max_tries=3))
        assert len(stub.requests) == tries
        assert caught.value.status == status


async def test_a_pause_that_outlasts_the_deadline_is_not_made() -> None:
    async with stub_endpoint(lambda _: (503, {}, {"Retry-After": "50"})) as stub, HttpClient() as http:
        with fresh_deadline(40), pytest.raises(UpstreamError, match="503"):
            await chat(pool([stub.url], http))
        assert len(stub.requests) == 1


async def test_requests_wait_for_an_endpoint_that_answered_before_and_is_down() -> None:
    port = free_port()
    async with HttpClient() as http:
        endpoints = pool([f"http://127.0.0.1:{port}/v1"], http, max_tries=1)
        async with stub_endpoint(lambda _: completion(), port=port):
            await chat(endpoints)
        waiting = asyncio.create_task(chat(endpoints))
        await until(lambda: endpoints._down_since is not None)
        async with stub_endpoint(lambda _: completion(), port=port) as back:
            await waiting
            assert len(back.requests) == 1


async def test_requests_wait_while_a_proxy_says_that_the_endpoint_is_down() -> None:
    answers = itertools.chain(
        [completion()], [(503, {}, {}), (502, {}, {}), (504, {}, {})], itertools.repeat(completion())
    )
    async with stub_endpoint(lambda _: next(answers)) as stub, HttpClient() as http:
        endpoints = pool([stub.url], http, max_tries=1)
        await chat(endpoints)
        await chat(endpoints)
        assert len(stub.requests) == 5


async def test_a_request_that_alone_is_refused_does_not_wait() -> None:
    async def reply(request: Request) -> Any:
        if request.body["messages"]:
            await chat(endpoints)
            return 503, {}
        return completion()

    async with stub_endpoint(reply) as stub, HttpClient() as http:
        endpoints = pool([stub.url], http, max_tries=2)
        await chat(endpoints)
        with pytest.raises(UpstreamError, match="503"):
            await endpoints.call(lambda client: client.create_chat_completion(messages=["bad"]))
        assert sum(bool(request.body["messages"]) for request in stub.requests) == 2


async def test_an_endpoint_that_does_not_come_back_is_given_up() -> None:
    async with HttpClient() as http:
        async with stub_endpoint(lambda _: completion()) as stub:
            endpoints = pool([stub.url], http, max_outage_s=0.6)
            await chat(endpoints)
        for _ in range(2):
            with pytest.raises(UnreachableError, match=str(stub.url.split(":")[2][:-3])):
                await chat(endpoints)


async def test_no_more_requests_than_allowed_are_in_flight_and_waiting_ends_with_the_deadline() -> None:
    async with HttpClient() as http:
        endpoints = pool(["http://127.0.0.1:9/v1"], http, num_concurrent_requests=2)
        running, most, release = 0, 0, asyncio.Event()

        async def send(_client: Any) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await release.wait()
            running -= 1

        async with asyncio.TaskGroup() as group:
            for _ in range(5):
                group.create_task(endpoints.call(send))
            await until(lambda: running == 2)
            with fresh_deadline(0.05), pytest.raises(UpstreamError, match="none of 2 slots") as caught:
                await endpoints.call(send)
            release.set()
        assert (most, running) == (2, 0)
        assert caught.value.cause == "timeout"


async def test_only_time_that_ran_out_at_the_endpoint_counts_as_an_objection() -> None:
    connections = closed = 0

    async def stall(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections, closed
        connections += 1
        await reader.read()
        writer.close()
        closed += 1

    stalling = await asyncio.start_server(stall, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{stalling.sockets[0].getsockname()[1]}/v1"
    async with stalling, HttpClient() as http:
        with track_retries() as stats, pytest.raises((RolloutError, UpstreamError), match=r"within 0\.5 s"):
            async with timeout(0.5, what="The call"):
                await chat(pool([url], http))
        assert stats.throttled == 1
        with track_retries() as stats:
            asking = asyncio.create_task(chat(pool([url], http)))
            await until(lambda: connections == 2)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
        assert stats.throttled == 0
        await until(lambda: closed == 2)


async def test_headers_and_key_go_with_every_request() -> None:
    async with stub_endpoint(lambda _: completion()) as stub, HttpClient() as http:
        await chat(pool([stub.url], http, default_headers={"X-Team": "gym"}))
        sent: Request = stub.requests[0]
        assert sent.headers["Authorization"] == f"Bearer {KEY}"
        assert sent.headers["X-Team"] == "gym"


def test_a_rollout_is_marked_only_if_there_is_a_choice() -> None:
    settings = EndpointSettings()
    one, two = (
        EndpointPool.of(["http://a"] * count, api_key="", settings=settings, http=HttpClient) for count in (1, 2)
    )
    jar = CookieJar()
    assert one.session(jar, "policy_model") is None
    assert not jar
    mark = two.session(jar, "policy_model")
    assert mark == two.session(jar, "policy_model")
    assert list(jar) == ["Endpoint___policy_model"]
