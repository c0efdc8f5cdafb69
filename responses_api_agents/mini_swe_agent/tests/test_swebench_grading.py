"""Grading with the real package `swebench`, where it is installed, on the toy repositories."""

import pytest

from nemo_gym.errors import RolloutError
from responses_api_agents.mini_swe_agent.containers import opened
from responses_api_agents.mini_swe_agent.grading import Instance, Report, is_resolved
from responses_api_agents.mini_swe_agent.swebench_grading import grade_with_swebench, swebench_row
from responses_api_agents.mini_swe_agent.toys import TOYS, row

INSTANCES = [Instance.model_validate(row(toy)) for toy in TOYS]


async def graded(instance: Instance, patch: str) -> Report:
    local = {"auto": {"packages": ["pytest"]}}
    async with opened("sandbox", instance, template=None, local=local) as box:
        return await grade_with_swebench(box, instance, patch, timeout_s=120)


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
