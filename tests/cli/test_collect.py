"""What a user sees while a collection goes on."""

import contextlib
import json
import os
import re
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from nemo_gym.testing import rows_of
from tests.commands import BIN, ng
from tests.jsonl import write_lines
from tests.stacks import agent_config

WEATHER = "resources_servers/example_simple_weather"
ARGUMENTS = (
    f"+config_paths=[{WEATHER}/configs/simple_weather.yaml,"
    "responses_api_models/scripted_model/configs/scripted_model.yaml]",
    "+agent_name=simple_weather_simple_agent",
    f"+input_jsonl_fpath={WEATHER}/data/example.jsonl",
    "+output_jsonl_fpath=out.jsonl",
    "+head_server.port=1",
)
SLOW_START = """
import time

from nemo_gym.base_resources_server import BaseVerifyRequest, SimpleResourcesServer

time.sleep(1.5)


class SlowStartResourcesServer(SimpleResourcesServer):
    async def verify(self, body: BaseVerifyRequest) -> float:
        return 1.0
"""


NO_METRICS = """
from typing import Any

from nemo_gym.base_resources_server import BaseVerifyRequest, SimpleResourcesServer


class NoMetricsResourcesServer(SimpleResourcesServer):
    async def verify(self, body: BaseVerifyRequest) -> float:
        return 1.0

    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        raise ValueError("no metrics today")
"""


COLLECT = """
import sys
from nemo_gym.cli.collect import collect_rollouts
try:
    collect_rollouts()
finally:
    print(*sys.modules)
"""


def last_line(stderr: str) -> str:
    return [line for line in stderr.splitlines() if line.startswith("Collecting rollouts:")][-1]


def test_progress_lines_count_the_rollouts_of_an_earlier_run(tmp_path: Path) -> None:
    first = ng("ng_collect_rollouts", *ARGUMENTS, "+limit=2", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert re.search(r": 2 of 2, reward 1\.000, 0 failed, 0 in flight, [\d.]+ a second, 0:00:00 left", first.stderr)
    second = ng("ng_collect_rollouts", *ARGUMENTS, cwd=tmp_path)
    assert last_line(second.stderr).startswith("Collecting rollouts: 5 of 5, reward 1.000, 0 failed")
    nothing = ng("ng_collect_rollouts", *ARGUMENTS, "+limit=3", cwd=tmp_path)
    assert last_line(nothing.stderr).startswith("Collecting rollouts: 5 of 5, reward 1.000, 0 failed")


def test_a_collection_loads_nothing_that_only_public_code_needs(tmp_path: Path) -> None:
    command = [sys.executable, "-c", COLLECT, *ARGUMENTS]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    loaded = done.stdout.splitlines()[-1].split()
    assert not {"aiohttp", "fastapi", "hydra"} & {*loaded}
    assert [name for name in loaded if name.startswith("nemo_gym.compat")] == []


def test_a_terminal_gets_a_bar_with_a_rate_that_the_start_of_servers_does_not_lower(tmp_path: Path) -> None:
    folder = tmp_path / "resources_servers" / "slow_start"
    folder.mkdir(parents=True)
    (folder / "app.py").write_text(SLOW_START)
    (tmp_path / "config.yaml").write_text(agent_config("slow_start", replies=[{"say": "Done."}]))
    write_lines(tmp_path / "rows.jsonl", [{"responses_create_params": {"input": "Hello."}}])
    files = ("+config_paths=[config.yaml]", "+input_jsonl_fpath=rows.jsonl", "+output_jsonl_fpath=out.jsonl")
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (40, 120))
    done = subprocess.Popen(
        [str(BIN / "ng_collect_rollouts"), *files, "+agent_name=agent", "+head_server.port=1"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=theirs,
    )
    os.close(theirs)
    seen = b""
    with contextlib.suppress(OSError):  # which is how a terminal ends
        while part := os.read(ours, 65536):
            seen += part
    os.close(ours)
    assert done.wait(60) == 0
    assert re.search(r"1/1 .*/s, reward 1\.000, 0 failed", seen.decode())


def test_the_last_lines_say_that_the_metrics_of_the_environment_are_missing(tmp_path: Path) -> None:
    folder = tmp_path / "resources_servers" / "no_metrics"
    folder.mkdir(parents=True)
    (folder / "app.py").write_text(NO_METRICS)
    (tmp_path / "config.yaml").write_text(agent_config("no_metrics", replies=[{"say": "Done."}]))
    write_lines(tmp_path / "rows.jsonl", [{"responses_create_params": {"input": "Hello."}}])
    files = ("+config_paths=[config.yaml]", "+input_jsonl_fpath=rows.jsonl", "+output_jsonl_fpath=out.jsonl")
    done = ng("ng_collect_rollouts", *files, "+agent_name=agent", "+head_server.port=1", cwd=tmp_path)
    *_, error, remedy = done.stderr.splitlines()
    assert error.startswith("The aggregate metrics of out.jsonl are not computed: ")
    assert "ng_aggregate_rollouts +rollouts_jsonl_fpath=out.jsonl" in remedy
    shown = ng("ng_collect_rollouts", *files, "+agent_name=agent", "+head_server.port=1", "--json", cwd=tmp_path)
    assert "not computed" in json.loads(shown.stdout)["aggregation_error"]


@pytest.mark.parametrize(("isolation", "more"), [("shared", []), ("shared", ["+num_workers=2"]), ("process", [])])
def test_rows_that_cannot_be_scored_are_counted_and_not_tried_again(
    isolation: str, more: list[str], tmp_path: Path
) -> None:
    options = [{"A": "one"}, {"B": "two"}]
    params = {"input": "Which?"}
    rows = [
        {"responses_create_params": params, "options": options, "expected_answer": letter} for letter in "ABCDCDCDCDCD"
    ]
    write_lines(tmp_path / "rows.jsonl", rows)
    config = agent_config("mcqa", isolation=isolation, replies=[{"say": "\\boxed{A}", "times": 4}])
    (tmp_path / "config.yaml").write_text(config)
    done = ng(
        "ng_collect_rollouts", "+config_paths=[config.yaml]", "+agent_name=agent", "+input_jsonl_fpath=rows.jsonl",
        "+output_jsonl_fpath=out.jsonl", "+num_repeats=2", "+head_server.port=1", *more, cwd=tmp_path,
    )  # fmt: skip
    assert "20 of 24 rollouts failed" in done.stderr
    assert "10 invalid rows, first: row " in done.stderr
    failed = rows_of(tmp_path / "out_failures.jsonl")
    assert {(each["cause"], each["attempt"], each["is_final"]) for each in failed} == {("input", 1, True)}
    assert sorted(each["reward"] for each in rows_of(tmp_path / "out.jsonl")) == [0.0, 0.0, 1.0, 1.0]
