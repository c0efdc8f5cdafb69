"""Attacks on the sandbox, each tried against every provider that runs here.

An attack is a Python program. It prints `ESCAPED` and what it got if it succeeds; where the host can see the effect,
the test looks there instead of believing it."""

import asyncio
import os
import platform
import socket
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from nemo_gym.common.paths import PARENT_DIR
from nemo_gym.sandbox.contract import ExecResult
from nemo_gym.sandbox.errors import SandboxError
from nemo_gym.sandbox.process import SandboxProcess
from nemo_gym.sandbox.unconfined import UnconfinedProvider
from tests.sandbox.providers import CONFINING, sandbox

SECRET = "canary-7c1f"

PRELUDE = """
import ctypes, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def syscall(number, *args):
    result = libc.syscall(ctypes.c_long(number), *(ctypes.c_long(a) if isinstance(a, int) else a for a in args))
    return result, ctypes.get_errno()
def escaped(what):
    print("ESCAPED", what, flush=True)
def attempt(function, *args):
    try:
        result = function(*args)
    except (OSError, ValueError, MemoryError) as error:
        return None
    escaped(repr(result)[:200])
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the local providers need Linux")


@pytest.fixture(params=CONFINING)
async def box(request: pytest.FixtureRequest) -> AsyncIterator[SandboxProcess]:
    limits = {"memory_mb": 256, "processes": 24, "disk_mb": 16, "files": 2000, "open_files": 64, "cpu_s": 5.0}
    async with sandbox(request.param, **limits) as made:
        yield made


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


async def attack(box: SandboxProcess, code: str, *args: object, timeout_s: float = 20.0) -> ExecResult:
    program = PRELUDE + textwrap.dedent(code)
    return await box.program(program, *(str(one) for one in args), timeout_s=timeout_s)


async def fails(box: SandboxProcess, code: str, *args: object) -> None:
    """The attack ran, and got nothing."""
    result = await attack(box, code, *args)
    output = f"{result.stdout}{result.stderr}"
    assert "ESCAPED" not in output, output
    assert SECRET not in output
    assert result.error_type is None, result


def processes_with(token: str) -> list[str]:
    """Processes of the host whose command line holds a token."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if token.encode() in words:
            found.append(path.parent.name)
    return found


READS = {
    "a secret file": "attempt(lambda: open(sys.argv[1]).read())",
    "a secret through a link": "os.symlink(sys.argv[1], 'link'); attempt(lambda: open('link').read())",
    "a secret through a hard link": "attempt(lambda: os.link(sys.argv[1], 'hard') or open('hard').read())",
    "the folder of the secret": "attempt(os.listdir, os.path.dirname(sys.argv[1]))",
    "a secret through /proc/1/root": "attempt(lambda: open('/proc/1/root' + sys.argv[1]).read())",
    "a secret through /proc/self/root": "attempt(lambda: open('/proc/self/root/../..' + sys.argv[1]).read())",
    "a secret through the parent's folder": "attempt(lambda: open(f'/proc/{os.getppid()}/cwd' + sys.argv[1]).read())",
    "a secret through dots": "attempt(lambda: open('../' * 30 + sys.argv[1].lstrip('/')).read())",
    "password hashes": "attempt(lambda: open('/etc/shadow').read())",
    "accounts of the host": """
        attempt(lambda: [line for line in open('/etc/passwd') if 'sandbox' not in line and 'nobody' not in line
                         and 'root' not in line] or open('/nothing'))
    """,
    "the kernel's log": "attempt(lambda: os.read(os.open('/dev/kmsg', os.O_RDONLY | os.O_NONBLOCK), 100))",
    "physical memory": "attempt(lambda: open('/dev/mem', 'rb').read(16))",
    "a raw disk": """
        for name in ('vda', 'sda', 'nvme0n1', 'xvda', 'dm-0', 'loop0'):
            attempt(lambda: open(f'/dev/{name}', 'rb').read(16))
    """,
    "a raw disk through a node of its own": """
        import stat
        attempt(lambda: os.mknod('disk', stat.S_IFBLK | 0o666, os.makedev(254, 0)) or open('disk', 'rb').read(16))
    """,
    "the home folder of root": "attempt(lambda: [n for n in os.listdir('/root') if n != '.pyenv'] or open('/nothing'))",
    "/home, /var, /run, /srv, /mnt, /sys": """
        for path in ('/home', '/var', '/run', '/srv', '/mnt', '/opt', '/media', '/sys', '/boot'):
            attempt(os.listdir, path)
    """,
    "open files it was given": """
        for fd in range(3, 64):
            try:
                os.fstat(fd)
            except OSError:
                continue
            escaped(fd)
    """,
    "the host's environment": """
        import glob
        for path in ['/proc/self/environ', *glob.glob('/proc/[0-9]*/environ')]:
            try:
                content = open(path, 'rb').read()
            except OSError:
                continue
            if b'canary' in content or b'PYTEST' in content:
                escaped(path)
        if 'PYTEST_CURRENT_TEST' in os.environ:
            escaped('environ')
    """,
    "a file by its handle": """
        buffer = ctypes.create_string_buffer(bytes([128, 0, 0, 0]) + bytes(140))
        mount = ctypes.c_int()
        number = {'x86_64': (303, 304), 'aarch64': (264, 265)}[os.uname().machine]
        if syscall(number[0], -100, b'/usr', buffer, ctypes.byref(mount), 0)[0] == 0:
            if syscall(number[1], os.open('/usr', 0), buffer, 0)[0] >= 0:
                escaped('handle')
    """,
}


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
    assert rows.exists()
    await fails(box, "attempt(lambda: open(sys.argv[1]).read())", rows)
    await fails(box, "import importlib.util as u; u.find_spec('nemo_gym') and escaped('package')")


async def test_it_cannot_see_the_files_of_another_sandbox(box: SandboxProcess, request: pytest.FixtureRequest) -> None:
    async with sandbox(request.node.callspec.params["box"]) as other:
        await other.write_file("token.txt", SECRET.encode())
        await other.exec(["/bin/sh", "-c", "cp token.txt $TMPDIR/token.txt"])
        place = (await other.exec(["/bin/pwd"])).stdout.strip()
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


WRITES = {
    "a file of the host": "attempt(lambda: open(sys.argv[1], 'w').write('x'))",
    "a new file beside it": "attempt(lambda: open(sys.argv[1] + '.new', 'w').write('x'))",
    "through a link": "os.symlink(sys.argv[1], 'link'); attempt(lambda: open('link', 'w').write('x'))",
    "system folders": """
        for path in ('/usr/x', '/usr/local/bin/x', '/etc/x', '/bin/x', '/lib/x', '/x', '/root/x', '/dev/x', '/packages/x'):
            attempt(lambda: open(path, 'w').write('x'))
    """,
    "the interpreter": "attempt(lambda: open(os.path.realpath(sys.executable), 'r+b').read(1))",
    "kernel settings": """
        for path in ('/proc/sys/kernel/core_pattern', '/proc/sysrq-trigger', '/proc/sys/vm/drop_caches'):
            attempt(lambda: os.write(os.open(path, os.O_WRONLY), b'x'))
    """,
    "deleting": "attempt(os.unlink, sys.argv[1])",
    "renaming": "attempt(os.rename, sys.argv[1], sys.argv[1] + '.moved')",
    "truncating": "attempt(os.truncate, sys.argv[1], 0)",
    "changing rights": "attempt(os.chmod, sys.argv[1], 0o777)",
}


@pytest.mark.parametrize("what", WRITES)
async def test_it_cannot_write(box: SandboxProcess, secret: Path, what: str, request: pytest.FixtureRequest) -> None:
    if what == "changing rights" and request.node.callspec.params["box"] == "landlock":
        pytest.skip("Landlock has no right for chmod; docs/sandbox.md says so")
    before = sorted(secret.parent.iterdir())
    mode = secret.stat().st_mode
    await fails(box, WRITES[what], secret)
    assert secret.read_text() == SECRET
    assert (sorted(secret.parent.iterdir()), secret.stat().st_mode) == (before, mode)


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
    assert [path.name for path in secret.parent.iterdir()] == ["secret.txt"]


async def test_a_download_does_not_wait_for_a_pipe_or_a_device(box: SandboxProcess) -> None:
    await attack(box, "os.mkfifo('pipe'); os.symlink('/dev/zero', 'zero')")
    for name in ("pipe", "zero"):
        with pytest.raises(SandboxError):
            await box.read_file(name)


# name: (x86_64, aarch64, arguments)
CALLS = {
    "mount": (165, 40, ("b'none'", "b'/tmp'", "b'tmpfs'", "0", "0")),
    "umount2": (166, 39, ("b'/usr'", "2")),
    "pivot_root": (155, 41, ("b'.'", "b'.'")),
    "chroot": (161, 51, ("b'.'",)),
    "unshare user": (272, 97, ("0x10000000",)),
    "unshare mount": (272, 97, ("0x00020000",)),
    "unshare network": (272, 97, ("0x40000000",)),
    "setns": (308, 268, ("0", "0")),
    "clone into a user namespace": (56, 220, ("0x10000000 | 17", "0", "0", "0", "0")),
    "clone3": (435, 435, ("0", "0")),
    "fsopen": (430, 430, ("b'tmpfs'", "0")),
    "open_tree": (428, 428, ("-100", "b'/'", "1")),
    "move_mount": (429, 429, ("0", "b''", "0", "b''", "0")),
    "ptrace attach": (101, 117, ("16", "os.getppid()", "0", "0")),
    "process_vm_readv": (310, 270, ("os.getppid()", "0", "0", "0", "0", "0")),
    "pidfd_getfd": (438, 438, ("0", "0", "0")),
    "add_key": (248, 217, ("b'user'", "b'x'", "b'y'", "1", "-3")),
    "keyctl": (250, 219, ("0", "-3", "1")),
    "request_key": (249, 218, ("b'user'", "b'x'", "0", "0")),
    "io_uring_setup": (425, 425, ("1", "ctypes.create_string_buffer(120)")),
    "bpf": (321, 280, ("0", "0", "0")),
    "perf_event_open": (298, 241, ("ctypes.create_string_buffer(120)", "0", "-1", "-1", "0")),
    "userfaultfd": (323, 282, ("1",)),
    "memfd_create": (319, 279, ("b'x'", "0")),
    "shmget": (29, 194, ("0", "4096", "0o1600")),
    "msgget": (68, 186, ("0", "0o1600")),
    "init_module": (175, 105, ("0", "0", "b''")),
    "finit_module": (313, 273, ("0", "b''", "0")),
    "kexec_load": (246, 104, ("0", "0", "0", "0")),
    "reboot": (169, 142, ("0", "0", "0", "0")),
    "swapon": (167, 224, ("b'x'", "0")),
    "acct": (163, 89, ("0",)),
    "sethostname": (170, 161, ("b'x'", "1")),
    "clock_settime": (227, 112, ("0", "0")),
    "fanotify_init": (300, 262, ("0", "0")),
    "personality": (135, 92, ("0x0040000",)),
    "syslog": (103, 116, ("3", "ctypes.create_string_buffer(100)", "100")),
    "quotactl": (179, 60, ("0", "0", "0", "0")),
    "kcmp": (312, 272, ("1", "1", "0", "0", "0")),
    "a call that does not exist yet": (999, 999, ()),
}


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


PRIVILEGES = {
    "becoming root": "attempt(os.setuid, 0) if os.getuid() else None",
    "capabilities": """
        try:
            status = open('/proc/self/status').read()
        except OSError:
            status = ''
        for line in status.splitlines():
            if line.startswith(('CapEff', 'CapPrm')) and int(line.split()[1], 16):
                escaped(line)
        if libc.prctl(39, 0, 0, 0, 0) != 1:
            escaped('new privileges')
    """,
    "a set-user-id program": """
        import subprocess
        os.system('cp /usr/bin/id ./id; chmod u+s,g+s ./id')
        for program in ('./id', '/usr/bin/su', '/usr/bin/mount', '/usr/bin/passwd'):
            before = os.getuid()
            out = subprocess.run([program, '-u'] if program == './id' else [program, '--version'], capture_output=True)
            if program == './id' and out.stdout.strip() not in (str(before).encode(), b''):
                escaped(out.stdout)
    """,
    "raising limits": """
        import resource
        for name in ('RLIMIT_NOFILE', 'RLIMIT_DATA', 'RLIMIT_FSIZE', 'RLIMIT_CPU', 'RLIMIT_CORE'):
            number = getattr(resource, name)
            hard = resource.getrlimit(number)[1]
            attempt(lambda: resource.setrlimit(number, (hard + 1, hard + 1)) or name)
    """,
    "priority": """
        attempt(lambda: os.setpriority(os.PRIO_PROCESS, 0, -10) or 'nice')
        attempt(lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10)) or 'real time')
    """,
    "typing into a terminal": """
        import fcntl
        for fd in (0, 1, 2):
            attempt(lambda: fcntl.ioctl(fd, 0x5412, b'x'))
    """,
}


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
    assert Path(f"/proc/{victim.pid}/stat").read_text().split()[2] not in "TZ"


async def test_it_cannot_end_stop_or_change_its_own_agent(box: SandboxProcess) -> None:
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
    await fails(box, code)
    assert (await box.exec(["/bin/echo", "alive"])).stdout == "alive\n"


async def test_forged_replies_of_a_session_harm_nobody_else(box: SandboxProcess) -> None:
    result = await box.python("import os; os.write(3, b'\\xff' * 100000); os._exit(0)", timeout_s=5)
    assert result.is_lost
    forged = await box.python("import os; os.write(3, (12).to_bytes(4, 'big') + b'{\"stdout\":1}')", timeout_s=5)
    assert forged.is_lost
    assert (await box.exec(["/bin/echo", "alive"])).stdout == "alive\n"


NETWORK = {
    "a server on the host's loopback": "attempt(lambda: socket.create_connection(('127.0.0.1', int(sys.argv[1])), 2))",
    "it by IPv6": "attempt(lambda: socket.create_connection(('::1', int(sys.argv[1])), 2))",
    "it by UDP": """
        def send():
            udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            udp.connect(('127.0.0.1', int(sys.argv[1])))
            udp.send(b'x'); udp.send(b'x')
        attempt(lambda: send() or 'sent')
    """,
    "the internet": "attempt(lambda: socket.create_connection(('192.0.2.1', 80), 2))",
    "a name server": "attempt(socket.getaddrinfo, 'example.com', 80)",
    "a Unix socket": "s = None\nattempt(lambda: socket.socket(socket.AF_UNIX).connect(sys.argv[2]) or 'connected')",
    "an abstract Unix socket": "attempt(lambda: socket.socket(socket.AF_UNIX).connect('\\0' + sys.argv[3]) or 'connected')",
    "the Docker daemon": "attempt(lambda: socket.socket(socket.AF_UNIX).connect('/var/run/docker.sock') or 'connected')",
    "netlink": "attempt(lambda: socket.socket(16, socket.SOCK_RAW, 0))",
    "the hypervisor (vsock)": "attempt(lambda: socket.socket(40, socket.SOCK_STREAM))",
    "raw packets": "attempt(lambda: socket.socket(17, socket.SOCK_RAW, 3))",
    "raw IP": "attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))",
    "the kernel's crypto (AF_ALG)": "attempt(lambda: socket.socket(38, socket.SOCK_SEQPACKET))",
    "Bluetooth": "attempt(lambda: socket.socket(31, socket.SOCK_RAW, 1))",
}


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


async def test_a_daemon_does_not_outlive_its_sandbox(request: pytest.FixtureRequest) -> None:
    for name in CONFINING:
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
                '''.replace('\\n                ', '\\n'), sys.argv[1]])
            """
            await attack(made, code, token)
            async with asyncio.timeout(20):
                while not processes_with(token):
                    await asyncio.sleep(0.02)
        assert processes_with(token) == []


async def test_what_a_command_started_does_not_outlive_its_time(box: SandboxProcess) -> None:
    token = f"late-{os.getpid()}"
    command = f"setsid /bin/bash -c 'sleep 600; :' {token} & sleep 600"
    result = await box.exec(["/bin/bash", "-c", command], timeout_s=0.5)
    assert (result.return_code, result.error_type, result.limit) == (125, "timeout", "time")
    assert processes_with(token) == []


async def test_a_fork_bomb_stays_small_and_ends(box: SandboxProcess, request: pytest.FixtureRequest) -> None:
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


MEMORY = {
    "one process": "keep = [bytearray(2**20) for _ in range(2000)]; escaped('memory')",
    "one mapping": "import mmap; m = mmap.mmap(-1, 2**33); escaped('mapped 8 GiB')",
    "a shared mapping": """
        import mmap, time
        m = mmap.mmap(-1, 2**30)
        for at in range(0, 2**30, 4096):
            m[at] = 1
        time.sleep(1)
        escaped('memory')
    """,
    "several processes": """
        import time
        for _ in range(8):
            if not os.fork():
                keep = bytearray(150 * 2**20)
                for at in range(0, len(keep), 4096): keep[at] = 1
                time.sleep(5)
                escaped('memory')
                os._exit(0)
        for _ in range(8): os.wait()
    """,
    "shared memory": "attempt(lambda: open('/dev/shm/x', 'wb').write(bytes(300 * 2**20)))",
}


@pytest.mark.parametrize("what", MEMORY)
async def test_memory_cannot_be_exhausted_by(box: SandboxProcess, what: str) -> None:
    result = await attack(box, MEMORY[what])
    assert "ESCAPED" not in (result.stdout or "")
    assert (await box.exec(["/bin/echo", "alive"])).stdout == "alive\n"


async def test_a_fifth_of_a_gigabyte_is_not_the_machine(box: SandboxProcess) -> None:
    result = await attack(box, "keep = bytearray(150 * 2**20); print('fine')")
    assert result.stdout == "fine\n"


DISK = {
    "one file": "attempt(lambda: open('big', 'wb').write(bytes(17 * 2**20)))",
    "several files": """
        import time
        for n in range(40):
            try:
                open(f'big{n}', 'wb').write(bytes(2**20))
            except OSError:
                sys.exit()
        time.sleep(5)
        escaped('40 MB in 16')
    """,
    "the temporary folder": """
        import time
        for n in range(40):
            try:
                open(f"{os.environ['TMPDIR']}/big{n}", 'wb').write(bytes(2**20))
            except OSError:
                sys.exit()
        time.sleep(5)
        escaped('40 MB in 16')
    """,
    "many empty files": """
        import time
        for n in range(20000):
            try:
                open(f'empty{n}', 'wb').close()
            except OSError:
                sys.exit()
        time.sleep(5)
        escaped('20000 files')
    """,
    "a sparse file": "attempt(lambda: os.truncate(os.open('sparse', os.O_CREAT | os.O_RDWR), 2**40) or 'sparse')",
}


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
    result = await box.exec(["/usr/bin/yes"], timeout_s=0.5)
    assert (result.error_type, result.is_truncated) == ("timeout", True)


async def test_cpu_time_is_that_of_all_processes_together(request: pytest.FixtureRequest) -> None:
    for name in CONFINING:
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


async def test_what_stays_in_the_background_is_still_limited() -> None:
    for name in CONFINING:
        token = f"burner-{os.getpid()}-{name}"
        async with sandbox(name, cpu_s=1.0) as made:
            done = await made.exec(["/bin/bash", "-c", f"(exec -a {token} bash -c 'while :; do :; done' {token}) &"])
            assert done.return_code == 0
            async with asyncio.timeout(60):
                while processes_with(token):
                    await asyncio.sleep(0.05)
            assert (await made.exec(["/bin/echo", "alive"])).stdout == "alive\n"
