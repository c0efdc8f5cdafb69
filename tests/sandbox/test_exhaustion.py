"""Attacks that take too much, or stay too long: what they get is limited, and afterwards it is all gone."""

import asyncio
import os
import signal
import sys
from dataclasses import replace

import pytest

from nemo_gym.sandbox.local import SANDBOX_UIDS, host_runtime
from nemo_gym.sandbox.process import SandboxProcess
from tests.sandbox.attacks import DISK, MEMORY
from tests.sandbox.providers import (
    CONFINING,
    LONGER_AND_LONGER,
    SMALL,
    attack,
    fails,
    processes_with,
    provider,
    sandbox,
    until,
)

SYSTEM_PYTHON = "/usr/bin/python{}.{}".format(*sys.version_info)


@pytest.mark.parametrize("name", CONFINING)
async def test_a_daemon_does_not_outlive_its_sandbox(name: str) -> None:
    token = f"daemon-{os.getpid()}-{name}"
    async with sandbox(name) as made:
        code = """
            import signal, subprocess
            subprocess.Popen([sys.executable, '-c', '''
            import os, signal, time
            for number in range(1, 32):
                try: signal.signal(number, signal.SIG_IGN)
                except OSError: pass
            if os.fork(): os._exit(0)
            os.setsid()
            if os.fork(): os._exit(0)
            time.sleep(600)
            '''.replace('\\n            ', '\\n'), sys.argv[1]])
        """
        await attack(made, code, token)
        await until(lambda: processes_with(token))
    assert processes_with(token) == []


FORKS_TWICE = """
import os, time
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
time.sleep(600)
"""


@pytest.mark.parametrize("name", CONFINING)
async def test_a_daemon_that_is_just_forking_does_not_outlive_its_sandbox(name: str) -> None:
    made = provider(name)
    token = f"forking-{os.getpid()}-{name}"
    try:
        for number in range(40):
            box = await made.open()
            await box.exec(["/bin/bash", "-c", f"python3 -ISc '{FORKS_TWICE}' {token} &"])
            await asyncio.sleep(number / 2000)  # up to the time in which it starts and forks
            await box.close()
        assert processes_with(token) == []
    finally:
        await made.aclose()
        for pid in processes_with(token):
            os.kill(int(pid), signal.SIGKILL)


async def test_what_a_command_started_does_not_outlive_its_time(box: SandboxProcess) -> None:
    token = f"late-{os.getpid()}"
    command = f"setsid /bin/bash -c 'sleep 600; :' {token} & sleep 600"
    result = await box.exec(["/bin/bash", "-c", command], timeout_s=0.5)
    assert (result.return_code, result.error_type, result.limit) == (125, "timeout", "time")
    assert processes_with(token) == []


async def test_a_fork_bomb_stays_small_and_ends(box: SandboxProcess) -> None:
    token = f"bomb-{os.getpid()}"
    code = """
        while True:
            try:
                os.fork()
            except OSError:
                pass
    """
    await attack(box, code, token, timeout_s=1.0)
    assert (await box.exec(["/bin/echo", "alive"])).stdout == "alive\n"
    await box.close()
    assert processes_with(token) == []


async def test_threads_are_counted(box: SandboxProcess) -> None:
    code = """
        import threading, time
        count = 0
        try:
            for count in range(5000):
                threading.Thread(target=time.sleep, args=(3,), daemon=True).start()
            escaped(count)
        except RuntimeError:
            pass
        os._exit(0)
    """
    result = await attack(box, code)
    assert "ESCAPED" not in (result.stdout or "")


@pytest.mark.parametrize("what", MEMORY)
async def test_memory_cannot_be_exhausted_by(box: SandboxProcess, what: str) -> None:
    result = await attack(box, MEMORY[what])
    assert "ESCAPED" not in (result.stdout or "")
    assert (await box.exec(["/bin/echo", "alive"])).stdout == "alive\n"


async def test_a_fifth_of_a_gigabyte_is_not_the_machine(box: SandboxProcess) -> None:
    result = await attack(box, "keep = bytearray(150 * 2**20); print('fine')")
    assert result.stdout == "fine\n"


@pytest.mark.parametrize("what", DISK)
async def test_the_disk_cannot_be_filled_by(box: SandboxProcess, what: str) -> None:
    result = await attack(box, DISK[what])
    assert "ESCAPED" not in (result.stdout or "")
    assert (await box.exec(["/bin/echo", "alive"])).stdout == "alive\n"


async def test_open_files_are_counted(box: SandboxProcess) -> None:
    await fails(box, "fds = []\nattempt(lambda: [fds.append(os.open('/dev/null', 0)) for _ in range(70)])")


async def test_output_is_cut(box: SandboxProcess) -> None:
    result = await attack(box, "for _ in range(64): sys.stdout.write('x' * 2**20)")
    assert (len(result.stdout or ""), result.is_truncated) == (2**20, True)


async def test_endless_output_ends_with_the_time(box: SandboxProcess) -> None:
    for timeout_s in LONGER_AND_LONGER:
        result = await box.exec(["/usr/bin/yes"], timeout_s=timeout_s)
        assert result.error_type == "timeout"
        if len(result.stdout or "") == 2**20:
            break
    assert result.is_truncated


@pytest.mark.parametrize("name", CONFINING)
async def test_cpu_time_is_that_of_all_processes_together(name: str) -> None:
    async with sandbox(name, cpu_s=1.0) as made:
        code = """
            for _ in range(8):
                if not os.fork():
                    while True: pass
            os.wait()
            escaped('eight burners')
        """
        result = await attack(made, code, timeout_s=60)
        assert "ESCAPED" not in (result.stdout or "")
        assert result.limit == "cpu"


@pytest.mark.parametrize("name", CONFINING)
async def test_cpu_time_is_also_that_of_processes_that_have_ended(name: str) -> None:
    async with sandbox(name, cpu_s=1.0) as made:
        code = """
            import time
            while True:
                if not os.fork():
                    while time.process_time() < 0.1: pass
                    os._exit(0)
                os.wait()
        """
        assert (await attack(made, code, timeout_s=60)).limit == "cpu"


@pytest.mark.parametrize("name", CONFINING)
async def test_waiting_is_no_cpu_time(name: str) -> None:
    async with sandbox(name, cpu_s=1.0) as made:
        result = await attack(made, "import time; time.sleep(3); print('done')", timeout_s=60)
        assert (result.stdout, result.limit) == ("done\n", None)


@pytest.mark.parametrize("name", CONFINING)
async def test_what_stays_in_the_background_is_still_limited(name: str) -> None:
    token = f"burner-{os.getpid()}-{name}"
    async with sandbox(name, cpu_s=1.0) as made:
        done = await made.exec(["/bin/bash", "-c", f"(exec -a {token} bash -c 'while :; do :; done' {token}) &"])
        assert done.return_code == 0
        await until(lambda: not processes_with(token))
        assert (await made.exec(["/bin/echo", "alive"])).stdout == "alive\n"


BURNER = """
import os, time
kept = 1
if not os.fork():
    time.sleep(0.2)
    os.execv("/bin/bash", ["bash", "-c", "> begun; while :; do :; done", "{token}"])
"""


@pytest.mark.parametrize("name", CONFINING)
async def test_what_a_session_leaves_in_the_background_is_limited_and_the_session_kept(name: str) -> None:
    token = f"left-{os.getpid()}-{name}"
    async with sandbox(name, session=True, cpu_s=1.0) as made:
        assert (await made.python(BURNER.format(token=token))).error is None
        await made.exec(["/bin/bash", "-c", "until [ -e begun ]; do sleep 0.02; done"])
        await until(lambda: not processes_with(token))
        assert (await made.python("kept")).result == "1"


@pytest.mark.parametrize("name", CONFINING)
async def test_what_a_command_leaves_beside_a_session_is_limited(name: str) -> None:
    token = f"beside-{os.getpid()}-{name}"
    async with sandbox(name, session=True, cpu_s=1.0) as made:
        await made.exec(["/bin/bash", "-c", f"(exec bash -c 'while :; do :; done' {token}) &"])
        await until(lambda: not processes_with(token))


async def test_half_a_reply_of_a_session_does_not_stop_the_clock(box: SandboxProcess) -> None:
    await box.python("import os, signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)")
    result = await box.python("os.write(3, b'\\0')\nwhile True: pass", timeout_s=0.5)
    assert (result.limit, result.is_lost) == ("time", True)
    assert (await box.python("1 + 1")).result == "2"


async def test_a_session_that_does_not_read_does_not_stop_the_clock(box: SandboxProcess) -> None:
    await box.python(FORGED_REPLY)
    result = await box.python("#" * 2**20, timeout_s=0.5)
    assert result.limit == "time"
    assert (await box.exec(["/bin/echo", "alive"])).stdout == "alive\n"


FORGED_REPLY = """
import os, struct
reply = struct.pack(">6I", 5, 0, 0, 0, 0, 0)  # five empty fields
os.write(3, len(reply).to_bytes(4, "big") + reply)
while True:
    try:
        while True: pass
    except KeyboardInterrupt:
        pass
"""


INTRUDER = """
import os, time
if not os.fork():
    while not os.path.exists("call_ended"): time.sleep(0.01)
    os.write(3, b"x")
    os.execv("/bin/bash", ["bash", "-c", "sleep 600; :", "{token}"])
"""


async def test_a_session_that_ended_between_calls_is_reported_as_lost(box: SandboxProcess) -> None:
    token = f"intruder-{os.getpid()}"
    assert (await box.python(INTRUDER.format(token=token))).error is None
    await box.write_file("call_ended", b"")
    await until(lambda: processes_with(token))
    assert (await box.python("1 + 1")).is_lost
    assert (await box.python("1 + 1")).result == "2"


@pytest.mark.skipif(
    os.geteuid() != 0 or not os.path.exists(SYSTEM_PYTHON),
    reason="only root can give a sandbox a user of its own, who needs a Python that every user can run",
)
@pytest.mark.parametrize(
    "what",
    [
        "several files",
        "files in a folder that nobody may read",
        "files without a name",
        "files without a name of a process that lets nobody look",
    ],
)
async def test_the_disk_cannot_be_filled_by_a_user_of_its_own(what: str) -> None:
    made = provider("landlock", limits=SMALL, fork_server=False)
    made._runtime = replace(host_runtime(), python=SYSTEM_PYTHON)
    try:
        box = await made.open()
        assert int((await box.exec(["/usr/bin/id", "-u"])).stdout or "0") in SANDBOX_UIDS
        result = await attack(box, DISK[what])
        assert (result.limit, "ESCAPED" in (result.stdout or "")) == ("disk", False)
    finally:
        await made.aclose()
