"""Servers as processes: started, killed, started again, stopped, and never left behind."""

import asyncio
import os
import re
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from omegaconf import DictConfig
from prometheus_client.parser import text_string_to_metric_families

from nemo_gym.client.server_client import CookieJar, ServerReply, base_url, get_from_head
from nemo_gym.common.metrics import decode_families, exposition, worker_loads
from nemo_gym.config.loading import load_config
from nemo_gym.errors import HeadServerError, PortError, RolloutError, StartupError
from nemo_gym.runtime.launcher import MAX_DEATHS, Launcher, Restarts
from tests.commands import free_port
from tests.polling import until

SERVERS = Path(__file__).parent.parent / "servers"


@pytest.fixture(autouse=True)
def _in_the_folder_of_test_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(SERVERS)


def environment(implementation: str, **settings: Any) -> dict[str, Any]:
    block = {"entrypoint": "app.py", "domain": "other", **settings}
    return {"resources_servers": {implementation: block}}


def config_of(**servers: dict[str, Any]) -> DictConfig:
    head = {"host": "127.0.0.1", "port": free_port()}
    return load_config(initial={"head_server": head, **servers}, use_dotenv=False, fill_ports=False)


@asynccontextmanager
async def launched(**servers: dict[str, Any]) -> AsyncIterator[tuple[Launcher, list[str]]]:
    lines: list[str] = []
    children = set(psutil.Process().children(recursive=True))
    async with Launcher(config_of(**servers), echo=lines.append) as launcher:
        yield launcher, lines
    assert set(psutil.Process().children(recursive=True)) <= children


async def pid_of(launcher: Launcher, server: str) -> int:
    async with launcher.client() as client:
        return int((await client.call(server, "/pid", answer=ServerReply)).content())


async def test_servers_share_a_process_unless_one_asks_for_its_own() -> None:
    servers = {name: environment("breakable") for name in ("one", "two")}
    async with launched(**servers, alone=environment("breakable", isolation="process")) as (launcher, _):
        one, two, alone = [await pid_of(launcher, name) for name in ("one", "two", "alone")]
        assert one == two != alone
        assert os.getpid() not in (one, alone)
        assert launcher.health() == {"one": "up", "two": "up", "alone": "up"}


async def test_programs_that_servers_start_do_not_get_the_pipe_of_the_worker() -> None:
    async with launched(one=environment("breakable")) as (launcher, _), launcher.client() as client:
        found = await client.call("one", "/stdin_of_program", answer=ServerReply)
    assert found.content() == b"/dev/null"


async def test_a_killed_worker_is_named_and_started_again_on_the_same_port(caplog: pytest.LogCaptureFixture) -> None:
    async with launched(one=environment("breakable"), two=environment("breakable")) as (launcher, _):
        before = await pid_of(launcher, "one")
        ports = [instance.port for instance in launcher.running()]
        os.kill(before, signal.SIGKILL)
        after = await asyncio.wait_for(pid_of_living(launcher, "one", not_pid=before), 60)
        assert after != before
        assert [instance.port for instance in launcher.running()] == ports
    assert re.search(r"'one', 'two' .*SIGKILL", caplog.text)


async def pid_of_living(launcher: Launcher, server: str, *, not_pid: int) -> int:
    """The kernel may hand a request to the dying process; that request is lost, the next one is not."""
    while True:
        try:
            pid = await pid_of(launcher, server)
        except RolloutError:
            continue
        if pid != not_pid:
            return pid


async def test_a_worker_that_dies_in_a_request_fails_that_request_at_once() -> None:
    async with launched(one=environment("breakable")) as (launcher, _), launcher.client() as client:
        with pytest.raises(RolloutError) as caught:
            await asyncio.wait_for(client.call("one", "/die", answer=ServerReply, cause="tool"), 60)
        assert (caught.value.cause, caught.value.code, caught.value.server) == ("environment", "process_lost", "one")
        assert "closed the connection" in str(caught.value)


async def test_a_server_that_cannot_start_stops_everything_and_shows_why() -> None:
    with pytest.raises(StartupError, match=r"unloadable/app\.py:3: .*ModuleNotFoundError: .*no_such_module"):
        async with launched(good=environment("breakable", isolation="process"), bad=environment("unloadable")):
            pass


async def test_a_config_that_does_not_fit_stops_everything_at_once() -> None:
    broken = environment("legacy_ledger", currency={"not": "a text"})
    place = r"ledger\.resources_servers\.legacy_ledger does not fit LedgerConfig"
    with pytest.raises(StartupError, match=place + r":\s+- currency: .*string"):
        async with launched(ledger=broken):
            pass


async def test_a_taken_port_is_named() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(PortError, match=rf"Cannot listen on 127\.0\.0\.1:{port}: .* Give 'one' another port"):
            async with launched(one=environment("breakable", port=port)):
                pass
        config = config_of(one=environment("breakable"))
        config.head_server.port = port
        with pytest.raises(PortError, match=r"ng_stop.*\+head_server.port="):
            async with Launcher(config, echo=print):
                pass


async def test_two_servers_cannot_have_one_port() -> None:
    block = environment("breakable", port=free_port())
    with pytest.raises(PortError, match="'two' another port"):
        async with launched(one=block, two=block):
            pass


async def test_servers_beyond_loopback_ask_for_the_token_that_the_client_has() -> None:
    async with launched(one=environment("breakable", host="0.0.0.0")) as (launcher, _):
        assert launcher.token
        async with launcher.client() as client:
            assert (await client.send("one", "/pid")).status == 200
            client.token = None
            assert (await client.send("one", "/pid")).status == 401


async def test_their_head_server_shows_nothing_but_that_it_is_up_without_the_token() -> None:
    async with launched(one=environment("breakable", host="0.0.0.0")) as (launcher, _):
        url = base_url(launcher.config.head_server.host, launcher.config.head_server.port)
        assert await asyncio.to_thread(get_from_head, url, "/health") == b'{"status":"ok"}'
        assert b'"one":"up"' in await asyncio.to_thread(get_from_head, url, "/health", token=launcher.token)
        with pytest.raises(HeadServerError, match="401"):
            await asyncio.to_thread(get_from_head, url, "/run")
        assert b'"pid":' in await asyncio.to_thread(get_from_head, url, "/run", token=launcher.token)


async def test_stopping_does_not_wait_for_a_handler_that_never_ends() -> None:
    async with launched(one=environment("breakable")) as (launcher, lines):
        client = launcher.client()
        hanging = asyncio.create_task(client.send("one", "/hang"))
        await until(lambda: any("it hangs" in line for line in lines))
    (ended,) = await asyncio.gather(hanging, return_exceptions=True)
    assert isinstance(ended, RolloutError) or (isinstance(ended, ServerReply) and ended.status >= 500)
    await client.http.close()


async def test_sessions_survive_many_requests_and_end_with_the_rollout() -> None:
    async with launched(ledger=environment("legacy_ledger")) as (launcher, _), launcher.client() as client:
        jar = CookieJar()
        async with client.sessions(jar):
            await client.call("ledger", "/seed_session", {"opening_balance": 5}, answer=ServerReply, jar=jar)
            booked = await client.call("ledger", "/book", {"amount": 1}, answer=ServerReply, jar=jar)
            assert booked.content() == b'{"balance":6,"currency":"EUR"}'
        assert not jar


def test_a_worker_that_keeps_dying_is_given_up() -> None:
    restarts = Restarts()
    pauses = [restarts.pause_after(float(second)) for second in range(MAX_DEATHS + 1)]
    assert None not in pauses[:-1]
    assert pauses[-1] is None
    assert Restarts().pause_after(0.0) is not None


def test_deaths_long_ago_do_not_count() -> None:
    restarts = Restarts()
    assert all(restarts.pause_after(second * 100.0) is not None for second in range(50))


async def test_the_head_server_reports_the_metrics_of_every_worker() -> None:
    servers = {"one": environment("breakable"), "alone": environment("breakable", isolation="process")}
    async with launched(**servers) as (launcher, _):
        await pid_of(launcher, "alone")
        url = base_url(launcher.config.head_server.host, launcher.config.head_server.port)
        page = (await asyncio.to_thread(get_from_head, url, "/metrics")).decode()
        families = decode_families(await asyncio.to_thread(get_from_head, url, "/metrics.json"))
    assert {labels["worker"] for family in families for _, labels, _ in family.samples} == {"0", "1", "head"}
    assert [load["is_up"] for load in worker_loads(families) if load["worker"] != "head"] == [1, 1]
    samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    assert {sample.labels["worker"] for sample in samples if sample.name == "process_open_fds"} == {"0", "1", "head"}
    assert [sample.value for sample in samples if sample.name == "nemo_gym_worker_up"] == [1, 1]
    requests = [sample for sample in samples if sample.name == "nemo_gym_requests_total" and sample.value]
    assert [sample.labels["server"] for sample in requests] == ["alone"]


def relative(folder: Path) -> str:
    return os.path.relpath(folder)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"isolation": "process"}], ids=["shared", "isolated"])
async def test_every_worker_of_one_server_has_metrics_and_a_profile_of_its_own(
    settings: dict[str, str], tmp_path: Path
) -> None:
    config = config_of(one=environment("busy", **settings))
    config.update(num_workers=2, profiling_enabled=True, profiling_results_dirpath=relative(tmp_path))
    async with Launcher(config, echo=lambda _line: None) as launcher:
        page = exposition(await launcher.metrics()).decode()
    assert 'nemo_gym_worker_up{worker="0"} 1' in page
    assert 'nemo_gym_sessions{server="one",worker="1"} 0' in page
    assert sorted(os.listdir(tmp_path)) == [
        *("BusyResourcesServer___one___worker_0.log", "BusyResourcesServer___one___worker_1.log"),
        *("worker_0_flame_graph.html", "worker_1_flame_graph.html"),
    ]
