"""Code of a server that raises what is no `Exception` fails its own rollout: no row is lost, and nothing waits."""

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.config.loading import load_config
from nemo_gym.errors import RolloutError
from nemo_gym.rollouts.collector import AdaptiveLimiter, AimdWindow, RolloutCollectionHelper, collect
from nemo_gym.rollouts.completion_stream import CompletionOrderStream
from nemo_gym.rollouts.store import failures_path
from nemo_gym.rollouts.types import Outcome, Row
from nemo_gym.runtime.launcher import Launcher
from nemo_gym.testing import example_row, rows_of
from tests.commands import ng
from tests.polling import PATIENCE_S
from tests.stacks import agent_config

ESCAPING = """
import asyncio
import sys

from nemo_gym.base_resources_server import BaseVerifyRequest, SimpleResourcesServer, tool

async def await_cancelled_task() -> None:
    shared = asyncio.create_task(asyncio.sleep(3600))
    asyncio.get_running_loop().call_soon(shared.cancel)
    await shared

async def leave() -> None:
    sys.exit(0)

class EscapingResourcesServer(SimpleResourcesServer):
    @tool
    async def look(self) -> str:
        "Look."
        await await_cancelled_task()
        return "seen"

    async def verify(self, body: BaseVerifyRequest) -> float:
        what = body.responses_create_params.input[-1].content
        if what == "cancel":
            await await_cancelled_task()
        if what == "exit":
            sys.exit(0)
        if what == "exit in a task":
            await asyncio.create_task(leave())
        if what == "close":
            raise GeneratorExit
        if what == "exit behind it":
            asyncio.create_task(leave())
            await asyncio.sleep(0.05)
        if what == "wait":
            await asyncio.sleep(3600)
        return 1.0
"""
CONFIG = agent_config("escaping", replies=[{"user": "tool", "call": [{"name": "look"}]}, {"say": "Done."}])
PROMPTS = ["fine", "cancel", "exit", "close", "tool", "fine"]
FINAL_FAILURES = {
    1: ("verifier", 2),  # it is not the verifier's own error, so there is a second attempt
    2: ("verifier", 1),
    3: ("verifier", 1),
    4: ("environment", 2),
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "resources_servers" / "escaping"
    folder.mkdir(parents=True)
    (folder / "app.py").write_text(ESCAPING)
    (tmp_path / "config.yaml").write_text(CONFIG)
    rows = [example_row(prompt) for prompt in PROMPTS]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def collect_in(project: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return ng(
        "ng_collect_rollouts",
        "+config_paths=[config.yaml]",
        "+agent_name=agent",
        "+input_jsonl_fpath=rows.jsonl",
        "+output_jsonl_fpath=out.jsonl",
        "+max_attempts=2",
        "+head_server.port=1",
        *more,
        cwd=project,
    )


@pytest.mark.parametrize("more", [[], ["+num_workers=2"]])
def test_a_collection_has_an_outcome_for_every_row(project: Path, more: list[str]) -> None:
    output, done = project / "out.jsonl", collect_in(project, *more)
    assert sorted(record["_task_index"] for record in rows_of(output)) == [0, 5], done.stderr
    failures = [each for each in rows_of(failures_path(output)) if each["is_final"]]
    found = {each["_task_index"]: (each["cause"], each["attempt"]) for each in failures}
    assert (found, len(failures)) == (FINAL_FAILURES, len(FINAL_FAILURES))
    assert "asyncio.shield" in str([each["message"] for each in failures if each["_task_index"] == 1])


@pytest.mark.parametrize("more", [[], ["+num_workers=2"]])
def test_a_verifier_that_outlasts_the_rollout_is_a_timeout_with_the_response(project: Path, more: list[str]) -> None:
    (project / "rows.jsonl").write_text("".join(json.dumps(example_row(prompt)) + "\n" for prompt in ("wait", "fine")))
    output, done = project / "out.jsonl", collect_in(project, "+rollout_timeout_s=2", "+max_attempts=1", *more)
    assert [record["_task_index"] for record in rows_of(output)] == [1], done.stderr
    [failure] = rows_of(failures_path(output))
    assert (failure["_task_index"], failure["cause"]) == (0, "timeout")
    assert failure["response"]["output"][0]["content"][0]["text"] == "Done."


@pytest.mark.parametrize("more", [[], ["+num_workers=2"]])
def test_an_exit_in_a_task_of_its_own_ends_no_process(project: Path, more: list[str]) -> None:
    prompts = ["fine", "exit in a task", "exit behind it", "fine"]
    (project / "rows.jsonl").write_text("".join(json.dumps(example_row(prompt)) + "\n" for prompt in prompts))
    output, done = project / "out.jsonl", collect_in(project, *more)
    assert sorted(record["_task_index"] for record in rows_of(output)) == [0, 2, 3], done.stderr
    failures = [each for each in rows_of(failures_path(output)) if each["is_final"]]
    assert [(each["_task_index"], each["cause"]) for each in failures] == [(1, "verifier")]
    assert "raised SystemExit(0) in a task" in done.stderr


@pytest.mark.parametrize("num_workers", [1, 2])
async def test_a_trainer_gets_an_error_for_each_such_row(project: Path, num_workers: int) -> None:
    arguments = ["config_paths=[config.yaml]", "head_server={host: 127.0.0.1, port: 0}", f"num_workers={num_workers}"]
    launcher = Launcher(load_config(arguments, use_dotenv=False, fill_ports=False), echo=print)
    rows = [{**example_row(prompt), "agent_ref": {"name": "agent"}, "_rowidx": n} for n, prompt in enumerate(PROMPTS)]
    causes: list[str] = []
    scored: list[int] = []
    async with asyncio.timeout(PATIENCE_S), launcher, launcher.client() as client:
        for future in RolloutCollectionHelper().run_examples(rows, client=client):
            try:
                scored.append((await future)[1]["_rowidx"])
            except RolloutError as error:
                causes.append(error.cause)
    assert (sorted(scored), sorted(causes)) == ([0, 5], ["environment", "verifier", "verifier", "verifier"])


def a_row(number: int) -> Row:
    return Row(number, 0, "0" * 16, "agent", b"{}")


async def test_a_rollout_that_ends_as_if_cancelled_is_written_as_a_failure() -> None:
    written: list[Outcome] = []

    async def run(row: Row) -> Outcome:
        task = asyncio.current_task()
        if row.task_index == 1 and task is not None:
            task.cancel()  # some library cancels the task that it runs in, for a timeout of its own
        await asyncio.sleep(0)
        return Outcome(row, b"{}")

    async def write(outcome: Outcome) -> None:
        written.append(outcome)

    await collect(map(a_row, range(3)), run, write, AdaptiveLimiter(AimdWindow(3, 3)))
    assert [outcome.row.task_index for outcome in written] == [0, 2, 1]
    assert written[2].error is not None
    assert written[2].error.cause == "internal"


@pytest.mark.parametrize("error", [asyncio.CancelledError(), GeneratorExit()])
async def test_a_trainer_gets_an_error_of_a_rollout_whatever_it_raises(error: BaseException) -> None:
    async def run(_row: Any) -> None:
        raise error

    (future,) = CompletionOrderStream([1], run, parallel=1)
    with pytest.raises(RolloutError, match=type(error).__name__):
        await future
