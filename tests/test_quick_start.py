"""The quick start as a new user types it, with two terminals and with one command, against an endpoint on loopback."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from nemo_gym.common.paths import PARENT_DIR
from nemo_gym.testing import rows_of
from tests.commands import Running, free_port, ng, started
from tests.polling import PATIENCE_S
from tests.served_model import served_model

CONFIG_PATHS = (
    "+config_paths=[resources_servers/example_simple_weather/configs/simple_weather.yaml,"
    "responses_api_models/openai_model/configs/openai_model.yaml]"
)
ROW = {
    "responses_create_params": {
        "input": [
            {"role": "developer", "content": "You are a helpful assistant."},
            {"role": "user", "content": "What is the weather in Seattle?"},
        ]
    }
}
SECRET = "sk-very-secret-indeed"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    replies = [
        {"user": "scarf", "turn": 0, "call": [{"name": "get_weather", "arguments": {"city": "Oslo"}}]},
        {"say": "Cold."},
    ]
    with served_model(replies) as url:
        yield url


@pytest.fixture
def folder(tmp_path: Path, endpoint: str) -> Path:
    """A user's folder with the env.yaml and the dataset of the quick start."""
    settings = {"policy_base_url": endpoint, "policy_api_key": SECRET, "policy_model_name": "gpt-x"}
    head = f"head_server:\n  host: 127.0.0.1\n  port: {free_port()}\n"
    (tmp_path / "env.yaml").write_text("".join(f"{key}: {value}\n" for key, value in settings.items()) + head)
    (tmp_path / "weather_query.jsonl").write_text(json.dumps(ROW) + "\n")
    return tmp_path


def collect(folder: Path, *more: str) -> "subprocess.CompletedProcess[str]":
    return ng(
        "ng_collect_rollouts",
        "+agent_name=simple_weather_simple_agent",
        "+input_jsonl_fpath=weather_query.jsonl",
        "+output_jsonl_fpath=weather_rollouts.jsonl",
        *more,
        cwd=folder,
    )


def records(folder: Path) -> list[dict[str, object]]:
    return rows_of(folder / "weather_rollouts.jsonl")


def test_one_command_is_enough(folder: Path) -> None:
    done = collect(folder, CONFIG_PATHS)
    assert done.returncode == 0, done.stderr
    (record,) = records(folder)
    assert (record["reward"], record["_task_index"]) == (1.0, 0)
    assert "reward         1 " in done.stdout
    assert SECRET not in done.stdout + done.stderr + (folder / "weather_rollouts.jsonl").read_text()
    made = {path.name for path in folder.iterdir()} - {"env.yaml", "weather_query.jsonl"}
    assert made == {f"weather_rollouts{ending}" for ending in (".jsonl", "_manifest.json", "_metrics.json")}
    assert SECRET not in (folder / "weather_rollouts_manifest.json").read_text()


def test_two_terminals(folder: Path) -> None:
    with started("ng_run", CONFIG_PATHS, cwd=folder) as run:
        run.wait_for("All 3 / 3 servers ready!")
        client = PARENT_DIR / "responses_api_agents/simple_agent/client.py"
        talked = subprocess.run(
            [sys.executable, client], cwd=folder, capture_output=True, text=True, timeout=60, check=False
        )
        assert talked.returncode == 0, talked.stderr
        kinds = [item["type"] for item in json.loads(talked.stdout)]
        assert kinds == ["function_call", "function_call_output", "message"]

        done = collect(folder)
        assert done.returncode == 0, done.stderr
        again = collect(folder, CONFIG_PATHS, "+use_running_servers=true")
        assert "using the servers of" in again.stderr
        alone = collect(folder, CONFIG_PATHS)
        assert "using the servers of" not in alone.stderr
        assert again.returncode == 0, again.stderr
        assert [record["reward"] for record in records(folder)] == [1.0]

        status = ng("ng_status", cwd=folder)
        assert "3 servers found (3 healthy, 0 unhealthy)" in status.stdout
        assert SECRET not in run.text + status.stdout + head_config(folder)
        assert_no_secret_in_processes(run)

        stopped = ng("ng_stop", cwd=folder)
        assert stopped.returncode == 0, stopped.stderr
        assert run.wait() == 0
        assert run.lines[-1] == "NeMo Gym finished!"


def head_config(folder: Path) -> str:
    import urllib.request

    port = (folder / "env.yaml").read_text().rpartition("port: ")[2].strip()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/global_config_dict_yaml") as answer:
        text: str = answer.read().decode()
    assert "policy_api_key: '****'" in text
    return text


def assert_no_secret_in_processes(run: Running) -> None:
    for process in [psutil.Process(run.process.pid), *run.workers()]:
        assert SECRET not in " ".join(process.cmdline())
        assert SECRET not in " ".join(process.environ().values())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_everything_and_leaves_nothing(folder: Path, number: signal.Signals) -> None:
    with started("ng_run", CONFIG_PATHS, cwd=folder) as run:
        run.wait_for("servers ready!")
        workers = run.workers()
        assert workers
        run.signal(number)
        assert run.wait() == 0
        assert not any(worker.is_running() for worker in workers)


def test_when_the_supervisor_is_killed_its_workers_end_by_themselves(folder: Path) -> None:
    with started("ng_run", CONFIG_PATHS, cwd=folder) as run:
        run.wait_for("servers ready!")
        workers = run.workers()
        run.signal(signal.SIGKILL)
        run.wait()
        _gone, alive = psutil.wait_procs(workers, timeout=PATIENCE_S)
        assert not alive


def test_a_second_run_reports_the_first(folder: Path) -> None:
    with started("ng_run", CONFIG_PATHS, cwd=folder) as run:
        run.wait_for("servers ready!")
        second = ng("ng_run", CONFIG_PATHS, cwd=folder)
        assert second.returncode == 2
        assert "stop it with `ng_stop`" in second.stderr
        assert "Traceback" not in second.stderr


def test_without_a_run_commands_say_so(folder: Path) -> None:
    for command in ("ng_status", "ng_stop"):
        done = ng(command, cwd=folder)
        assert done.returncode == 1
        assert "head server" in done.stdout + done.stderr
    done = collect(folder)
    assert done.returncode == 1
    assert "ng_run" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_wrong_config_stops_before_anything_starts(folder: Path) -> None:
    done = ng("ng_run", CONFIG_PATHS.replace("simple_weather.yaml", "simple_wether.yaml"), cwd=folder)
    assert done.returncode == 2
    assert "Did you mean" in done.stderr
    (folder / "env.yaml").write_text("policy_api_key: x\n")
    done = ng("ng_run", CONFIG_PATHS, cwd=folder)
    assert done.returncode == 2
    assert "policy_base_url" in done.stderr
    assert "env.yaml" in done.stderr
