"""`ng_status` says by its exit code whether all servers are healthy, and prints nothing that drives the terminal."""

import subprocess
from pathlib import Path

import orjson
import pytest

from nemo_gym.viewer.server import find_runs
from tests.commands import BIN, free_port, ng
from tests.polling import until_sync
from tests.runtime.test_run_identity import head_that_says


def test_the_status_of_an_unhealthy_server_is_a_failure(tmp_path: Path) -> None:
    dead = {"process_name": "bad\x1b[2J\nname", "name": "x", "url": f"http://127.0.0.1:{free_port()}", "port": 1}
    with head_that_says([dead]) as port:
        shown = ng("ng_status", f"+head_server.port={port}", cwd=tmp_path)
    assert shown.returncode == 1
    assert "(0 healthy, 1 unhealthy)" in shown.stdout
    assert "\x1b" not in shown.stdout
    assert "\nname" not in shown.stdout


def test_the_status_of_healthy_servers_is_a_success(tmp_path: Path) -> None:
    with head_that_says([]) as health:
        alive = {"process_name": "good", "name": "x", "url": f"http://127.0.0.1:{health}", "port": health}
        with head_that_says([alive]) as port:
            shown = ng("ng_status", f"+head_server.port={port}", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "(1 healthy, 0 unhealthy)" in shown.stdout


@pytest.mark.slow
def test_a_running_evaluation_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "script.jsonl").write_bytes(orjson.dumps({"say": "late", "latency_s": 600}))
    place = f"--head_server.port={free_port()}"
    command = [str(BIN / "ng"), "eval", "mcqa", "--script", "script.jsonl", "-n", "1", "-o", "slow.jsonl", place]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        try:
            until_sync(find_runs)
            shown = ng("ng_status", place, cwd=tmp_path)
        finally:
            running.kill()
    assert shown.returncode == 0, shown.stderr
    assert "slow.jsonl" in shown.stdout
    assert "0 of 1 rollouts" in shown.stdout
