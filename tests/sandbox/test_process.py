"""What a sandbox does for code that behaves, over every provider that runs here."""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nemo_gym.common.outside_work import listening
from nemo_gym.sandbox.bubblewrap import BubblewrapProvider, mounts
from nemo_gym.sandbox.contract import Limits, SandboxCreateError, SandboxError, SandboxSpec
from nemo_gym.sandbox.inside.frames import FrameError, pack, unpack
from nemo_gym.sandbox.local import Runtime, SandboxPool
from nemo_gym.sandbox.process import SandboxProcess
from nemo_gym.sandbox.registry import get_provider_class
from tests.sandbox.providers import CONFINING, LONGER_AND_LONGER, provider, sandbox

ALL = (*CONFINING, "unconfined")


@pytest.fixture(params=ALL)
async def box(request: pytest.FixtureRequest) -> AsyncIterator[SandboxProcess]:
    if request.param == "unconfined":
        made = get_provider_class("unconfined")()
        yield await made.open()
        await made.aclose()
        return
    async with sandbox(request.param) as confined:
        yield confined


async def shell(box: SandboxProcess, command: str) -> str:
    result = await box.exec(["/bin/bash", "-c", command])
    assert (result.return_code, result.error_type) == (0, None), result
    return result.stdout or ""


async def test_a_command_gives_its_output_and_code(box: SandboxProcess) -> None:
    result = await box.exec(["/bin/bash", "-c", "echo out; echo err >&2; exit 3"])
    assert (result.stdout, result.stderr, result.return_code) == ("out\n", "err\n", 3)
    assert (result.error_type, result.limit, result.is_truncated) == (None, None, False)


async def test_a_command_that_a_signal_ended_has_the_code_a_shell_shows(box: SandboxProcess) -> None:
    assert (await box.exec(["/bin/bash", "-c", "kill -SEGV $$"])).return_code == 128 + 11


async def test_a_command_that_does_not_exist_is_a_result(box: SandboxProcess) -> None:
    result = await box.exec(["/no/such/program"])
    assert result.return_code == 126
    assert "No such file" in (result.stderr or "")


async def test_a_command_reads_its_input_however_long(box: SandboxProcess) -> None:
    given = os.urandom(400_000)
    result = await box.exec(["/usr/bin/sha256sum"], stdin=given)
    import hashlib

    assert (result.stdout or "").split()[0] == hashlib.sha256(given).hexdigest()
    unread = await box.exec(["/bin/true"], stdin=given)
    assert unread.return_code == 0


async def test_the_environment_is_the_sandboxs_own(box: SandboxProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOST_TOKEN", "x")
    names = await box.exec(["/usr/bin/env"], env={"MINE": "1"})
    assert "MINE=1" in (names.stdout or "")
    assert "HOST_TOKEN" not in (names.stdout or "")


async def test_files_stay_from_one_command_to_the_next_and_pass_both_ways(box: SandboxProcess) -> None:
    content = os.urandom(9_000_000)
    await box.write_file("folder/data.bin", content)
    await shell(box, "cp folder/data.bin copy.bin; echo text > note")
    assert await box.read_file("copy.bin") == content
    assert await box.read_file("note") == b"text\n"
    with pytest.raises(SandboxError, match="No such file"):
        await box.read_file("missing")
    with pytest.raises(SandboxError, match="at most 5 are read"):
        await box.read_file("copy.bin", max_bytes=5)


async def test_several_commands_run_at_once(box: SandboxProcess) -> None:
    await shell(box, "mkfifo a b")
    first = box.exec(["/bin/bash", "-c", "echo one > a; cat b"])
    second = box.exec(["/bin/bash", "-c", "cat a; echo two > b"])
    results = await asyncio.gather(first, second)
    assert [result.stdout for result in results] == ["two\n", "one\n"]


async def test_a_command_that_is_late_is_killed_and_keeps_what_it_said(box: SandboxProcess) -> None:
    for timeout_s in LONGER_AND_LONGER:
        result = await box.exec(["/bin/bash", "-c", "echo early; > begun; sleep 60"], timeout_s=timeout_s)
        assert (result.return_code, result.error_type, result.limit) == (125, "timeout", "time")
        if "begun" in await shell(box, "ls"):
            break
    assert result.stdout == "early\n"


async def test_a_caller_who_is_cancelled_ends_the_command(box: SandboxProcess) -> None:
    task = asyncio.create_task(box.exec(["/bin/bash", "-c", "echo $$ > pid; exec sleep 600"]))
    await box.exec(["/bin/bash", "-c", "until [ -s pid ]; do sleep 0.02; done"])
    task.cancel()
    gone = await box.exec(
        ["/bin/bash", "-c", "while kill -0 $(cat pid) 2>/dev/null; do sleep 0.02; done"], timeout_s=60
    )
    assert gone.return_code == 0


async def test_a_program_is_python_with_real_streams(box: SandboxProcess) -> None:
    source = "import sys\nprint(sys.argv[1:], input(), __name__)\nprint('e', file=sys.stderr)\nsys.exit(4)"
    result = await box.program(source, "a", "b", stdin=b"line\n")
    assert (result.stdout, result.stderr, result.return_code) == ("['a', 'b'] line __main__\n", "e\n", 4)


@pytest.mark.parametrize(
    ("source", "code", "said"),
    [
        ("exit()", 0, ""),
        ("raise SystemExit('bye')", 1, "bye"),
        ("1/0", 1, "ZeroDivisionError"),
        ("def f(:", 1, "SyntaxError"),
        ("import os; os.abort()", 134, ""),
    ],
)
async def test_how_a_program_ends(box: SandboxProcess, source: str, code: int, said: str) -> None:
    result = await box.program(source)
    assert result.return_code == code
    assert said in (result.stderr or "")


@pytest.mark.parametrize(
    "source",
    [
        "import sys; print('said', file=sys.__stdout__)",
        "import atexit; atexit.register(print, 'said')",
        "import atexit, io, sys; sys.stdout = io.StringIO(); print('said')\n"
        "atexit.register(lambda: sys.__stdout__.write(sys.stdout.getvalue()))",
        "import threading, time; threading.Thread(target=lambda: (time.sleep(0.2), print('said'))).start()",
        "import os, sys; print('said'); sys.stdout.flush(); sys.stdout.close()",
        "import os, sys; os.write(1, b'said\\n'); sys.stdout = None",
    ],
)
async def test_a_program_ends_as_an_interpreter_does(box: SandboxProcess, source: str) -> None:
    result = await box.program(source)
    assert (result.stdout, result.return_code) == ("said\n", 0)


OWN_PROCESS = """
import asyncio, multiprocessing, os, resource, shutil, signal, subprocess, sys, time
assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 0
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.prlimit(0, resource.RLIMIT_CORE)
os.sched_setaffinity(0, os.sched_getaffinity(0))
os.nice(0)
os.nice(1)
os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0))
os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
open("a", "w").write("x")
shutil.copy2("a", "b")
os.chmod("b", 0o700)
os.utime("b")
child = subprocess.Popen(["/bin/sleep", "600"])
child.terminate()
assert child.wait() == -signal.SIGTERM
assert subprocess.run(["/bin/bash", "-c", "ulimit -n; nice true; cp -a a c; touch d"], check=True, capture_output=True)
async def child_of_a_loop():
    process = await asyncio.create_subprocess_exec("/bin/echo", "said", stdout=subprocess.PIPE)
    return (await process.communicate())[0]
if sys.argv[1] == "sockets":
    assert asyncio.run(child_of_a_loop()) == b"said\\n"
worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(0,))
worker.start()
worker.join()
import numpy
print("fine", int(numpy.arange(10).sum()), worker.exitcode)
"""


@pytest.mark.parametrize("name", CONFINING)
async def test_a_program_may_change_itself_and_its_files_and_start_others(name: str) -> None:
    async with sandbox(name, packages=("numpy",)) as made:
        sockets = "none" if name == "landlock" else "sockets"
        result = await made.program(OWN_PROCESS, sockets)
        assert (result.stdout, result.stderr) == ("fine 45 0\n", "")


ORDINARY_CODE = """
import pickle
from dataclasses import dataclass
from typing import ClassVar
@dataclass
class Point:
    size: ClassVar[int] = 2
    x: int
    def move(self, by: int): self.x += by
print(Point.move.__annotations__, pickle.loads(pickle.dumps(Point(3))))
"""


async def test_code_is_compiled_and_named_as_by_the_interpreter(box: SandboxProcess) -> None:
    expected = "{'by': <class 'int'>} Point(x=3)\n"
    program = await box.program(ORDINARY_CODE)
    assert (program.stdout, program.stderr) == (expected, "")
    session = await box.python(ORDINARY_CODE)
    assert (session.stdout, session.error) == (expected, None)
    value = await box.python("from __future__ import annotations\ndef f(x: int): pass\nf.__annotations__")
    assert value.result == "{'x': 'int'}"


async def test_programs_share_nothing_but_files(box: SandboxProcess) -> None:
    await box.program("import builtins, sys; builtins.left = sys.left = 1")
    result = await box.program("import builtins, sys; print(hasattr(builtins, 'left'), hasattr(sys, 'left'))")
    assert result.stdout == "False False\n"


async def test_a_session_keeps_its_variables(box: SandboxProcess) -> None:
    first = await box.python("import math\ndef double(n):\n    return n * factor\nfactor = 2\nprint('set')")
    assert (first.stdout, first.result, first.error) == ("set\n", "None", None)
    assert (await box.python("double(21)")).result == "42"
    failed = await box.python("factor = 3\n1/0")
    assert (failed.error, failed.error_type, failed.is_lost) == ("division by zero", "ZeroDivisionError", False)
    assert (await box.python("double(1)")).result == "3"


async def test_a_session_survives_its_time_limit_and_exit(box: SandboxProcess) -> None:
    await box.python("kept = 1")
    for timeout_s in (0.3, *(5 * [0.001])):  # perhaps before the code has begun
        late = await box.python("while True: pass", timeout_s=timeout_s)
        assert (late.limit, late.is_lost) == ("time", False)
    assert (await box.python("kept")).result == "1"
    assert (await box.python("exit()")).error_type == "SystemExit"
    assert (await box.python("kept")).result == "1"


async def test_a_session_that_will_not_be_interrupted_is_lost_and_begins_again(box: SandboxProcess) -> None:
    await box.python("import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)")
    late = await box.python("while True: pass", timeout_s=0.1)
    assert (late.limit, late.is_lost) == ("time", True)
    assert (await box.python("1 + 1")).result == "2"
    ended = await box.python("import os; os._exit(0)")
    assert (ended.limit, ended.is_lost) == (None, True)
    assert (await box.python("'again'")).result == "again"


@pytest.mark.parametrize(
    "end",
    [
        "if os.fork(): os._exit(0)\ntime.sleep(600)",  # the other process has the session's socket, too
        *(f"threading.Timer({delay_s}, os._exit, [0]).start()" for delay_s in (0, 0.0002, 0.0004)),  # about the reply
    ],
)
async def test_a_session_that_ends_itself_ends_nothing_else(box: SandboxProcess, end: str) -> None:
    for _ in range(5):
        await box.python(f"import os, threading, time\n{end}", timeout_s=60)
    assert await shell(box, "echo alive") == "alive\n"


async def test_calls_to_one_session_take_turns(box: SandboxProcess) -> None:
    await box.python("log = []")
    code = "log.append('in')\nimport time; time.sleep(0.01)\nlog.append('out')"
    await asyncio.gather(*(box.python(code) for _ in range(5)))
    assert (await box.python("log == ['in', 'out'] * 5")).result == "True"


WATCH_PAUSES = """
import threading, time
rounds = longest_s = 0
def work():
    global rounds, longest_s
    while True:
        before = time.monotonic()
        time.sleep(0.001)
        longest_s, rounds = max(longest_s, time.monotonic() - before), rounds + 1
threading.Thread(target=work, daemon=True).start()
"""
LONGEST_PAUSE = "before = rounds\nwhile rounds < before + 2: time.sleep(0.001)\nlongest_s"


async def test_threads_of_a_session_rest_between_calls(box: SandboxProcess) -> None:
    await box.python(WATCH_PAUSES)
    await asyncio.sleep(0.5)
    assert float((await box.python(LONGEST_PAUSE)).result or 0) > 0.45


async def test_code_may_print_and_return_anything(box: SandboxProcess) -> None:
    assert (await box.python("'\\ud800'")).result is not None
    odd = await box.python("class Odd:\n    def __str__(self): raise ValueError\nOdd()")
    assert "Odd" in (odd.result or "")
    long = await box.python("print('x' * 3_000_000)")
    assert len(long.stdout) == 2**20


async def test_a_sandbox_that_has_ended_says_so(box: SandboxProcess) -> None:
    await box.close()
    result = await box.exec(["/bin/true"])
    assert (result.return_code, result.error_type) == (125, "sandbox")
    with pytest.raises(SandboxError, match="ended"):
        await box.python("1")


@pytest.mark.parametrize("name", CONFINING)
async def test_packages_are_there_only_when_named(name: str) -> None:
    for packages, found in (((), "False"), (("packaging",), "True")):
        async with sandbox(name, packages=packages) as made:
            code = "import importlib.util; importlib.util.find_spec('packaging') is not None"
            assert (await made.python(code)).result == found
            result = await made.exec(["/bin/bash", "-c", "python3 -c 'import packaging'"])
            assert (result.return_code == 0) is (found == "True")


async def test_a_package_that_is_not_installed_is_named() -> None:
    with pytest.raises(SandboxCreateError, match="pip install no-such-package"):
        await provider("bubblewrap", packages=("no-such-package",)).open()


async def test_a_sandbox_that_cannot_start_says_why() -> None:
    provider("bubblewrap")
    with pytest.raises(SandboxCreateError, match="did not start"):
        await BubblewrapProvider(executable="/bin/false").open()


async def test_an_image_is_refused_by_a_provider_that_has_none() -> None:
    with pytest.raises(SandboxCreateError, match="no images"):
        await provider("bubblewrap").open(SandboxSpec(image="python:3.12"))


async def test_the_work_folder_can_be_named() -> None:
    async with sandbox("bubblewrap", spec=SandboxSpec(workdir="/testbed")) as made:
        assert await shell(made, "pwd; echo $HOME") == "/testbed\n/testbed\n"


async def test_a_pool_gives_warm_sandboxes_once() -> None:
    async with SandboxPool(provider("bubblewrap"), warm=1) as pool:
        first = await pool.take()
        await first.python("x = 1")
        await pool.release(first)
        assert not first.is_alive
        second = await pool.take()
        assert (await second.python("'x' in globals()")).result == "False"
    assert not second.is_alive
    with pytest.raises(SandboxError, match="closed"):
        await pool.take()


def descendants() -> list[str]:
    """Living processes below this one."""
    parents: dict[str, str] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] not in "ZX":
            parents[path.parent.name] = fields[1]
    family = {str(os.getpid())}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return sorted(family - {str(os.getpid())})


def held() -> set[str]:
    """The processes, mounts and open files of this process."""
    return {*descendants(), *Path("/proc/self/mountinfo").read_text().splitlines(), *os.listdir("/proc/self/fd")}


@pytest.mark.parametrize("name", CONFINING)
async def test_many_sandboxes_at_once_leave_nothing_behind(name: str) -> None:
    before = held()
    made = provider(name)
    boxes = await asyncio.gather(*(made.open(session=True) for _ in range(25)))
    results = await asyncio.gather(*(box.python(f"{number} * 2") for number, box in enumerate(boxes)))
    assert [result.result for result in results] == [str(2 * number) for number in range(25)]
    folders = [box._launch.folder for box in boxes if box._launch.folder]
    await made.aclose()
    assert held() - before == set()
    assert not {folder.name for folder in folders} & set(os.listdir(tempfile.gettempdir()))


async def test_limits_are_checked() -> None:
    with pytest.raises(ValueError, match="Unknown limits: memory"):
        Limits.from_mapping({"memory": 3})
    with pytest.raises(ValueError, match="positive"):
        Limits(cpu_s=0)


@pytest.mark.parametrize("payload", [b"", b"\0\0\0\5", b"\xff\xff\xff\xff", pack(b"a") + b"x", b"\0\0\0\1\0\0\0\x09"])
def test_bytes_that_are_no_fields_are_refused(payload: bytes) -> None:
    with pytest.raises(FrameError):
        unpack(payload)
    assert unpack(pack(b"", b"two")) == [b"", b"two"]


def test_an_interpreter_below_a_writable_folder_is_mounted_after_it() -> None:
    runtime = Runtime("/tmp/py/bin/python3", (("/tmp/py", "/tmp/py"), ("/usr", "/usr")), (), (), ())
    words = mounts(Limits(), runtime, "/usr/src/app")
    assert words.index("/tmp") < words.index("/tmp/py")
    assert words.index("/usr") < words.index("/usr/src/app")


@pytest.mark.parametrize("name", CONFINING)
async def test_the_cpu_time_of_commands_and_sessions_is_reported(name: str) -> None:
    spin = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    found: dict[str, float] = {}
    async with sandbox(name, session=True) as made:
        with listening(lambda what, seconds: found.update({what: seconds})):
            await made.python(spin)
            await made.program(spin)
    assert sorted(found) == ["sandbox Python session", "sandbox program"]
    assert min(found.values()) >= 0.29
