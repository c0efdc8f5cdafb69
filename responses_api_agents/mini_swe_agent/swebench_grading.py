"""Grading by the package `swebench` (an optional extra): the test script of a row, its log parsers, its report."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from nemo_gym.errors import MissingExtraError, RolloutError
from nemo_gym.sandbox import SandboxExecResult
from responses_api_agents.mini_swe_agent.grading import (
    Instance,
    OpenBox,
    Report,
    check_base,
    empty_report,
    expected_tests,
)
from responses_api_agents.mini_swe_agent.outcomes import SuiteRun, difference
from responses_api_agents.mini_swe_agent.patching import apply_attempt, upload_text

SCRIPT = ".git/nemo-gym-eval.sh"
TESTED_WITH_PYTEST = ("gym", "toys")
"""Subsets all of whose repositories are. Django, sympy and others of SWE-bench have runners of their own."""


class _Swebench(NamedTuple):
    make_test_spec: Callable[..., Any]
    get_eval_report: Callable[..., Any]
    get_logs_eval: Callable[..., Any]


def needs_swebench(instance: Instance) -> bool:
    """True if a row brings a test script, or belongs to a subset that pytest alone cannot test."""
    return bool(instance.model_dump().get("eval_script")) or instance.subset not in TESTED_WITH_PYTEST


async def grade_with_swebench(
    open_box: OpenBox, instance: Instance, patch: str, *, timeout_s: float, prefix: str = ""
) -> Report:
    """Run a row's test script on a patch and let swebench read the log. If resolved, compare with a run without it."""
    swebench, report = _swebench(), empty_report(patch)
    spec = swebench.make_test_spec(swebench_row(instance))
    result = await _run_script(open_box, instance, patch, spec.eval_script, timeout_s)
    if result is None:
        return report
    report["patch_successfully_applied"] = True
    if result.error_type == "timeout":
        return {**report, "note": f"The tests did not finish within {timeout_s:g} s."}
    log = result.stdout or ""
    prediction = {"instance_id": instance.instance_id, "model_patch": patch, "model_name_or_path": "nemo-gym"}
    found = _read(log, lambda path: swebench.get_eval_report(spec, prediction, path, include_tests_status=True))
    report |= found.get(instance.instance_id, {})
    if not report["resolved"]:
        return report
    without = await _run_script(open_box, instance, "", spec.eval_script, timeout_s)
    logs = (log, (without.stdout if without else None) or "")
    run, base = (_suite_run(_read(each, lambda path: swebench.get_logs_eval(spec, path))[0]) for each in logs)
    check_base(instance, {test for test, status in base.outcomes.items() if status == "PASSED"})
    problem = log_difference(run, base, set(expected_tests(instance)))
    return {**report, "resolved": False, "note": problem} if problem else report


async def _run_script(
    open_box: OpenBox, instance: Instance, patch: str, script: str, timeout_s: float
) -> SandboxExecResult | None:
    """Run the test script on a patch in a fresh container. None if the patch does not apply."""
    async with open_box() as box:
        if await apply_attempt(box, patch, gold=instance.patch, test_patch=instance.test_patch) is None:
            return None
        await upload_text(box, SCRIPT, script)
        return await box.exec(f"/bin/bash {SCRIPT} 2>&1", timeout_s=timeout_s)


def _suite_run(statuses: dict[str, str]) -> SuiteRun:
    """The statuses in a log. After an error in a file, which has no test in its name, pytest runs no tests."""
    is_whole = statuses and not any(status == "ERROR" and "::" not in test for test, status in statuses.items())
    return SuiteRun(statuses, collected=list(statuses), problem="" if is_whole else "The tests ended early.")


def log_difference(run: SuiteRun, base: SuiteRun, named: set[str]) -> str:
    """Say how a log differs from that without the patch: an expected failure or a skipped test that was none there, or
    another number of tests."""
    excused = [test for test in sorted(named) if run.outcomes.get(test, "PASSED") != "PASSED"]
    if others := [test for test in excused if run.outcomes[test] != base.outcomes.get(test)]:
        return f"Not passed, and not so without the patch: {', '.join(others)}"
    return difference(run, base, named)


def swebench_row(instance: Instance) -> dict[str, Any]:
    """A row as swebench 5 reads it."""
    row = instance.model_dump()
    if row.get("eval_script"):
        return {"image": "", "log_parser": "parse_log_pytest", "eval_type": "pass_and_fail", **row}
    raise RolloutError(
        "input",
        f"{instance.instance_id} has no `eval_script`, so swebench cannot test it. Use rows of a dataset for "
        "swebench 5, which have the columns eval_script, log_parser and eval_type, or `grader: pytest`.",
    )


def _read(log: str, read: Callable[[str], Any]) -> Any:
    with tempfile.TemporaryDirectory(prefix="nemo-gym-log-") as folder:
        path = Path(folder) / "test_output.txt"
        path.write_text(log)
        return read(str(path))


def _swebench() -> _Swebench:
    try:
        from swebench.harness.grading import (  # type: ignore[import-not-found, unused-ignore]
            get_eval_report,
            get_logs_eval,
        )
        from swebench.harness.utils import make_test_spec  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise MissingExtraError("Grading with swebench", "swebench") from error
    return _Swebench(make_test_spec, get_eval_report, get_logs_eval)
