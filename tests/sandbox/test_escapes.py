"""Attacks on the sandbox, each tried against every provider that runs here.

An attack is a Python program. It prints `ESCAPED` and what it got if it succeeds; where the host can see the effect,
the test looks there instead of believing it."""

import asyncio
import os
import platform
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from nemo_gym.common.paths import PARENT_DIR
from nemo_gym.sandbox.contract import Limits, SandboxError
from nemo_gym.sandbox.landlock import UnconfinedProvider
from nemo_gym.sandbox.process import Launch, SandboxProcess
from tests.sandbox.attacks import CALLS, NETWORK, PRIVILEGES, READS, WRITES
from tests.sandbox.providers import SECRET, attack, fails, sandbox


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file of the host's that its user, whoever that is, can read and write."""
    path = tmp_path / "secret.txt"
    path.write_text(SECRET)
    return path


@pytest.fixture
def victim() -> Iterator["subprocess.Popen[bytes]"]:
    """A process of the same user as the sandbox's host side."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", SECRET], env={"TOKEN": SECRET})
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize("what", READS)
async def test_it_cannot_read(box: SandboxProcess, secret: Path, what: str) -> None:
    await fails(box, READS[what], secret)


async def test_the_same_programs_read_and_write_where_nothing_confines_them(secret: Path) -> None:
    made = UnconfinedProvider()
    try:
        box = await made.open()
        for code in (READS["a secret file"], READS["a secret through a link"], WRITES["a new file beside it"]):
            result = await attack(box, code, secret)
            assert "ESCAPED" in (result.stdout or "")
    finally:
        await made.aclose()


async def test_it_cannot_read_the_answers_that_ship_with_environments(box: SandboxProcess) -> None:
    rows = PARENT_DIR / "resources_servers/mcqa/data/example.jsonl"
    await fails(box, "attempt(lambda: open(sys.argv[1]).read())", rows)
    await fails(box, "import importlib.util as u; u.find_spec('nemo_gym') and escaped('package')")


async def test_it_cannot_see_the_files_of_another_sandbox(box: SandboxProcess, request: pytest.FixtureRequest) -> None:
    async with sandbox(request.node.callspec.params["box"]) as other:
        await other.write_file("token.txt", SECRET.encode())
        await other.exec(["/bin/sh", "-c", "cp token.txt $TMPDIR/token.txt"])
        place = ((await other.exec(["/bin/pwd"])).stdout or "").strip()
        code = """
            places = [sys.argv[1], os.environ['TMPDIR'], '/work', '/tmp', '/dev/shm', '/proc/1/cwd']
            for place in places:
                attempt(lambda: open(place + '/token.txt').read())
            for folder, _, names in os.walk('/'):
                if 'token.txt' in names:
                    attempt(lambda: open(folder + '/token.txt').read())
                if folder.startswith(('/proc', '/usr')):
                    break
        """
        await fails(box, code, place)


LANDLOCK_ALLOWS = ("changing rights", "changing times")
"""There is no right for them, and a system call filter sees no paths; docs/sandbox.md says so."""


def state_of(path: Path) -> tuple[object, ...]:
    status = path.stat()
    owners, attributes = (status.st_uid, status.st_gid), os.listxattr(path)
    return path.read_text(), status.st_mode, status.st_mtime, owners, attributes, sorted(os.listdir(path.parent))


@pytest.mark.parametrize("what", WRITES)
async def test_it_cannot_write(box: SandboxProcess, secret: Path, what: str, request: pytest.FixtureRequest) -> None:
    if what in LANDLOCK_ALLOWS and request.node.callspec.params["box"] == "landlock":
        pytest.skip("Landlock has no right for it; docs/sandbox.md says so")
    before = state_of(secret)
    await fails(box, WRITES[what], secret)
    assert state_of(secret) == before


async def test_a_download_does_not_follow_links_out(box: SandboxProcess, secret: Path) -> None:
    await attack(box, "os.symlink(sys.argv[1], 'out')", secret)
    with pytest.raises(SandboxError, match="Could not read"):
        await box.read_file("out")


async def test_an_upload_does_not_follow_links_out(box: SandboxProcess, secret: Path) -> None:
    await attack(box, "os.symlink(sys.argv[1], 'out'); os.symlink(os.path.dirname(sys.argv[1]), 'folder')", secret)
    with pytest.raises(SandboxError, match="Could not write"):
        await box.write_file("out", b"x")
    with pytest.raises(SandboxError, match="Could not write"):
        await box.write_file("folder/new", b"x")
    assert os.listdir(secret.parent) == ["secret.txt"]


async def test_a_download_does_not_wait_for_a_pipe_or_a_device(box: SandboxProcess) -> None:
    await attack(box, "os.mkfifo('pipe'); os.symlink('/dev/zero', 'zero')")
    for name in ("pipe", "zero"):
        with pytest.raises(SandboxError):
            await box.read_file(name)


@pytest.mark.parametrize("name", CALLS)
async def test_the_kernel_refuses(box: SandboxProcess, name: str) -> None:
    x86_64, aarch64, arguments = CALLS[name]
    number = x86_64 if platform.machine() == "x86_64" else aarch64
    code = f"""
        result, error = syscall({", ".join([str(number), *arguments])})
        if result >= 0 or error not in (1, 38):
            escaped((result, error))
    """
    await fails(box, code)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="32-bit calls are an x86 thing")
async def test_the_calls_of_another_architecture_end_the_process(box: SandboxProcess) -> None:
    code = """
        import mmap
        code = mmap.mmap(-1, 4096, prot=7)
        code.write(bytes.fromhex('b814000000cd80c3'))  # mov eax, 20 (getpid of i386); int 0x80; ret
        function = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
        escaped(function())
    """
    result = await attack(box, code)
    assert "ESCAPED" not in (result.stdout or "")
    assert result.return_code == 128 + 31
    await fails(box, "r, e = syscall(0x40000000 + 39)\nif r >= 0: escaped('x32')")


@pytest.mark.parametrize("what", PRIVILEGES)
async def test_it_gains_no_privileges_by(box: SandboxProcess, what: str) -> None:
    await fails(box, PRIVILEGES[what])


async def test_it_cannot_see_or_signal_processes_of_the_host(
    box: SandboxProcess, victim: "subprocess.Popen[bytes]"
) -> None:
    code = """
        target = int(sys.argv[1])
        for pid in (target, os.getppid()):
            attempt(lambda: 'sleep' in open(f'/proc/{pid}/cmdline').read() and 'seen' or open('/nothing'))
            attempt(lambda: open(f'/proc/{pid}/environ').read() if pid == target else open('/nothing'))
        for number in (9, 19, 15):
            attempt(lambda: os.kill(target, number) or 'signal')
        import signal
        attempt(lambda: signal.pidfd_send_signal(os.pidfd_open(target), 9) or 'signal')
    """
    await fails(box, code, victim.pid)
    assert victim.poll() is None
    assert psutil.Process(victim.pid).status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)


def scheduling_of(pid: int) -> tuple[object, ...]:
    process = psutil.Process(pid)
    limits = Path(f"/proc/{pid}/limits").read_text()
    return process.nice(), process.ionice(), process.cpu_affinity(), os.sched_getscheduler(pid), limits


async def test_it_cannot_change_how_other_processes_run(
    box: SandboxProcess, victim: "subprocess.Popen[bytes]"
) -> None:
    code = """
        import resource
        for pid in (int(sys.argv[1]), int(sys.argv[2]), os.getppid()):
            for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_CPU, resource.RLIMIT_CORE):
                attempt(resource.prlimit, pid, limit)
                attempt(resource.prlimit, pid, limit, (0, 0))
            attempt(lambda: os.sched_setaffinity(pid, {0}) or 'affinity')
            attempt(lambda: os.setpriority(os.PRIO_PROCESS, pid, 19) or 'priority')
            attempt(lambda: os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0)) or 'scheduler')
            ioprio_set = {'x86_64': 251, 'aarch64': 30}[os.uname().machine]
            if syscall(ioprio_set, 1, pid, 0x6000)[0] >= 0:
                escaped('I/O priority')
    """
    before = scheduling_of(victim.pid), scheduling_of(box.pid)
    await fails(box, code, victim.pid, box.pid)
    assert (scheduling_of(victim.pid), scheduling_of(box.pid)) == before
    assert (await box.exec(["/bin/echo", "alive"])).stdout == "alive\n"


async def test_it_cannot_stop_or_change_its_own_agent(box: SandboxProcess, request: pytest.FixtureRequest) -> None:
    """Without a PID namespace it can end its own sandbox, which gains nothing; as another user it cannot."""
    code = """
        agent = os.getppid()
        for number in (19, 15, 9, 11):
            try:
                os.kill(agent, number)
            except OSError:
                pass
        attempt(lambda: open(f'/proc/{agent}/mem', 'r+b', 0).read(1))
        attempt(lambda: os.listdir(f'/proc/{agent}/fd'))
    """
    if request.node.callspec.params["box"] == "landlock" and os.getuid():
        result = await attack(box, code)
        assert "ESCAPED" not in f"{result.stdout}{result.stderr}"
        return
    await fails(box, code)
    assert (await box.exec(["/bin/echo", "alive"])).stdout == "alive\n"


async def test_forged_replies_of_a_session_harm_nobody_else(box: SandboxProcess) -> None:
    result = await box.python("import os; os.write(3, b'\\xff' * 100000); os._exit(0)", timeout_s=5)
    assert result.is_lost
    for report in (b'{"stdout":1}', struct.pack(">5I", 4, 0, 0, 0, 0), struct.pack(">2I", 2**31, 0), b""):
        sent = len(report).to_bytes(4, "big") + report
        forged = await box.python(f"import os; os.write(3, {sent!r}); os._exit(0)", timeout_s=5)
        assert forged.is_lost, report
        await box.python("1")  # which may be told of the end of that process
    assert (await box.exec(["/bin/echo", "alive"])).stdout == "alive\n"


HOSTILE_AGENT = """
import os, socket, struct, sys
settings, reply, is_endless, control = int(sys.argv[1]), bytes.fromhex(sys.argv[2]), *map(int, sys.argv[3:])
control = socket.socket(fileno=control)
while settings:
    settings -= len(control.recv(min(settings, 65536)))
control.sendall(struct.pack('>IBI', 0, 0, 1) + b'1')
control.recv(65536)
control.sendall(reply)
try:
    while is_endless:
        control.sendall(bytes(2**20))
    control.recv(65536)
except OSError:
    pass
"""
OUTCOME = struct.pack(">iBBQ", 0, 0, 0, 0)
REPLIES = {
    "no frame": b"\xff" * 9,
    "a frame of four gigabytes": struct.pack(">IBI", 1, 16, 2**32 - 1),
    "a frame that is longer than what was asked for": struct.pack(">IBI", 1, 16, 100 * 2**20),
    "a reply to nobody": struct.pack(">IBI", 7, 16, 4) + struct.pack(">I", 0),
    "an empty reply": struct.pack(">IBI", 1, 16, 0),
    "no fields": struct.pack(">IBI", 1, 16, 4) + struct.pack(">I", 0),
    "too many fields": struct.pack(">IBI", 1, 16, 40_004) + struct.pack(">I", 10_000) + bytes(40_000),
    "fields that are longer than the reply": struct.pack(">IBI", 1, 16, 16) + struct.pack(">4I", 3, 14, 2**31, 2**31),
    "a short head": struct.pack(">IBI", 1, 16, 19) + struct.pack(">4I", 3, 3, 0, 0) + b"abc",
    "a long head": struct.pack(">IBI", 1, 16, 31) + struct.pack(">4I", 3, 15, 0, 0) + OUTCOME + b"x",
}


@pytest.mark.parametrize("what", REPLIES)
async def test_an_agent_that_sends_anything_else_has_broken_its_sandbox(what: str) -> None:
    """The agent here is a process of the test's own: no program gets this far."""
    for call in ("exec", "python"):
        launch = Launch([], {"workdir": "/"})
        arguments = (len(launch.first_bytes()), REPLIES[what].hex(), int("a frame" in what))
        launch.argv += [sys.executable, "-c", HOSTILE_AGENT, *map(str, arguments)]
        made = SandboxProcess(launch, Limits(), {})
        await made.start()
        try:
            if call == "exec":
                assert (await made.exec(["/bin/true"])).error_type == "sandbox"
            else:
                assert (await made.python("1")).is_lost
            assert not made.is_alive
        finally:
            await made.close()


@pytest.mark.parametrize("what", NETWORK)
async def test_it_cannot_reach(
    box: SandboxProcess, tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached: list[object] = []

    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.append(1)
        writer.close()

    abstract = f"gym-{os.getpid()}"
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(f"\0{abstract}")
    monkeypatch.chdir(tmp_path)  # the path of a Unix socket is short
    servers = [
        await asyncio.start_server(serve, "127.0.0.1", 0),
        await asyncio.start_unix_server(serve, "u.sock"),
        await asyncio.start_unix_server(serve, sock=listening),
    ]
    try:
        port = servers[0].sockets[0].getsockname()[1]
        await fails(box, NETWORK[what], port, tmp_path / "u.sock", abstract)
    finally:
        for server in servers:
            server.close()
    assert reached == []
