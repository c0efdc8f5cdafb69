"""Sandboxes that are forked from one process: as separate as others, and what happens when it ends."""

import asyncio
import logging
import os
import signal
import stat
import subprocess
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from nemo_gym.sandbox.bubblewrap import BubblewrapProvider, bubblewrap_path
from nemo_gym.sandbox.contract import SandboxSpec
from nemo_gym.sandbox.local import LocalProvider, host_runtime
from nemo_gym.sandbox.process import HostProcess, SandboxProcess, _pid_of
from tests.sandbox.providers import SECRET, fails, provider, until

OPEN_FILES = """
import os
for fd in range(1024):
    try:
        os.fstat(fd)
    except OSError:
        continue
    print(fd)
"""
BOTH = ("bubblewrap_forked", "landlock")


@asynccontextmanager
async def pair(name: str, **options: Any) -> AsyncIterator[tuple[SandboxProcess, SandboxProcess]]:
    """Two sandboxes of one provider; the first has a secret in its environment and its files."""
    made = provider(name, **options)
    try:
        first = await made.open(SandboxSpec(env={"TOKEN": SECRET}), session=True)
        await first.write_file("token.txt", SECRET.encode())
        yield first, await made.open()
    finally:
        await made.aclose()


def server_of(made: LocalProvider) -> psutil.Process:
    (server,) = (server for server in made._servers.values() if server is not None)
    return psutil.Process(server._popen.pid)


@pytest.mark.parametrize("name", BOTH)
async def test_it_cannot_see_what_the_same_server_gave_to_another(name: str) -> None:
    async with pair(name) as (first, second):
        place = ((await first.exec(["/bin/pwd"])).stdout or "").strip()
        code = """
            for place in (sys.argv[1], '/work', '/tmp', '/dev/shm', '/proc/1/cwd'):
                attempt(lambda: open(place + '/token.txt').read())
            import gc
            kept = [one for one in gc.get_objects() if isinstance(one, dict) and 'TOKEN' in one]
            kept and escaped('settings of another sandbox')
        """
        await fails(second, code, place)


async def test_pseudo_terminals_signals_sockets_and_memory_are_each_ones_own() -> None:
    async with pair("bubblewrap_forked") as (first, second):
        opened = await first.python(
            textwrap.dedent(
                """
                import os, pty, socket
                ends = pty.openpty()
                server = socket.socket(); server.bind(("127.0.0.1", 8123)); server.listen()
                abstract = socket.socket(socket.AF_UNIX); abstract.bind("\\0token"); abstract.listen()
                open("/dev/shm/token", "w").write("x")
                os.ttyname(ends[1])
                """
            )
        )
        assert opened.result == "/dev/pts/0", opened
        code = """
            attempt(lambda: open('/dev/pts/0'))
            attempt(lambda: open('/dev/shm/token'))
            attempt(lambda: __import__('socket').create_connection(('127.0.0.1', 8123), 1))
            attempt(lambda: __import__('socket').socket(1).connect(chr(0) + 'token'))
            if len([one for one in os.listdir('/proc') if one.isdigit()]) > 2: escaped('processes')
        """
        await fails(second, code)


@pytest.mark.parametrize("name", ["bubblewrap", *BOTH])
async def test_a_command_inherits_its_three_streams_and_nothing_else(name: str) -> None:
    made = provider(name)
    try:
        box = await made.open(session=True)
        found = await box.exec(["python3", "-ISc", OPEN_FILES])
        assert (found.stdout or "").split() == ["0", "1", "2"], found
    finally:
        await made.aclose()


@pytest.mark.parametrize("name", BOTH)
async def test_the_end_of_the_server_ends_its_sandboxes_and_the_next_one_gets_a_new_server(name: str) -> None:
    made = provider(name)
    try:
        first = await made.open()
        server = server_of(made)
        os.kill(server.pid, signal.SIGKILL)
        if name == "bubblewrap_forked":
            await until(lambda: not first.is_alive)
        second = await made.open()
        assert (await second.exec(["/bin/echo", "hi"])).stdout == "hi\n"
        assert server_of(made).pid != server.pid
    finally:
        await made.aclose()


def test_an_agent_that_has_ended_before_its_number_is_known_is_not_waited_for() -> None:
    process = subprocess.Popen(["/bin/true"])
    pidfd = os.pidfd_open(process.pid)
    process.wait()
    try:
        asyncio.run(HostProcess(_pid_of(pidfd)).ended())
    finally:
        os.close(pidfd)


async def test_a_server_starts_with_the_second_sandbox() -> None:
    made = provider("bubblewrap")
    try:
        await made.open()
        assert not any(made._servers.values())
        second = await made.open()
        assert second.pid in [one.pid for one in server_of(made).children(recursive=True)]
        await made.open(SandboxSpec(workdir="/testbed"))
        assert sum(server is not None for server in made._servers.values()) == 1
    finally:
        await made.aclose()


async def test_where_namespaces_cannot_be_nested_sandboxes_start_one_by_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    provider("bubblewrap")
    wrapper = tmp_path / "bwrap"
    refusal = 'case "$*" in *CAP_SYS_ADMIN*) exit 1;; esac'
    wrapper.write_text(f'#!/bin/sh\n{refusal}\nexec {bubblewrap_path()} "$@"\n')
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
    made = BubblewrapProvider(executable=str(wrapper), fork_server=True)
    try:
        with caplog.at_level(logging.WARNING):
            boxes = await asyncio.gather(made.open(), made.open())
        assert [(await box.exec(["/bin/echo", "hi"])).stdout for box in boxes] == ["hi\n", "hi\n"]
        assert "are started one by one" in caplog.text
    finally:
        await made.aclose()


async def test_sandboxes_do_not_draw_the_same_random_numbers() -> None:
    pytest.importorskip("numpy")
    async with pair("bubblewrap_forked", packages=("numpy",), preload=("random", "numpy.random")) as boxes:
        code = "import random, numpy; print(random.random(), numpy.random.random(), flush=True)"
        drawn = [(await box.program(code)).stdout for box in boxes]
        numbers = [set((text or "").split()) for text in drawn]
        assert len(numbers[0] | numbers[1]) == 4, drawn


def test_an_interpreter_in_a_folder_that_each_sandbox_has_of_its_own_is_not_forked() -> None:
    """The new folder would hide it. Such a sandbox starts by itself."""
    made, runtime = provider("bubblewrap_forked"), host_runtime()
    usual = replace(runtime, binds=(("/usr", "/usr"),))
    assert made.server_launch(SandboxSpec(), usual) is not None
    hidden = replace(runtime, binds=(("/usr", "/usr"), ("/tmp/conda", "/tmp/conda")))
    assert made.server_launch(SandboxSpec(), hidden) is None
