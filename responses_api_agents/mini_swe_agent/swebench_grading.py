"""Grading by the package `swebench` (an optional extra): its test script, its log parsers, its report."""

import base64
import shlex
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nemo_gym.errors import MissingExtraError, RolloutError
from nemo_gym.sandbox import AsyncSandbox
from responses_api_agents.mini_swe_agent.grading import (
    TESTED_FILES,
    WORKDIR,
    Instance,
    Report,
    apply_patch,
    empty_report,
    restore_command,
    upload_text,
)

SCRIPT = ".git/nemo-gym-eval.sh"
LOG_PARSER, EVAL_TYPE = "parse_log_pytest", "pass_and_fail"
TESTED_WITH_PYTEST = ("gym", "toys")
"""Subsets all of whose repositories are. Django, sympy and others of SWE-bench have runners of their own."""
START, END = ">>>>> Start Test Output", ">>>>> End Test Output"


async def grade_with_swebench(
    box: AsyncSandbox, instance: Instance, patch: str, *, timeout_s: float, prefix: str = ""
) -> Report:
    """Apply a patch to a fresh copy, run the instance's own test script, and let swebench read the log."""
    make_test_spec, get_eval_report = _swebench()
    report = empty_report(patch)
    if not await apply_patch(box, patch):
        return report
    spec = make_test_spec(swebench_row(instance, prefix=prefix))
    await upload_text(box, SCRIPT, spec.eval_script)
    result = await box.exec(f"/bin/bash {SCRIPT} 2>&1", timeout_s=timeout_s)
    if result.error_type == "timeout":
        return {**report, "note": f"The tests did not finish within {timeout_s:g} s."}
    prediction = {"instance_id": instance.instance_id, "model_patch": patch, "model_name_or_path": "nemo-gym"}
    found = _read_log(get_eval_report, spec, prediction, result.stdout or "")
    return {**report, "patch_successfully_applied": True, **found.get(instance.instance_id, {})}


def swebench_row(instance: Instance, *, prefix: str = "") -> dict[str, Any]:
    """A row as swebench 5 reads it. Rows of its datasets say how they are tested; others are tested with pytest if all
    repositories of their subset are."""
    row = instance.model_dump()
    if row.get("eval_script"):
        return {"image": "", "log_parser": LOG_PARSER, "eval_type": EVAL_TYPE, **row}
    if instance.subset not in TESTED_WITH_PYTEST:
        raise RolloutError(
            "input",
            f"{instance.instance_id} has no `eval_script`, so swebench cannot test it. Use rows of a dataset for "
            "swebench 5, which have the columns eval_script, log_parser and eval_type.",
        )
    return {
        **row,
        "image": "",
        "log_parser": LOG_PARSER,
        "eval_type": EVAL_TYPE,
        "eval_script": _script(instance, prefix),
    }


def _script(instance: Instance, prefix: str) -> str:
    """Put the tests back, apply the hidden ones, run them between the marks that swebench looks for."""
    files = TESTED_FILES.findall(instance.test_patch)
    tests = " ".join(shlex.quote(file) for file in files if file.endswith(".py"))
    patch = base64.b64encode(instance.test_patch.encode()).decode()
    return "\n".join(
        [
            f"cd {WORKDIR}",
            restore_command(instance, files),
            f"base64 -d <<< {patch} | git apply --whitespace=nowarn -",
            f": '{START}'",
            f"{prefix}python3 -m pytest -rA --tb=no -p no:cacheprovider -o addopts= {tests}",
            f": '{END}'",
        ]
    )


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
        from swebench.harness.utils import make_test_spec  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise MissingExtraError("Grading with swebench", "swebench") from error
    return make_test_spec, get_eval_report
