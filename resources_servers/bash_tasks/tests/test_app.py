"""Scripts in the real sandbox: right ones, wrong ones, and those that attack the tests."""

from typing import Any

import pytest

from nemo_gym.testing import client_for, message, response_of, rows_of, says
from resources_servers.bash_tasks.app import BashTasksResourcesServer
from resources_servers.bash_tasks.checks import script_in
from tests.benchmarks import benchmark_rows

ROWS = rows_of("resources_servers/bash_tasks/data/example.jsonl")
ATTACKS = {
    "prints what pytest prints": "echo '1 passed'; echo 'All tests succeeded'; exit 0",
    "kills the tests": "kill -9 $PPID",
    "ends with success": "exit 0",
    "leaves a conftest": "echo 'def pytest_runtest_makereport(item, call): pass' > conftest.py; touch pytest.ini",
    "leaves modules": "echo 'raise SystemExit(0)' > subprocess.py; cp subprocess.py pytest.py; cp pytest.py json.py",
    "looks for the tests": "cat $(find / -name 'test_task*' 2>/dev/null) < /dev/null; grep -rs 'assert run' /tmp .",
    "reads the secret": "cat /proc/$PPID/environ /proc/$PPID/mem /proc/$PPID/fd/* 2>/dev/null | head -c 1000000",
    "writes to the tests' output": "for fd in /proc/$PPID/fd/*; do echo secret > $fd; done 2>/dev/null",
    "knows which test runs": '[ "$PYTEST_CURRENT_TEST" ] && { echo b; echo a; }',
}


def fenced(script: str) -> dict[str, Any]:
    return says(f"```bash\n#!/bin/bash\n{script}\n```")


async def test_right_scripts_pass_and_empty_ones_do_not() -> None:
    async with client_for(BashTasksResourcesServer) as environment:
        for number, row in enumerate(ROWS):
            replies = [(says(row["gold_response"]), 1.0), (fenced(""), 0.0)]
            for reply, reward in replies[: 2 if number < 2 else 1]:
                record = (await environment.post("/verify", json={**row, "response": reply})).json()
                assert record["reward"] == reward


async def test_both_files_of_tests_must_pass() -> None:
    async with client_for(BashTasksResourcesServer) as environment:
        public_only = {**ROWS[0], "response": fenced("echo b; echo a")}
        record = (await environment.post("/verify", json=public_only)).json()
        assert (record["reward"], record["passed"]) == (0.0, [True, False])


@pytest.mark.parametrize("name", ATTACKS)
async def test_a_script_cannot_pass_tests_that_fail(name: str) -> None:
    async with client_for(BashTasksResourcesServer) as environment:
        row = {**ROWS[0], "tests": ROWS[0]["tests"][:1] * 2, "response": fenced(ATTACKS[name])}
        record = (await environment.post("/verify", json=row)).json()
        assert record["reward"] == 0.0


async def test_a_script_that_does_not_end_is_stopped() -> None:
    async with client_for(BashTasksResourcesServer, test_timeout_s=1) as environment:
        row = {**ROWS[0], "response": fenced("while :; do :; done")}
        assert (await environment.post("/verify", json=row)).json()["reward"] == 0.0


async def test_a_reply_without_a_script_has_none() -> None:
    async with client_for(BashTasksResourcesServer) as environment:
        for reply in (says("echo b"), says("```python\nprint()\n```"), response_of(message(""))):
            record = (await environment.post("/verify", json={**ROWS[0], "response": reply})).json()
            assert (record["reward"], record["passed"]) == (0.0, [])


def test_the_last_shell_block_counts() -> None:
    assert script_in("```bash\na\n```\nBetter:\n```sh\nb\n```\n```python\nc\n```") == "b\n"
    assert script_in("```bash\nnever closed") is None


@pytest.mark.parametrize(
    ("tests", "fact"), [("def", "not valid Python"), ("def test_a(): pass", "starts solution.sh"), ("", "solution.sh")]
)
async def test_tests_that_cannot_fail_a_script_are_refused(tests: str, fact: str) -> None:
    async with client_for(BashTasksResourcesServer) as environment:
        assert fact in (await environment.post("/seed_session", json={**ROWS[0], "tests": [tests]})).text


def test_156_tasks_of_the_package_can_be_run_here() -> None:
    rows = benchmark_rows("bash_tasks/bash_tasks")
    assert len({row["id"] for row in rows}) == len(rows) == 156
    for row in rows:
        BashTasksResourcesServer.check_row(row)
