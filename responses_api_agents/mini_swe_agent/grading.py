"""Scoring an attempt: its change and the hidden tests, applied to a fresh copy of the repository."""

import json
import re
import secrets
import shlex
import tempfile
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from nemo_gym.sandbox import AsyncSandbox, SandboxError
from responses_api_agents.mini_swe_agent.pytest_runner import REPORT, SECRET

Report = dict[str, Any]
Grader = Literal["auto", "pytest", "swebench"]

WORKDIR = "/testbed"

TESTED_FILES = re.compile(r"^diff --git a/\S+ b/(\S+)$", re.MULTILINE)
RUNNER = ".git/nemo-gym-tests.py"
TEST_MACHINERY = (
    "conftest.py",
    "pytest.ini",
    "tox.ini",
    "sitecustomize.py",
    "usercustomize.py",
    "pytest.py",
    "_pytest",
)
"""Files that can change what a test says without changing what it tests. They are put back before the tests run."""
PLUGIN_METADATA = ("*.[eE][gG][gG]-[iI][nN][fF][oO]/*", "*.[dD][iI][sS][tT]-[iI][nN][fF][oO]/*")
"""Files that make a module a plugin of pytest. No patch may bring them."""
PASSED = ("PASSED", "XFAIL")


class Instance(BaseModel):
    """The columns of SWE-bench."""

    model_config = ConfigDict(extra="allow")

    instance_id: str
    subset: str = "gym"
    split: str = "train"
    repo: str = ""
    base_commit: str = ""
    version: str = ""
    problem_statement: str = ""
    hints_text: str = ""
    created_at: str = ""
    patch: str = ""
    test_patch: str = ""
    FAIL_TO_PASS: list[str] = []
    PASS_TO_PASS: list[str] = []


async def current_patch(box: AsyncSandbox, instance: Instance) -> str:
    """All that an attempt changed, new files included."""
    base = shlex.quote(instance.base_commit)
    result = await box.exec(f"git add -A && git diff --cached --binary {base}", timeout_s=120)
    return result.stdout or "" if result.return_code == 0 and not result.is_truncated else ""


async def grade(box: AsyncSandbox, instance: Instance, patch: str, *, timeout_s: float, prefix: str = "") -> Report:
    """Apply a patch and the hidden tests to a fresh copy, run them with pytest, compare with what is expected."""
    report = empty_report(patch)
    files = TESTED_FILES.findall(instance.test_patch)
    await box.exec(restore_command(instance, files), timeout_s=120)
    if not await apply_patch(box, instance.test_patch, check_only=True):
        raise SandboxError(f"The test patch of {instance.instance_id} does not apply.")
    if not await apply_patch(box, patch):
        return report
    report["patch_successfully_applied"] = True
    await box.exec(restore_command(instance, files), timeout_s=120)
    if not await apply_patch(box, instance.test_patch):
        return {**report, "note": "The test patch does not apply to what the patch left."}
    tests = [file for file in files if file.endswith(".py")]
    return await _tested(box, instance, report, tests, timeout_s=timeout_s, prefix=prefix)


async def _tested(
    box: AsyncSandbox, instance: Instance, report: Report, tests: list[str], *, timeout_s: float, prefix: str
) -> Report:
    secret = secrets.token_hex(16)
    await upload_text(box, SECRET, secret)
    await upload_text(box, RUNNER, (Path(__file__).parent / "pytest_runner.py").read_text())
    options = shlex.join(["--tb=no", "-q", "-p", "no:cacheprovider", "-o", "addopts=", *tests])
    result = await box.exec(f"{prefix}python3 {RUNNER} {options} >/dev/null 2>&1 </dev/null", timeout_s=timeout_s)
    if result.error_type == "timeout":
        return {**report, "note": f"The tests did not finish within {timeout_s:g} s."}
    written = await box.exec(f"cat {REPORT}", timeout_s=120)
    if written.is_truncated:
        raise SandboxError(f"The tests of {instance.instance_id} are too many for a report.")
    return graded(report, instance, test_outcomes(written.stdout or "", secret))


def empty_report(patch: str) -> Report:
    none: dict[str, list[str]] = {"success": [], "failure": []}
    status = {kind: {name: list(tests) for name, tests in none.items()} for kind in ("FAIL_TO_PASS", "PASS_TO_PASS")}
    return {
        "patch_is_None": False,
        "patch_exists": bool(patch.strip()),
        "patch_successfully_applied": False,
        "resolved": False,
        "tests_status": status,
    }


def test_outcomes(written: str, secret: str) -> dict[str, str]:
    """Test to outcome, as the runner wrote them down; nothing if anybody else did."""
    if not written.startswith(secret):
        return {}
    outcomes: dict[str, str] = json.loads(written.removeprefix(secret))
    return outcomes


test_outcomes.__test__ = False  # type: ignore[attr-defined]


def graded(report: Report, instance: Instance, outcomes: dict[str, str]) -> Report:
    expected = {"FAIL_TO_PASS": instance.FAIL_TO_PASS, "PASS_TO_PASS": instance.PASS_TO_PASS}
    status = {
        kind: {
            "success": [test for test in tests if outcomes.get(test) in PASSED],
            "failure": [test for test in tests if outcomes.get(test) not in PASSED],
        }
        for kind, tests in expected.items()
    }
    has_failed = any(kind["failure"] for kind in status.values())
    return {**report, "tests_status": status, "resolved": not has_failed and any(expected.values())}


def is_resolved(report: Any, instance_id: str) -> bool:
    """True if a report says so and names at least one test. Anything missing or malformed is false."""
    try:
        found = report["eval_report"][instance_id]
        status = found["tests_status"]
        names = [
            test for kind in ("FAIL_TO_PASS", "PASS_TO_PASS") for tests in status[kind].values() for test in tests
        ]
        return found["resolved"] is True and bool(names)
    except (KeyError, TypeError, AttributeError):
        return False


async def apply_patch(box: AsyncSandbox, patch: str, *, check_only: bool = False) -> bool:
    if not patch.strip():
        return True
    await upload_text(box, ".git/nemo-gym.patch", patch if patch.endswith("\n") else f"{patch}\n")
    options = [f"--exclude={shlex.quote(pattern)}" for pattern in PLUGIN_METADATA] + ["--check"] * check_only
    command = f"git apply --whitespace=nowarn {' '.join(options)} .git/nemo-gym.patch"
    return (await box.exec(command, timeout_s=120)).return_code == 0


async def upload_text(box: AsyncSandbox, path: str, text: str) -> None:
    with tempfile.TemporaryDirectory(prefix="nemo-gym-patch-") as folder:
        local = Path(folder) / "patch"
        local.write_text(text)
        await box.upload(local, f"{WORKDIR}/{path}")


def restore_command(instance: Instance, files: list[str]) -> str:
    """Put back the tests and whatever steers them, as they were at the base commit."""
    base = shlex.quote(instance.base_commit)
    names = " -o ".join(f"-name {shlex.quote(name)}" for name in TEST_MACHINERY)
    tested = " ".join(shlex.quote(file) for file in files)
    return (
        f"find . -path ./.git -prune -o \\( {names} -o -name '*.pth' \\) -exec rm -rf {{}} + ; rm -rf {tested} ; "
        f"git ls-tree -r --name-only {base} | grep -E {shlex.quote(_machinery_pattern(files))} | "
        f"xargs -r git checkout {base} --"
    )


def _machinery_pattern(files: list[str]) -> str:
    names = "|".join(re.escape(name) for name in TEST_MACHINERY)
    tested = "|".join(f"^{re.escape(file)}$" for file in files)
    return rf"(^|/)({names})(/|$)|\.pth$" + (f"|{tested}" if tested else "")
