"""Grading by the package `swebench` (an optional extra): its test script, its log parsers, its report."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nemo_gym.errors import MissingExtraError
from nemo_gym.sandbox import AsyncSandbox
from responses_api_agents.mini_swe_agent.grading import Instance, Report, apply_patch, empty_report, upload_text

SCRIPT = ".git/nemo-gym-eval.sh"


async def grade_with_swebench(
    box: AsyncSandbox, instance: Instance, patch: str, *, timeout_s: float, prefix: str = ""
) -> Report:
    """Apply a patch to a fresh copy, run the instance's own test script, and let swebench read the log."""
    make_test_spec, get_eval_report = _swebench()
    report = empty_report(patch)
    if not await apply_patch(box, patch):
        return report
    spec = make_test_spec(swebench_row(instance))
    await upload_text(box, SCRIPT, spec.eval_script)
    result = await box.exec(f"/bin/bash {SCRIPT} 2>&1", timeout_s=timeout_s)
    if result.error_type == "timeout":
        return {**report, "note": f"The tests did not finish within {timeout_s:g} s."}
    prediction = {"instance_id": instance.instance_id, "model_patch": patch, "model_name_or_path": "nemo-gym"}
    found = _read_log(get_eval_report, spec, prediction, result.stdout or "")
    return {**report, "patch_successfully_applied": True, **found.get(instance.instance_id, {})}


def swebench_row(instance: Instance) -> dict[str, Any]:
    """A row as the datasets of SWE-bench have it: lists of tests as JSON texts."""
    row = instance.model_dump(include=set(Instance.model_fields))
    return {**row, **{name: json.dumps(row[name]) for name in ("FAIL_TO_PASS", "PASS_TO_PASS")}}


def _read_log(report_of: Callable[..., Any], spec: Any, prediction: dict[str, str], log: str) -> Report:
    with tempfile.TemporaryDirectory(prefix="nemo-gym-log-") as folder:
        path = Path(folder) / "test_output.txt"
        path.write_text(log)
        found: Report = report_of(
            test_spec=spec, prediction=prediction, test_log_path=str(path), include_tests_status=True
        )
        return found


def _swebench() -> tuple[Callable[..., Any], Callable[..., Any]]:
    try:
        from swebench.harness.grading import get_eval_report  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise MissingExtraError("Grading with swebench", "swebench") from error
    try:
        from swebench.harness.utils import make_test_spec  # type: ignore[import-not-found, unused-ignore]
    except ImportError:  # before 5.0
        from swebench.harness.test_spec.test_spec import (  # type: ignore[import-not-found, unused-ignore]
            make_test_spec,
        )
    return make_test_spec, get_eval_report
