"""Grading with the real package `swebench`, where it is installed, on the toy repositories."""

import base64
import re
from typing import Any

import pytest

from nemo_gym.errors import RolloutError
from responses_api_agents.mini_swe_agent.containers import opened
from responses_api_agents.mini_swe_agent.grading import Instance, Report, is_resolved
from responses_api_agents.mini_swe_agent.outcomes import SuiteRun
from responses_api_agents.mini_swe_agent.patching import paths_in
from responses_api_agents.mini_swe_agent.swebench_grading import (
    grade_with_swebench,
    log_difference,
    needs_swebench,
    swebench_row,
)
from responses_api_agents.mini_swe_agent.toys import TOYS, Toy, diff, row


def row_with_script(toy: Toy) -> dict[str, Any]:
    """A row as the datasets of swebench 5 have it."""
    plain = row(toy)
    patch = base64.b64encode(plain["test_patch"].encode()).decode()
    commands = [
        f"base64 -d <<< {patch} | git apply -",
        ": '>>>>> Start Test Output'",
        f"python3 -m pytest -rA --tb=no -p no:cacheprovider {' '.join(paths_in(plain['test_patch']))}",
        ": '>>>>> End Test Output'",
    ]
    columns = {"log_parser": "parse_log_pytest", "eval_type": "pass_and_fail", "image": ""}
    return {**plain, **columns, "eval_script": "\n".join(commands)}


INSTANCES = [Instance.model_validate(row_with_script(toy)) for toy in TOYS]


async def graded(instance: Instance, patch: str) -> Report:
    local = {"auto": {"packages": ["pytest"]}}
    return await grade_with_swebench(
        lambda: opened("sandbox", instance, template=None, local=local), instance, patch, timeout_s=120
    )


@pytest.mark.parametrize("instance", INSTANCES, ids=lambda each: each.instance_id)
async def test_the_gold_patch_is_resolved_and_no_patch_is_not(instance: Instance) -> None:
    pytest.importorskip("swebench")
    good, none = await graded(instance, instance.patch), await graded(instance, "")
    assert is_resolved({"eval_report": {instance.instance_id: good}}, instance.instance_id), good
    assert sorted(good["tests_status"]["FAIL_TO_PASS"]["success"]) == sorted(instance.FAIL_TO_PASS)
    assert not is_resolved({"eval_report": {instance.instance_id: none}}, instance.instance_id)


async def test_a_patch_that_does_not_apply_is_not_resolved() -> None:
    pytest.importorskip("swebench")
    report = await graded(
        INSTANCES[0], "diff --git a/none.py b/none.py\n--- a/none.py\n+++ b/none.py\n@@ -1 +1 @@\n-a\n+b\n"
    )
    assert report["patch_successfully_applied"] is False


def test_rows_of_swebench_5_keep_what_they_say() -> None:
    own = {"eval_script": "cd /testbed\ntox", "log_parser": "parse_log_sphinx", "eval_type": "fail_only", "image": "i"}
    found = swebench_row(Instance(instance_id="i", subset="verified", **own))
    assert {name: found[name] for name in own} == own


def test_a_repository_with_a_runner_of_its_own_is_not_tested_with_pytest() -> None:
    with pytest.raises(RolloutError, match="eval_script"):
        swebench_row(Instance(instance_id="django__django-1", subset="verified", repo="django/django"))


def test_rows_with_a_script_and_those_that_pytest_cannot_test_need_swebench() -> None:
    assert [needs_swebench(instance) for instance in INSTANCES] == [True] * len(INSTANCES)
    assert needs_swebench(Instance(instance_id="i", subset="verified"))
    assert not needs_swebench(Instance(instance_id="i", subset="gym"))


@pytest.mark.parametrize("toy", TOYS, ids=lambda toy: toy.name)
async def test_expected_failures_of_the_patch_are_not_resolved(toy: Toy) -> None:
    pytest.importorskip("swebench")
    (path,) = toy.fixed
    cheat = re.sub(r"^( *)return .*$", r"\1import pytest; pytest.xfail()", toy.files[path], flags=re.MULTILINE)
    files = {path: cheat, "setup.cfg": "[tool:pytest]\nxfail_strict = false\n"}
    report = await graded(Instance.model_validate(row_with_script(toy)), diff(toy.files, files))
    assert report["resolved"] is False


@pytest.mark.parametrize(
    ("run", "base", "fact"),
    [
        ({"a": "PASSED", "b": "PASSED"}, {"a": "FAILED", "b": "PASSED"}, ""),
        ({"a": "XFAIL", "b": "PASSED"}, {"a": "FAILED", "b": "PASSED"}, "a"),
        ({"a": "PASSED", "b": "XFAIL"}, {"a": "FAILED", "b": "XFAIL"}, ""),
        ({"a": "PASSED", "b": "SKIPPED"}, {"a": "FAILED", "b": "PASSED"}, "b"),
        ({"a": "PASSED", "b": "PASSED"}, {"a": "FAILED", "b": "PASSED", "c": "PASSED"}, "1"),
    ],
)
def test_a_log_is_compared_with_that_without_the_patch(run: dict[str, str], base: dict[str, str], fact: str) -> None:
    found = log_difference(SuiteRun(run, collected=[*run]), SuiteRun(base, collected=[*base]), {"a", "b"})
    assert bool(found) is bool(fact)
    assert fact in found
