"""`ng_stop` signals only a process that is verifiably the run it names."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import orjson
import psutil
import pytest

from nemo_gym.errors import GymError
from nemo_gym.runtime.head_server import check_run_identity, is_running, run_identity
from tests.commands import ng
from tests.polling import until_sync


@contextmanager
def bystander() -> Iterator["subprocess.Popen[bytes]"]:
    """A process that is no run."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        try:
            until_sync(lambda: psutil.Process(process.pid).cmdline())  # empty for a moment while the program is loaded
            yield process
        finally:
            process.kill()


def test_a_process_is_itself() -> None:
    assert check_run_identity(run_identity()) == os.getpid()
    with bystander() as process:
        assert check_run_identity(run_identity(process.pid)) == process.pid


def test_a_process_runs_until_it_has_ended_also_if_nobody_has_waited_for_it() -> None:
    with bystander() as process:
        reported = {**run_identity(process.pid), "a field of a newer version": 1}
        assert is_running(reported)
        process.kill()
        until_sync(lambda: psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE)
        assert not is_running(reported)
        process.wait()
        assert not is_running(reported)


@pytest.mark.parametrize(
    "changed", [{"start_time": "1"}, {"command": "x"}, {"user": 12345}, {"machine": "another"}, {"machine": None}]
)
def test_a_process_that_differs_in_anything_is_not_the_run(changed: dict[str, Any]) -> None:
    with bystander() as process, pytest.raises(GymError, match=next(iter(changed))):
        check_run_identity({**run_identity(process.pid), **changed})


@pytest.mark.parametrize("pid", [None, "12", 0, 1, -1, 2**22 + 1])
def test_a_process_id_that_is_none_is_refused(pid: Any) -> None:
    with pytest.raises(GymError):
        check_run_identity({**run_identity(), "pid": pid})


def test_the_command_line_is_not_reported() -> None:
    secret = "sk-very-secret"
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", secret]) as process:
        try:
            assert secret not in str(run_identity(process.pid))
        finally:
            process.kill()


def test_ng_stop_does_not_signal_a_process_that_a_head_server_merely_names(tmp_path: Path) -> None:
    with bystander() as process, head_that_says({"pid": process.pid, "start_time": 0.0}) as port:
        stopped = ng("ng_stop", f"+head_server.port={port}", cwd=tmp_path)
        assert stopped.returncode == 1
        assert "Nothing was signalled" in stopped.stderr
        assert process.poll() is None
        process.send_signal(signal.SIGKILL)


@contextmanager
def head_that_says(identity: Any) -> Iterator[int]:
    class Head(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(orjson.dumps(identity))

        def log_message(self, *_values: object) -> None:
            """Quiet."""

    with HTTPServer(("127.0.0.1", 0), Head) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
