"""Code of a server that blocks the event loop fails its own rollout, with its line, and no other; Ctrl+C works."""

import json
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest

from nemo_gym.rollouts.store import failures_path
from nemo_gym.testing import example_row, rows_of
from tests.commands import BIN, Running, ng, started
from tests.polling import PATIENCE_S
from tests.stacks import references

WAYS = """
import asyncio
import atexit
import os
import re
import signal
import socket
import sqlite3
import sys
import threading
import time

def block(place, text):
    if text.startswith(place + " "):
        globals()[text.split()[1]]()

def loop():
    while True:
        pass

def sleep():
    time.sleep(1e9)

def query():
    endless = "with recursive each(n) as (select 1 union all select n + 1 from each) select count(*) from each"
    sqlite3.connect(":memory:").execute(endless).fetchall()

def read():
    ours, theirs = socket.socketpair()
    ours.recv(1)

def regex():
    re.match("(a+)+$", "a" * 60 + "b")

def swallow():
    until = time.monotonic() + 6
    while time.monotonic() < until:
        try:
            while time.monotonic() < until:
                time.sleep(0.001)
        except BaseException:
            pass

def swallow_forever():
    while True:
        try:
            loop()
        except BaseException:
            pass

def compute():
    sum(range(10**12))

def recurse():
    try:
        recurse()
    except BaseException:
        pass
    try:
        recurse()
    except BaseException:
        pass

def ignore_signals():
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGURG):
        signal.signal(number, signal.SIG_IGN)

def almost():
    time.sleep(1.2)

def interrupt():
    raise KeyboardInterrupt

def leave():
    raise SystemExit(3)

def quit():
    os._exit(9)

def thread():
    threading.Thread(target=time.sleep, args=(1e6,)).start()

def ignore_signals_and_loop():
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    loop()

def stop_loop():
    asyncio.get_running_loop().stop()

def hang_at_exit():
    atexit.register(loop)

def fork():
    if os.fork() == 0:
        return
    os.wait()

def fork_and_loop():
    if os.fork() == 0:
        loop()

def fork_and_stay():
    child = os.fork()
    if child == 0:
        time.sleep(1e9)
    with open("child", "w") as file:
        file.write(str(child))
"""
ENVIRONMENT = f"""{WAYS}
from nemo_gym.base_resources_server import BaseVerifyRequest, SimpleResourcesServer, tool

def check(text):
    if text.startswith("check "):
        print("checking", file=sys.stderr, flush=True)
        block("check", text)

class BlockingResourcesServer(SimpleResourcesServer):
    @classmethod
    def check_row(cls, row):
        check(row["responses_create_params"]["input"][-1]["content"])

    @tool
    async def act(self, text: str) -> str:
        "Do it."
        block("tool", text)
        return "done"

    @tool
    def act_in_a_thread(self, text: str) -> str:
        "Do it in a thread."
        block("thread", text)
        return "done"

    async def verify(self, body: BaseVerifyRequest) -> float:
        text = body.responses_create_params.input[-1].content
        block("verify", text)
        if text == "verify ignore_signals":
            await asyncio.sleep(1e6)
        if text == "verify_in_a_group":
            async with asyncio.TaskGroup() as group:
                group.create_task(self.loop_in_a_task())
        if text == "verify_in_a_gather":
            await asyncio.gather(self.loop_in_a_task(), self.loop_in_a_task(), return_exceptions=True)
        if text == "await_in_a_fork":
            if os.fork() == 0:
                await asyncio.sleep(0)
                time.sleep(1e9)
            os.wait()
        return 1.0

    async def loop_in_a_task(self) -> None:
        loop()
"""
AGENT = f"""{WAYS}
from nemo_gym.base_responses_api_agent import ToolCallingAgent

class BlockingAgent(ToolCallingAgent):
    async def converse(self, body, jar):
        block("agent", body.responses_create_params.input[-1].content)
        return await super().converse(body, jar)
"""
MODEL = f"""{WAYS}
from nemo_gym.openai_utils import NeMoGymResponseCreateParamsNonStreaming
from responses_api_models.scripted_model.app import ScriptedModel

class BlockingModel(ScriptedModel):
    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming):
        block("model", str(body.input[0].content))
        return await super().responses(body)
"""
REPLIES = [
    {"user": "(tool .*)", "turn": 0, "call": [{"name": "act", "arguments": r'{"text": "\1"}'}]},
    {"user": "(thread .*)", "turn": 0, "call": [{"name": "act_in_a_thread", "arguments": r'{"text": "\1"}'}]},
    {"say": "Done."},
]
CAUSES = {"verify": "verifier", "tool": "environment", "agent": "internal", "model": "model"}
PLACES = {
    "verify": "resources_servers/blocking",
    "tool": "resources_servers/blocking",
    "agent": "responses_api_agents/blocking_agent",
    "model": "responses_api_models/blocking_model",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project(tmp_path)


def make_project(folder: Path) -> Path:
    config: dict[str, Any] = {}
    agent = {
        **references("blocking"),
        "datasets": [{"name": "example", "type": "example", "jsonl_fpath": "rows.jsonl"}],
    }
    for name, kind, implementation, code, settings in (
        ("blocking", "resources_servers", "blocking", ENVIRONMENT, {"domain": "other"}),
        ("agent", "responses_api_agents", "blocking_agent", AGENT, agent),
        ("policy_model", "responses_api_models", "blocking_model", MODEL, {"replies": REPLIES}),
    ):
        place = folder / kind / implementation
        place.mkdir(parents=True)
        (place / "app.py").write_text(code)
        config[name] = {kind: {implementation: {"entrypoint": "app.py", **settings}}}
    (folder / "config.yaml").write_text(json.dumps(config))
    return folder


def write_rows(project: Path, texts: list[str]) -> None:
    (project / "rows.jsonl").write_text("".join(json.dumps(example_row(text)) + "\n" for text in texts))


def arguments(*more: str, max_blocked_s: float = 1.0) -> list[str]:
    return [
        "+config_paths=[config.yaml]",
        "+agent_name=agent",
        "+input_jsonl_fpath=rows.jsonl",
        "+output_jsonl_fpath=out.jsonl",
        f"+max_blocked_s={max_blocked_s}",
        "+max_attempts=1",
        "+head_server.port=1",
        *more,
    ]


def collect(project: Path, *more: str, max_blocked_s: float = 1.0) -> "subprocess.CompletedProcess[str]":
    return ng("ng_collect_rollouts", *arguments(*more, max_blocked_s=max_blocked_s), cwd=project)


def final_failures(project: Path) -> dict[int, dict[str, Any]]:
    output = failures_path(project / "out.jsonl")
    return {each["_task_index"]: each for each in rows_of(output) if each["is_final"]} if output.exists() else {}


def scored(project: Path) -> list[int]:
    return sorted(record["_task_index"] for record in rows_of(project / "out.jsonl"))


@pytest.mark.parametrize("more", [[], ["+num_workers=2"]], ids=["one process", "workers"])
def test_code_that_blocks_fails_its_own_rollout_with_its_line(project: Path, more: list[str]) -> None:
    texts = [f"{place} {way}" for place in PLACES for way in ("loop", "sleep", "read", "regex")]
    texts += ["verify swallow", "verify_in_a_group", "verify_in_a_gather"]
    write_rows(project, [text for each in texts for text in (each, "fine")])
    done = collect(project, *more)
    assert (project / "out.jsonl").exists(), done.stderr
    assert scored(project) == list(range(1, 2 * len(texts), 2)), done.stderr
    failures = final_failures(project)
    assert sorted(failures) == list(range(0, 2 * len(texts), 2))
    for number, text in enumerate(texts):
        place, failure = text.split("_")[0].split()[0], failures[2 * number]
        assert (failure["cause"], failure["code"]) == (CAUSES[place], "blocked"), (text, failure)
        assert re.search(rf"{PLACES[place]}/app.py:\d+", failure["message"]), (text, failure)


def test_a_worker_that_c_code_blocks_is_killed_and_only_the_guilty_row_fails(project: Path) -> None:
    write_rows(project, ["fine"] * 20 + ["verify compute", "verify swallow_forever"] + ["fine"] * 20)
    done = collect(project, "+num_workers=2")
    assert scored(project) == [*range(20), *range(22, 42)], done.stderr
    failures = final_failures(project)
    assert {number: failure["code"] for number, failure in failures.items()} == {20: "blocked", 21: "blocked"}
    for failure in failures.values():
        assert re.search(r"resources_servers/blocking/app.py:\d+", failure["message"]), failure


def test_c_code_that_blocks_all_threads_costs_a_result_only_to_its_own_row(project: Path) -> None:
    write_rows(project, ["fine"] * 20 + ["thread compute"] + ["fine"] * 20 + ["thread regex"] + ["fine"] * 20)
    done = collect(project, "+num_workers=2")
    assert scored(project) == [*range(20), *range(21, 41), *range(42, 62)], done.stderr
    failures = {number: failure["message"] for number, failure in final_failures(project).items()}
    assert re.search(r"resources_servers/blocking/app.py:\d+ \(compute\)", failures[20])
    assert re.search(r"resources_servers/blocking/app.py:\d+ \(regex\)", failures[41])


def test_code_that_ends_before_the_limit_harms_nobody(project: Path) -> None:
    write_rows(project, ["verify almost", "fine"] * 4)
    done = collect(project, max_blocked_s=3.0)
    assert (done.returncode, scored(project)) == (0, list(range(8))), done.stderr


def test_the_deadline_of_a_rollout_ends_a_block_before_the_limit_does(project: Path) -> None:
    write_rows(project, ["verify loop", "fine"])
    done = collect(project, "+rollout_timeout_s=2", max_blocked_s=1000.0)
    assert scored(project) == [1], done.stderr
    assert [failure["code"] for failure in final_failures(project).values()] == ["blocked"]


@pytest.mark.parametrize("more", [[], ["+num_workers=2"]], ids=["one process", "workers"])
def test_forks_and_keyboard_interrupts_fail_no_other_rollout(project: Path, more: list[str]) -> None:
    texts = ["fine", "verify fork", "verify interrupt", "tool fork", "await_in_a_fork", "tool leave", "tool interrupt"]
    write_rows(project, [*texts, "verify stop_loop"])
    done = collect(project, *more)
    assert scored(project) == [0, 1, 3, 4, 7], done.stderr
    causes = {number: failure["cause"] for number, failure in final_failures(project).items()}
    assert causes == {2: "verifier", 5: "environment", 6: "environment"}
    assert len((project / "out.jsonl").read_text().splitlines()) == 5


def test_a_forked_child_does_not_hide_the_death_of_its_worker(project: Path) -> None:
    write_rows(project, [*["fine"] * 6, "verify fork_and_loop", "tool quit", *["fine"] * 6])
    done = collect(project, "+num_workers=2")
    assert scored(project) == [number for number in range(14) if number != 7], done.stderr


def test_a_thread_that_the_code_of_a_server_leaves_does_not_keep_a_command(project: Path) -> None:
    write_rows(project, ["verify thread", "fine"])
    done = collect(project)
    assert (done.returncode, scored(project)) == (0, [0, 1]), done.stderr
    assert "Not waiting for threads" in done.stderr


def test_a_function_that_the_code_of_a_server_leaves_for_the_exit_does_not_keep_a_command(project: Path) -> None:
    write_rows(project, ["verify hang_at_exit", "fine"])
    done = collect(project)
    assert (done.returncode, scored(project)) == (0, [0, 1]), done.stderr
    assert "called at exit" in done.stderr


def test_a_forked_child_that_stays_keeps_neither_the_output_nor_the_command(project: Path) -> None:
    write_rows(project, ["verify fork_and_stay", "fine"])
    first = subprocess.Popen([str(BIN / "ng_collect_rollouts"), *arguments()], cwd=project, stderr=subprocess.DEVNULL)
    assert first.wait(PATIENCE_S) == 0
    child = psutil.Process(int((project / "child").read_text()))
    try:
        write_rows(project, ["fine"])
        again = collect(project, "+resume=restart")
        assert (again.returncode, child.is_running()) == (0, True), again.stderr
    finally:
        child.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("more", [[], ["+num_workers=2"]], ids=["one process", "workers"])
@pytest.mark.parametrize("way", ["loop", "sleep", "compute", "swallow_forever", "recurse"])
def test_one_interrupt_ends_a_command_whatever_its_code_does(
    project: Path, way: str, more: list[str], number: signal.Signals
) -> None:
    write_rows(project, ["fine", *[f"verify {way}"] * 8])
    with started("ng_collect_rollouts", *arguments(*more, max_blocked_s=1000.0), cwd=project) as run:
        wait_until_blocked(run)
        run.signal(number)
        code = run.wait()
    assert code in (130, -signal.SIGKILL)
    assert scored(project) in ([], [0])
    if way == "compute" and not more:
        assert re.search(r"C code .*resources_servers/blocking/app.py:\d+", run.text)
    elif way == "recurse" and not more:  # nothing of ours can run where the stack ends
        assert re.search(r"resources_servers/blocking/app.py:\d+ \(recurse\)", run.text)
    else:
        assert "Press Ctrl+C again" in run.text, run.text


def test_c_code_that_cannot_be_interrupted_is_named_also_after_other_code_that_blocked(project: Path) -> None:
    write_rows(project, ["verify loop", "verify query"])
    with started("ng_collect_rollouts", *arguments(), cwd=project) as run:
        run.wait_for("(query) blocks the event loop and cannot be interrupted")
        run.signal(signal.SIGINT)
        assert run.wait() in (130, -signal.SIGKILL), run.text


def test_c_code_in_a_thread_that_blocks_all_others_is_named_and_ends_at_once(project: Path) -> None:
    write_rows(project, ["fine"] * 20 + ["thread compute"] + ["fine"] * 20)
    with started("ng_collect_rollouts", *arguments(max_blocked_s=1000.0), cwd=project) as run:
        run.wait_for("C code blocks all of Python")
        run.signal(signal.SIGINT)
        assert run.wait() in (130, -signal.SIGKILL), run.text
    assert re.search(r"C code blocks all of Python at .*resources_servers/blocking/app.py:\d+ \(compute\)", run.text)


@pytest.mark.parametrize("way", ["loop", "compute", "swallow_forever", "recurse"])
def test_one_interrupt_ends_a_command_whose_servers_do_not_load(project: Path, way: str) -> None:
    write_rows(project, ["fine"])
    app = project / "resources_servers" / "blocking" / "app.py"
    app.write_text(f'{WAYS}\nimport sys\nprint("loading", file=sys.stderr, flush=True)\n{way}()\n')
    with started("ng_collect_rollouts", *arguments(), cwd=project) as run:
        run.wait_for("loading")
        run.signal(signal.SIGINT)
        assert run.wait() in (130, -signal.SIGKILL), run.text


GENERATOR = """
from resources_servers.blocking.app import check

def generate_rows(seed, count, difficulty):
    check(open("way").read())
"""


PREPARE = ["ng_prepare_data", "+config_paths=[config.yaml]", "+mode=example_validation", "+output_dirpath=prepared"]
EVALUATE = ["ng_eval", "config.yaml", "--dataset", "rows.jsonl"]
GENERATE = ["ng_generate_data", "+entrypoint=resources_servers/blocking", "+output_dirpath=generated"]


@pytest.mark.parametrize(
    ("command", "way"),
    [
        (PREPARE, "loop"),
        (PREPARE, "compute"),
        (PREPARE, "swallow_forever"),
        (EVALUATE, "compute"),
        (GENERATE, "compute"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_one_interrupt_ends_a_command_that_checks_or_generates_rows(
    project: Path, command: list[str], way: str
) -> None:
    write_rows(project, [f"check {way}"])
    config = project / "config.yaml"
    config.write_text(config.read_text().replace('"agent": {', '"player": {'))  # `agent` is a parameter of ng_eval
    (project / "way").write_text(f"check {way}")
    (project / "resources_servers" / "blocking" / "generate.py").write_text(GENERATOR)
    with started(*command, cwd=project) as run:
        run.wait_for("checking")
        run.signal(signal.SIGINT)
        assert run.wait() in (130, -signal.SIGKILL), run.text


def test_servers_may_load_for_longer_than_code_may_block(project: Path) -> None:
    write_rows(project, ["fine"])
    app = project / "resources_servers" / "blocking" / "app.py"
    app.write_text(f"import time\ntime.sleep(8)\n{app.read_text()}")
    done = collect(project, "+num_workers=2")
    assert (done.returncode, scored(project)) == (0, [0]), done.stderr


@pytest.mark.parametrize("way", ["ignore_signals", "ignore_signals_and_loop"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_code_of_a_server_cannot_take_the_handlers_of_interrupts_away(
    project: Path, number: signal.Signals, way: str
) -> None:
    write_rows(project, [f"verify {way}"])
    with started("ng_collect_rollouts", *arguments(max_blocked_s=1000.0), cwd=project) as run:
        run.wait_for(f"handler of {number.name}")
        run.signal(number)
        assert run.wait() == 130, run.text


def wait_until_blocked(run: Running) -> None:
    run.wait_for("blocks")


def test_a_second_interrupt_ends_a_command_and_its_workers_at_once(project: Path) -> None:
    write_rows(project, ["verify swallow_forever"])
    with started("ng_collect_rollouts", *arguments("+num_workers=2", max_blocked_s=1000.0), cwd=project) as run:
        wait_until_blocked(run)
        workers = run.workers()
        run.signal(signal.SIGINT)
        run.wait_for("Press Ctrl+C again")
        run.signal(signal.SIGINT)
        assert run.wait() == 130
        _, alive = psutil.wait_procs(workers, timeout=30)
    assert not alive
