"""A handler that holds up the event loop is noticed and named; nobody else is."""

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.common.deadline import timeout
from nemo_gym.runtime.stack import ServerSpec
from nemo_gym.server import guard_process
from nemo_gym.server.guard_process import SERVING, WATCHDOG_SIGNAL, read_stack, signal_main_thread
from nemo_gym.server.watchdog import BLOCKED_AFTER_S, Handlers, Watchdog, register_handler
from nemo_gym.testing import running_servers, server_spec
from tests.commands import ng
from tests.polling import until
from tests.stacks import agent_config

SERVERS = Path(__file__).parent.parent / "servers" / "resources_servers"
LONG_S = 4 * BLOCKED_AFTER_S

BLOCKING = """
import time

from nemo_gym.base_resources_server import BaseVerifyRequest, SimpleResourcesServer


class SlowResourcesServer(SimpleResourcesServer):
    async def verify(self, body: BaseVerifyRequest) -> float:
        time.sleep(2)
        return 1.0
"""
CONFIG = agent_config("slow", replies=[{"say": "Done."}])


def environment(implementation: str, *, name: str = "environment") -> ServerSpec:
    return server_spec(name, "resources_servers", implementation, folder=SERVERS / implementation, domain="other")


@pytest.mark.parametrize(
    ("implementation", "path", "body"),
    [("breakable", "/freeze", {"seconds": LONG_S}), ("legacy_ledger", "/audit", {"amount": LONG_S})],
)
async def test_a_handler_that_blocks_the_loop_is_named_with_its_place(
    implementation: str, path: str, body: dict[str, float], caplog: pytest.LogCaptureFixture
) -> None:
    name = f"named_{implementation}"  # of its own: a line that another test has logged is not logged again so soon
    async with running_servers([environment(implementation, name=name)]) as client:
        assert (await client.post(name, path, json=body)).status == 200
        local = client.local[name]
        await until(lambda: any(health["seconds"] for health in local.blocked().values()))
        blocked = local.blocked()
    assert list(blocked) == [f"{name}{path}"]
    assert blocked[f"{name}{path}"]["times"] == 1
    assert blocked[f"{name}{path}"]["seconds"] >= BLOCKED_AFTER_S
    assert f"{name}{path} blocks the event loop" in caplog.text
    assert f"{implementation}/app.py" in caplog.text


async def test_the_server_reports_which_handlers_block() -> None:
    async with running_servers([environment("breakable")], transport="http") as client:
        assert "blocked" not in await (await client.get("environment", "/health")).json()
        await client.post("environment", "/freeze", json={"seconds": LONG_S})
        health = await (await client.get("environment", "/health")).json()
    assert health["status"] == "ok"
    assert health["blocked"]["environment/freeze"]["times"] == 1


async def test_a_block_in_what_two_servers_share_is_reported_for_both() -> None:
    async with running_servers([environment("breakable", name="one"), environment("breakable", name="two")]) as client:
        await client.post("two", "/freeze", json={"seconds": LONG_S})
        await until(client.local["one"].blocked)
        assert list(client.local["one"].blocked()) == ["one/freeze or two/freeze"]


async def test_a_handler_is_blamed_and_not_the_one_that_called_it() -> None:
    def verify() -> None:
        time.sleep(LONG_S)

    async def run() -> None:
        time.sleep(0.9 * BLOCKED_AFTER_S)  # noqa: ASYNC251 - still there when the loop is first suspected
        verify()

    handlers: Handlers = {}
    called, caller = register_handler(handlers, "verify", verify), register_handler(handlers, "run", run)
    assert called
    assert caller
    with Watchdog(handlers):
        await run()
        await until(lambda: called.seconds or caller.seconds)
    assert (called.times, caller.times) == (1, 0)


async def test_a_plain_function_may_take_its_time() -> None:
    async with running_servers([environment("breakable")]) as client:
        await client.post("environment", "/block", json={"seconds": LONG_S})
        await asyncio.sleep(0.1)
        assert client.local["environment"].blocked() == {}


async def test_nobody_is_blamed_for_a_loop_that_has_much_to_do() -> None:
    async with running_servers([environment("breakable")]) as client:
        short = [client.post("environment", "/freeze", json={"seconds": 0.02}) for _ in range(60)]
        await asyncio.gather(*short)
        await asyncio.sleep(0.1)
        assert client.local["environment"].blocked() == {}


OWN = f"def callback():\n    time.sleep({LONG_S})\n    ended.set()"
"""As the timers of this package, if threads of servers keep them from Python's global lock."""


async def test_a_callback_of_this_package_that_is_late_is_not_interrupted() -> None:
    ended = asyncio.Event()
    scope: dict[str, Any] = {"__name__": "nemo_gym.example", "time": time, "ended": ended}
    exec(OWN, scope)
    with Watchdog({}, max_blocked_s=BLOCKED_AFTER_S):
        async with timeout(LONG_S * 4):
            asyncio.get_running_loop().call_soon(scope["callback"])
            await ended.wait()


def test_a_collection_ends_with_the_handlers_that_blocked(tmp_path: Path) -> None:
    folder = tmp_path / "resources_servers" / "slow"
    folder.mkdir(parents=True)
    (folder / "app.py").write_text(BLOCKING)
    (tmp_path / "config.yaml").write_text(CONFIG)
    (tmp_path / "rows.jsonl").write_text(json.dumps({"responses_create_params": {"input": "Hello."}}) + "\n")
    done = ng(
        "ng_collect_rollouts",
        "+config_paths=[config.yaml]",
        "+agent_name=agent",
        "+input_jsonl_fpath=rows.jsonl",
        "+output_jsonl_fpath=out.jsonl",
        "+head_server.port=1",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "slow/verify blocks" in done.stderr
    assert re.search("slow/verify blocked .*: 1", done.stdout)
    assert json.loads((tmp_path / "out_metrics.json").read_text())["blocked_handlers"]["slow/verify"]["times"] == 1


def test_a_monitor_that_is_stopped_between_two_looks_ends() -> None:
    monitor = Watchdog({})

    class TimesOutAsItIsSet(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            super().wait()
            monitor._responded.wait()
            return False

    monitor._stopped = TimesOutAsItIsSet()

    async def start_and_stop() -> None:
        with monitor:
            pass

    running = threading.Thread(target=lambda: asyncio.run(start_and_stop()), daemon=True)
    running.start()
    running.join(30)
    assert not running.is_alive()


BLOCKED_BY_C_CODE = """
import faulthandler, signal, sys, threading, time
from nemo_gym.server.guard_process import STACK_SIGNAL, WATCHDOG_SIGNAL
signal.signal(WATCHDOG_SIGNAL, lambda *_: None)
faulthandler.register(STACK_SIGNAL, file=sys.stdout, all_threads=False)

def watch():
    while True:
        time.sleep(0.01)

def compute():
    print("started", flush=True)
    sum(range(10**12))

threading.Thread(target=watch, daemon=True).start()
compute()
"""


def test_a_guard_kills_what_blocks_also_if_nobody_reads_its_reports() -> None:
    with contextlib.ExitStack() as opened:
        blocked = opened.enter_context(
            subprocess.Popen([sys.executable, "-c", BLOCKED_BY_C_CODE], stdout=subprocess.PIPE)
        )
        opened.callback(blocked.kill)
        (beats, beat), (stacks, stack), (interrupts, interrupt), (reports, report) = (os.pipe() for _ in range(4))
        for fd in (beat, stack, interrupt):
            opened.callback(os.close, fd)
        os.write(beat, SERVING)
        os.close(reports)
        program = [sys.executable, "-I", "-S", guard_process.__file__]
        fds = (beats, stacks, interrupts)
        guard = subprocess.Popen([*program, str(blocked.pid), "0.5", *map(str, fds)], pass_fds=fds, stderr=report)
        opened.callback(guard.wait, 60)
        for fd in (*fds, report):
            os.close(fd)
        assert blocked.wait(60) == -signal.SIGKILL


def test_a_guard_reads_the_stack_of_the_main_thread_on_a_busy_machine() -> None:
    core = {min(os.sched_getaffinity(0))}
    with contextlib.ExitStack() as opened:
        for _ in range(3):
            busy = opened.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            opened.callback(busy.kill)
            os.sched_setaffinity(busy.pid, core)
        blocked = subprocess.Popen([sys.executable, "-c", BLOCKED_BY_C_CODE], stdout=subprocess.PIPE, bufsize=0)
        opened.enter_context(blocked)
        opened.callback(blocked.kill)
        assert blocked.stdout
        assert blocked.stdout.readline() == b"started\n"
        os.sched_setaffinity(blocked.pid, core)
        for _ in range(10):
            signal_main_thread(blocked.pid, WATCHDOG_SIGNAL)
            functions = [function for _, _, function in read_stack(blocked.pid, blocked.stdout.fileno())]
            assert functions == ["compute", "<module>"]
        blocked.kill()
        with pytest.raises(ProcessLookupError):
            read_stack(blocked.pid, blocked.stdout.fileno())
