"""`ng_stop` names the run, and asks before it stops one of another terminal."""

import os
import re
import signal
import subprocess
import time
import urllib.request
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.commands import BIN, free_port, ng, started
from tests.polling import until_sync

CONFIGS = (
    "+config_paths=[resources_servers/example_simple_weather/configs/simple_weather.yaml,"
    "responses_api_models/scripted_model/configs/scripted_model.yaml]"
)

pytestmark = pytest.mark.slow


def test_a_run_is_named_and_one_of_another_terminal_is_asked_about(tmp_path: Path) -> None:
    head = f"+head_server.port={free_port()}"
    with started("ng_run", CONFIGS, head, cwd=tmp_path) as run:
        run.wait_for("servers ready!")
        elsewhere = subprocess.run(
            [str(BIN / "ng_stop"), head], cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            start_new_session=True, check=False,
        )  # fmt: skip
        assert elsewhere.returncode == 1
        assert elsewhere.stderr.startswith("This is the run of simple_weather.yaml, scripted_model.yaml, started 2")
        assert all(fact in elsewhere.stderr for fact in (f"(process {run.process.pid})", "--yes"))
        assert run.process.poll() is None
        stopped = ng("ng_stop", head, cwd=tmp_path)
        assert stopped.returncode == 0, stopped.stderr
        assert stopped.stdout.startswith("Stopped the run of simple_weather.yaml, scripted_model.yaml, started ")
        assert run.wait() == 0


def test_the_start_of_a_run_stays_when_its_worker_is_started_again(tmp_path: Path) -> None:
    port = free_port()
    with started("ng_run", CONFIGS, f"+head_server.port={port}", cwd=tmp_path) as run:
        run.wait_for("servers ready!")
        begun = time.time()
        (worker,) = worker_ids(port)
        until_sync(lambda: time.time() > begun + 2.0)
        os.kill(worker, signal.SIGKILL)
        until_sync(lambda: worker_ids(port) - {worker, None})
        stopped = ng("ng_stop", f"+head_server.port={port}", cwd=tmp_path)
        assert run.wait() == 0
    found = re.search(r"started (.{19}) by", stopped.stdout)
    assert found is not None, stopped
    assert datetime.fromisoformat(found[1]).timestamp() < begun + 1.0


def worker_ids(head_port: int) -> set[Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{head_port}/server_instances") as reply:
        return {server["pid"] for server in orjson.loads(reply.read())}


def test_a_yes_is_enough(tmp_path: Path) -> None:
    head = f"+head_server.port={free_port()}"
    with started("ng_run", CONFIGS, head, cwd=tmp_path) as run:
        run.wait_for("servers ready!")
        stopped = subprocess.run(
            [str(BIN / "ng_stop"), head, "-y"], cwd=tmp_path, capture_output=True, text=True,
            start_new_session=True, check=False, env={**os.environ, "NO_COLOR": "1"},
        )  # fmt: skip
        assert stopped.returncode == 0, stopped.stderr
        assert run.wait() == 0


def test_stopped_means_that_every_server_has_ended(tmp_path: Path) -> None:
    folder = tmp_path / "resources_servers" / "slow"
    folder.mkdir(parents=True)
    (folder / "app.py").write_text(
        "import atexit, pathlib, time\n"
        "from nemo_gym.base_resources_server import SimpleResourcesServer\n"
        "class Slow(SimpleResourcesServer):\n"
        "    async def verify(self, body): ...\n"
        "def finish():\n"
        "    time.sleep(1.5)\n"
        f"    pathlib.Path({str(tmp_path)!r}, 'finished').touch()\n"
        "atexit.register(finish)\n"
        "if __name__ == '__main__':\n"
        "    Slow.run_webserver()\n"
    )
    (tmp_path / "slow.yaml").write_text("slow: {resources_servers: {slow: {entrypoint: app.py, domain: other}}}\n")
    head = f"+head_server.port={free_port()}"
    with started("ng_run", "+config_paths=[slow.yaml]", head, cwd=tmp_path) as run:
        run.wait_for("servers ready!")
        stopped = ng("ng_stop", head, cwd=tmp_path)
        assert stopped.returncode == 0, stopped.stderr
        assert (tmp_path / "finished").exists()
        assert run.wait() == 0


def test_ctrl_c_while_servers_start_shows_no_traceback(tmp_path: Path) -> None:
    folder = tmp_path / "resources_servers" / "slow"
    folder.mkdir(parents=True)
    (folder / "app.py").write_text("import pathlib, time\npathlib.Path('importing').touch()\ntime.sleep(3)\n")
    (tmp_path / "slow.yaml").write_text("slow: {resources_servers: {slow: {entrypoint: app.py, domain: other}}}\n")
    with started("ng_run", "+config_paths=[slow.yaml]", f"+head_server.port={free_port()}", cwd=tmp_path) as run:
        until_sync(lambda: any(tmp_path.rglob("importing")))
        run.signal(signal.SIGINT)
        assert run.wait() == 130
    assert "Traceback" not in run.text
