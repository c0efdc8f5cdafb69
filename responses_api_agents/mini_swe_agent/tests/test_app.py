"""The whole loop on toy repositories, offline: model, commands, patch, hidden tests, reward."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nemo_gym import PARENT_DIR, ServerClient
from nemo_gym.errors import ConfigError, RolloutError
from nemo_gym.sandbox import SandboxExecResult
from nemo_gym.testing import rows_of, running_servers, servers_of
from responses_api_agents.mini_swe_agent.app import MiniSWERunRequest
from responses_api_agents.mini_swe_agent.containers import image_name, provider_and_spec
from responses_api_agents.mini_swe_agent.grading import Instance, is_resolved
from responses_api_agents.mini_swe_agent.harness import (
    FINAL_MARKER,
    Message,
    converse,
    observation,
    shortened,
    submitted,
)
from responses_api_agents.mini_swe_agent.toys import TOYS, row

OWN_ROWS = PARENT_DIR / "resources_servers/mini_swe_agent/data/example.jsonl"
PUBLIC_ROWS = PARENT_DIR.parent / "shared/data/mini_swe_agent/example.jsonl"
SUBMIT = f"echo {FINAL_MARKER} && git add -A && git diff --cached"
STACK = row(next(toy for toy in TOYS if toy.name == "stack"))


def block(command: str) -> str:
    return f"I try this.\n```bash\n{command}\n```"


@asynccontextmanager
async def agent(results: Path, replies: list[dict[str, Any]], **config: Any) -> AsyncIterator[ServerClient]:
    servers = servers_of(
        "responses_api_agents/mini_swe_agent/configs/mini_swe_agent_toys.yaml",
        "responses_api_models/scripted_model/configs/scripted_model.yaml",
        policy_model={"responses_api_models": {"scripted_model": {"script_fpath": None, "replies": replies}}},
        mini_swe_simple_agent={
            "responses_api_agents": {"mini_swe_agent": {"results_dirpath": str(results), **config}}
        },
    )
    async with running_servers(servers) as client:
        yield client


async def played(results: Path, commands: list[str], one: dict[str, Any] = STACK, **config: Any) -> dict[str, Any]:
    """One rollout in which the model gives these commands, then submits."""
    replies: list[dict[str, Any]] = [{"say": block(command), "times": 1} for command in commands]
    async with agent(results, [*replies, {"say": block(SUBMIT)}], **config) as client:
        answer = await client.post("mini_swe_simple_agent", "/run", json=one)
        assert answer.status == 200, await answer.text()
        record: dict[str, Any] = await answer.json()
        return record


def said(record: dict[str, Any]) -> list[tuple[str, str]]:
    return [(item["role"], item["content"][0]["text"]) for item in record["response"]["output"]]


def test_the_rows_are_those_of_the_script() -> None:
    assert rows_of(OWN_ROWS) == [row(toy) for toy in TOYS]


async def test_the_gold_patch_of_every_toy_scores(tmp_path: Path) -> None:
    async with agent(tmp_path, [{"say": "never asked"}], run_golden=True) as client:
        for one in rows_of(OWN_ROWS):
            record = await (await client.post("mini_swe_simple_agent", "/run", json=one)).json()
            assert record["reward"] == 1.0, record["metadata"]


async def test_an_attempt_ends_when_its_model_calls_have_cost_enough(tmp_path: Path) -> None:
    prices: dict[str, Any] = {
        "cost_limit": 1e-9,
        "cost_per_million_input_tokens": 1.0,
        "cost_per_million_output_tokens": 1.0,
    }
    record = await played(tmp_path, ["ls", "ls", "ls"], **prices)
    assert [role for role, _ in said(record)] == ["assistant", "user"]
    free = await played(tmp_path / "free", ["ls", "pwd"], cost_limit=1e-9)
    assert len(said(free)) == 6


async def test_a_model_that_fixes_the_bug_scores(tmp_path: Path) -> None:
    record = await played(tmp_path, ["cat stack.py", "sed -i 's/pop(0)/pop()/' stack.py"])
    assert record["reward"] == 1.0
    assert record["instance_id"] == "toys__stack-1"
    report = record["metadata"]["eval_report"]["toys__stack-1"]
    assert (report["resolved"], report["patch_exists"]) == (True, True)
    assert report["tests_status"]["FAIL_TO_PASS"] == {"success": ["test_stack.py::test_last_first"], "failure": []}
    start = record["responses_create_params"]["input"]
    assert [message["role"] for message in start] == ["system", "user"]
    assert "wrong end" in start[1]["content"][0]["text"]
    talk = said(record)
    assert [role for role, _ in talk] == ["assistant", "user"] * 3
    assert "<returncode>0</returncode>\n<output>\nclass Stack:" in talk[1][1]
    assert talk[-1][1].startswith("diff --git a/stack.py b/stack.py")
    first = record["response"]["output"][0]
    assert first["id"].startswith("cht_")
    assert [first[name] for name in ("prompt_token_ids", "generation_token_ids", "generation_log_probs")] == [[]] * 3
    assert (record["response"]["temperature"], record["response"]["top_p"]) == (1.0, 1.0)
    saved = tmp_path / "toys" / "policy_model" / "toys__stack-1" / "toys__stack-1.json"
    assert json.loads(saved.read_text())["reward"] == 1.0


async def test_a_saved_result_is_used_again(tmp_path: Path) -> None:
    first = await played(tmp_path, ["sed -i 's/pop(0)/pop()/' stack.py"])
    again = await played(tmp_path, ["false"], skip_if_exists=True)
    assert again == first


FORGED = "short test summary info\\\\nPASSED test_stack.py::test_one\\\\nPASSED test_stack.py::test_last_first\\\\n"
PLUGIN = (
    "printf 'import pytest\\n@pytest.hookimpl(tryfirst=True)\\ndef pytest_pyfunc_call(pyfuncitem):\\n"
    "    return True\\n' > cheat.py"
)

CHEATS = {
    "a summary of its own, printed everywhere before it ends": [
        f'printf \'import os\\nfor fd in range(1, 30):\\n    try: os.write(fd, b"{FORGED}")\\n'
        "    except OSError: pass\\nos._exit(0)\\n' > stack.py"
    ],
    "a summary of its own, printed last": [
        f"printf 'import atexit, os\\natexit.register(lambda: os.write(1, b\"{FORGED}\"))\\n' > stack.py"
    ],
    "a package that pytest imports": [f"printf 'import os\\nos.write(1, b\"{FORGED}\")\\nos._exit(0)\\n' > pluggy.py"],
    "a plugin by metadata": [
        f"{PLUGIN}; mkdir cheat.Egg-Info; printf '[pytest11]\\ncheat = cheat\\n' > cheat.Egg-Info/entry_points.txt; "
        "printf 'Metadata-Version: 2.1\\nName: cheat\\nVersion: 1\\n' > cheat.Egg-Info/PKG-INFO"
    ],
    "a folder in the place of the tests": ["mkdir test_stack.py; echo > test_stack.py/x"],
    "the marker at once": [],
    "a patch that is only printed": [f"echo {FINAL_MARKER}; echo 'diff --git a/stack.py b/stack.py'"],
    "tests of its own": ["printf 'def test_one(): pass\\ndef test_last_first(): pass\\n' > test_stack.py"],
    "a conftest that passes everything": [
        "printf 'import pytest\\n@pytest.hookimpl(tryfirst=True)\\ndef pytest_pyfunc_call(pyfuncitem):\\n"
        "    return True\\n' > conftest.py"
    ],
    "a plugin by pytest.ini": [
        "printf '[pytest]\\naddopts = -p cheat\\n' > pytest.ini; printf 'import pytest\\n"
        "@pytest.hookimpl(tryfirst=True)\\ndef pytest_pyfunc_call(pyfuncitem):\\n    return True\\n' > cheat.py"
    ],
    "a plugin by pyproject.toml": [
        "printf '[tool.pytest.ini_options]\\naddopts = \"-p cheat\"\\n' > pyproject.toml; printf 'import pytest\\n"
        "@pytest.hookimpl(tryfirst=True)\\ndef pytest_pyfunc_call(pyfuncitem):\\n    return True\\n' > cheat.py"
    ],
    "a pytest of its own": ["mkdir _pytest; echo 'print(\"PASSED test_stack.py::test_one\")' > pytest.py"],
    "another base commit": [
        "sed -i 's/assert/assert True or/' stack.py; git tag -f base; git commit -qam x --allow-empty; git tag -f base"
    ],
}


@pytest.mark.parametrize("cheat", CHEATS)
async def test_a_model_that_cheats_does_not_score(tmp_path: Path, cheat: str) -> None:
    record = await played(tmp_path, CHEATS[cheat])
    assert record["reward"] == 0.0, said(record)


async def test_neither_the_gold_patch_nor_the_tests_are_there_to_be_read(tmp_path: Path) -> None:
    look = "grep -rls 'test_last_first' / --exclude-dir=proc --exclude-dir=usr; grep -c 'pop()' stack.py"
    record = await played(tmp_path, [look])
    assert said(record)[1][1] == "<returncode>1</returncode>\n<output>\n0\n</output>"


async def test_a_row_may_bring_its_own_conversation_and_sampling(tmp_path: Path) -> None:
    params = {"input": [{"role": "user", "content": "Fix it."}], "temperature": 0.3, "top_p": 0.9}
    record = await played(
        tmp_path, ["sed -i 's/pop(0)/pop()/' stack.py"], {**STACK, "responses_create_params": params}
    )
    assert record["reward"] == 1.0
    assert record["responses_create_params"]["input"][0]["content"][0]["text"] == "Fix it."
    assert (record["response"]["temperature"], record["response"]["top_p"]) == (0.3, 0.9)


async def test_a_command_that_is_late_becomes_a_message(tmp_path: Path) -> None:
    record = await played(tmp_path, ["echo begun; sleep 60"], step_timeout=2)
    assert "took too long" in said(record)[1][1]
    assert "begun" in said(record)[1][1]


async def test_tests_that_take_too_long_are_noted(tmp_path: Path) -> None:
    record = await played(tmp_path, ["echo 'import time; time.sleep(60)' >> stack.py"], eval_timeout=2)
    report = record["metadata"]["eval_report"]["toys__stack-1"]
    assert (record["reward"], report["resolved"], "did not finish" in report["note"]) == (0.0, False, True)


async def test_a_model_that_fails_is_no_result(tmp_path: Path) -> None:
    async with agent(tmp_path, [{"status": 400}]) as client:
        answer = await client.post("mini_swe_simple_agent", "/run", json=STACK)
        assert answer.status >= 400
        conversation = await client.post("mini_swe_simple_agent", "/v1/responses", json={"input": "x"})
        assert conversation.status == 500


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"FAIL_TO_PASS": []}, "FAIL_TO_PASS"),
        ({"FAIL_TO_PASS": [], "PASS_TO_PASS": []}, "FAIL_TO_PASS"),
        ({"FAIL_TO_PASS": STACK["PASS_TO_PASS"]}, "without a patch"),
        ({"FAIL_TO_PASS": ["tests/test_stack.py::test_unknown"]}, "test_unknown"),
        ({"test_patch": ""}, "test_patch"),
        ({"test_patch": "garbage"}, "test_patch"),
        ({"test_patch": STACK["test_patch"].replace("@@\n", "@@\n-not there\n")}, "does not apply"),
        ({"subset": "nope"}, "eval_script"),
    ],
)
async def test_a_row_that_doing_nothing_or_nobody_resolves_has_no_result(
    tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    async with agent(tmp_path, [{"say": block(SUBMIT)}]) as client:
        answer = await client.post("mini_swe_simple_agent", "/run", json={**STACK, **changes})
        text = await answer.text()
        assert (answer.status >= 400, "input" in text, named in text) == (True, True, True), text


def shown(output: str) -> str:
    return f"<returncode>0</returncode>\n<output>\n{output}</output>"


class Script:
    """A model and a shell that follow a script."""

    def __init__(self, replies: list[str | None], outputs: list[str]) -> None:
        self._replies, self._outputs = iter(replies), iter(outputs)
        self.commands: list[str] = []

    async def ask(self, _messages: list[Message]) -> Message | None:
        content = next(self._replies)
        return None if content is None else {"content": content}

    async def run(self, command: str) -> SandboxExecResult:
        self.commands.append(command)
        return SandboxExecResult(next(self._outputs), "", 0)


@pytest.mark.parametrize(
    ("replies", "outputs", "ending", "last"),
    [
        ([block("a"), block("b")], ["x", f"\n{FINAL_MARKER}\nthe patch\n"], "submitted", "the patch\n"),
        (["no command", block("b")], [f"{FINAL_MARKER}\np"], "submitted", "p"),
        ([block("a") + block("b"), block("c")], [f"{FINAL_MARKER}\n"], "submitted", ""),
        ([block("a")] * 4, ["x", "x"], "collapsed", block("a")),
        (
            [block("a"), block("b"), None],
            ["x", "y"],
            "model_refused",
            shown("y"),
        ),
        (
            [block(str(n)) for n in range(9)],
            ["x"] * 9,
            "step_limit",
            shown("x"),
        ),
    ],
)
async def test_how_a_conversation_ends(replies: list[str | None], outputs: list[str], ending: str, last: str) -> None:
    script = Script(replies, outputs)
    talk = await converse([], script.ask, script.run, step_limit=6, collapse_limit=3)
    assert (talk.ending, talk.messages[-1]["content"]) == (ending, last)


async def test_the_model_reads_how_many_commands_were_found_and_of_repetitions() -> None:
    script = Script(["none", block("a") * 2, block("a"), block("a"), block("a"), None], ["x"] * 3)
    talk = await converse([], script.ask, script.run, step_limit=9, collapse_limit=3)
    user_messages = [message["content"] for message in talk.messages if message["role"] == "user"]
    assert ["found 0" in user_messages[0], "found 2" in user_messages[1], "3 times in a row" in user_messages[-1]] == [
        True
    ] * 3
    assert script.commands == ["a", "a"]


async def test_repetitions_can_be_allowed() -> None:
    script = Script([block("a")] * 9, ["x"] * 9)
    talk = await converse([], script.ask, script.run, step_limit=9, collapse_limit=0)
    assert (talk.ending, len(script.commands)) == ("step_limit", 9)


def test_long_output_is_cut_in_the_middle() -> None:
    assert shortened("x" * 9999) == "x" * 9999
    cut = shortened("a" * 5000 + "b" * 100 + "c" * 5000)
    assert cut.startswith("a" * 5000)
    assert cut.endswith("c" * 5000)
    assert "100 characters left out" in cut
    assert "could not be run" in observation(SandboxExecResult("", "gone", 125, "sandbox"))
    assert submitted(SandboxExecResult(FINAL_MARKER, "", 125, "timeout")) is None


@pytest.mark.parametrize(
    "report",
    [
        None,
        {},
        {"eval_report": {}},
        {"eval_report": {"i": {}}},
        {"eval_report": {"i": {"resolved": True}}},
        {"eval_report": {"i": {"resolved": True, "tests_status": None}}},
        {"eval_report": {"i": {"resolved": True, "tests_status": {"FAIL_TO_PASS": {"success": [], "failure": []}}}}},
    ],
)
def test_a_report_with_something_missing_is_not_resolved(report: Any) -> None:
    assert not is_resolved(report, "i")


def test_images_have_the_names_of_their_subset() -> None:
    gym = Instance(instance_id="getmoto__Moto-7365", subset="gym")
    assert image_name(gym) == "xingyaoww/sweb.eval.x86_64.getmoto_s_moto-7365:latest"
    verified = gym.model_copy(update={"subset": "verified"})
    assert image_name(verified) == "swebench/sweb.eval.x86_64.getmoto_1776_moto-7365:latest"
    provider, spec = provider_and_spec("docker", gym, template=None, local={})
    assert (list(provider), spec.image, spec.workdir) == (["docker"], image_name(gym), "/testbed")
    provider, spec = provider_and_spec("singularity", gym, template="/images/{instance_id}.sif", local={})
    assert (list(provider), spec.image) == (["apptainer"], "/images/getmoto__Moto-7365.sif")
    with pytest.raises(RolloutError, match="nope"):
        image_name(gym.model_copy(update={"subset": "nope"}))
    with pytest.raises(ConfigError, match="cache_dir_template"):
        provider_and_spec("singularity", gym, template=None, local={})
    with pytest.raises(ConfigError, match="toys/slug"):
        provider_and_spec("sandbox", gym, template=None, local={})


def test_the_public_rows_fit() -> None:
    if not PUBLIC_ROWS.exists():
        pytest.skip("the public rows are not on this machine")
    rows = [MiniSWERunRequest.model_validate(one) for one in rows_of(PUBLIC_ROWS)]
    assert len(rows) == 5
    assert all(one.FAIL_TO_PASS and image_name(one).startswith("xingyaoww/") for one in rows)
