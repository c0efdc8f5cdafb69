"""Run tests with pytest and report how they ended. This file is copied into the container of a grading.

It runs as two processes. The supervisor imports nothing of the repository, starts the other one, and alone knows the
secret without which no report counts. The other one runs pytest with the tested code in it, and sends each event at
once through a pipe, so that what was sent cannot be changed. Runs with any Python 3."""

import base64
import ctypes
import json
import os
import select
import subprocess
import sys
import zlib
from collections.abc import Callable
from typing import Any

SECRET, WATCHED_FILES = ".git/nemo-gym-secret", ".git/nemo-gym-watched"
CURRENT_TEST = "PYTEST_CURRENT_TEST"
"""The variable in which pytest says which test runs. Some projects look if it is set."""
MAX_EVENT_BYTES = 16 * 2**20
MAX_MESSAGE_CHARS = 4000
PR_SET_DUMPABLE = 4
LOOKS_INTO_TESTS = (
    *("sys._getframe", "sys._getframemodulename", "sys._current_frames", "sys._current_exceptions"),
    *("sys.settrace", "sys.setprofile", "sys.monitoring.register_callback", "threading.settrace"),
    *("gc.get_objects", "gc.get_referrers", "gc.get_referents", "object.__getattr__", "object.__setattr__"),
    *("ctypes.dlopen", "ctypes.dlsym", "ctypes.cdata", "ctypes.PyObj_FromPtr", "cpython.remote_debugger_script"),
)
"""Audit events of Python that lead from the tested code to the test that calls it, its source or pytest."""
ON_BEHALF = ("inspect.py", "traceback.py")
"""Modules of the standard library that do so for their callers."""
PRINTERS = ("traceback.py", "warnings.py")
"""Modules that read source files to show lines of them."""


class Reporter:
    """A plugin of pytest that sends what was collected and how each phase of each test ended."""

    def __init__(self, pipe: int) -> None:
        self._stream, self._dump = os.fdopen(pipe, "w"), json.dumps
        self._config: Any = None

    def send(self, *event: Any) -> None:
        self._stream.write(self._dump(event) + "\n")
        self._stream.flush()

    def pytest_configure(self, config: Any) -> None:
        self._config = config

    def pytest_load_initial_conftests(self) -> None:
        """Only now, with pytest and its plugins imported: a repository may hold modules of the same names."""
        sys.path.insert(0, os.getcwd())

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.send("error", report.nodeid)

    def pytest_collection_finish(self, session: Any) -> None:
        self.send("collected", [self._name(item.nodeid) for item in session.items])

    def pytest_runtest_logreport(self, report: Any) -> None:
        message = str(report.longrepr)[-MAX_MESSAGE_CHARS:] if report.failed else ""
        name = self._name(report.nodeid)
        self.send("test", name, report.when, report.outcome, hasattr(report, "wasxfail"), message)

    def pytest_fixture_setup(self) -> None:
        self._hide_parameters()

    def pytest_pyfunc_call(self) -> None:
        self._hide_parameters()

    def _hide_parameters(self) -> None:
        """Take the parameters, which may hold the expected value, out of the name of the test that code can read."""
        name, _, parameters = os.environ.get(CURRENT_TEST, "").partition("[")
        if parameters:
            os.environ[CURRENT_TEST] = name + parameters.rpartition("]")[2]

    def _name(self, node_id: str) -> str:
        """As pytest prints it: relative to the current folder, also if its root is another one."""
        return str(self._config.cwd_relative_nodeid(node_id))


def run_pytest(pipe: int, options: "list[str]") -> None:
    os.unlink(__file__)
    os.set_inheritable(pipe, False)
    sys.path[:0] = [folder for folder in os.environ.get("PYTHONPATH", "").split(":") if folder]
    import pytest

    reporter = Reporter(pipe)
    watch(reporter)
    code = int(pytest.main(options, plugins=[reporter]))
    reporter.send("end", code)
    os._exit(code)


def watch(reporter: Reporter) -> None:
    """Report when code of the patch looks into the tests. An audit hook can be neither removed nor found."""
    with open(WATCHED_FILES) as file:
        files = json.load(file)
    os.unlink(WATCHED_FILES)
    code = {os.path.abspath(path): path for path in files["code"]}
    is_test_file = _file_matcher(files["tests"])
    helpers, printers = (
        frozenset(os.path.join(os.path.dirname(os.__file__), name) for name in names)
        for names in (ON_BEHALF, PRINTERS)
    )
    watched = frozenset(("open", *LOOKS_INTO_TESTS))
    send, current_frame, is_busy = reporter.send, sys._getframe, []  # type: ignore[var-annotated]

    def hook(event: str, arguments: Any) -> None:
        if is_busy or event not in watched:
            return
        is_test = event == "open"
        if is_test and not is_test_file(arguments[0]):
            return
        is_busy.append(True)
        try:
            frame: Any = current_frame(1)
            if event == "object.__getattr__" and file_of(arguments[0], frame.f_code.co_filename in helpers) in code:
                return
            while frame and frame.f_code.co_filename not in code:
                name = frame.f_code.co_filename
                if name in printers if is_test else not (name in helpers or name.startswith("<")):
                    return
                frame = frame.f_back
            if frame:
                send("reached", event, code[frame.f_code.co_filename])
        finally:
            is_busy.clear()

    if code and hasattr(sys, "addaudithook"):
        sys.addaudithook(hook)


def file_of(value: Any, is_traceback_allowed: bool) -> "str | None":
    """Return the file of a function or code object and, if the standard library asks, of a traceback or frame.

    Code may look at itself, but a frame that it holds leads to its caller."""
    if is_traceback_allowed:
        value = getattr(value, "tb_frame", value)
        value = getattr(value, "f_code", value)
    found = getattr(getattr(value, "__code__", value), "co_filename", None)
    return found if isinstance(found, str) else None


def _file_matcher(paths: "list[str]") -> "Callable[[Any], bool]":
    """Return a function that says if an opened path is one of these files: by its name, or by the file itself, which a
    link or another current folder may give another name. It uses nothing that the patch could replace."""
    stat, os_error, last_part = os.stat, OSError, str.rpartition
    names = frozenset(last_part(path, "/")[2] for path in paths) - {"__init__.py"}
    known = frozenset((found.st_dev, found.st_ino) for found in map(stat, filter(os.path.exists, paths)))

    def matches(path: Any) -> bool:
        if isinstance(path, bytes):
            path = bytes.decode(path, errors="surrogateescape")
        if isinstance(path, str) and last_part(path, "/")[2] in names:
            return True
        try:
            found = stat(path)
        except (os_error, ValueError, TypeError):
            return False
        return (found.st_dev, found.st_ino) in known

    return matches


def supervise(options: "list[str]") -> None:
    # Processes of the same user may otherwise read the secret from this one's memory, or write to its output.
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    with open(SECRET) as file:
        secret = file.read()
    os.unlink(SECRET)
    receiving, sending = os.pipe()
    command = [sys.executable, "-I", __file__, str(sending), *options]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    null = subprocess.DEVNULL
    tests = subprocess.Popen(
        command, pass_fds=[sending], env=environment, stdin=null, stdout=null, stderr=null, start_new_session=True
    )
    os.close(sending)
    events = received(receiving, tests).decode(errors="replace")
    report = json.dumps({"status": tests.wait(), "events": events})
    sys.stdout.write(secret + base64.b64encode(zlib.compress(report.encode())).decode())


def received(pipe: int, sender: "subprocess.Popen[bytes]") -> bytes:
    """What arrives until the sender ends. Others may hold the pipe open for longer."""
    content = b""
    while len(content) < MAX_EVENT_BYTES:
        has_ended = sender.poll() is not None
        if select.select([pipe], [], [], 0 if has_ended else 0.1)[0]:
            part = os.read(pipe, 2**16)
            if not part:
                break
            content += part
        elif has_ended:
            break
    return content


if __name__ == "__main__":
    if sys.argv[1] == "supervise":
        supervise(sys.argv[2:])
    else:
        run_pytest(int(sys.argv[1]), sys.argv[2:])
