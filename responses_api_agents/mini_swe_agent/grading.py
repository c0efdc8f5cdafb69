"""Scoring an attempt: its change and the hidden tests, applied to fresh copies of the repository."""

import asyncio
import json
import re
import secrets
import shlex
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from nemo_gym.errors import RolloutError
from nemo_gym.sandbox import AsyncSandbox, SandboxError
from responses_api_agents.mini_swe_agent.controls import (
    EQUALITY_CHECK,
    FAILURE,
    Controlled,
    with_controls,
    with_wrong_values,
)
from responses_api_agents.mini_swe_agent.outcomes import SuiteRun, difference, read_report
from responses_api_agents.mini_swe_agent.patching import (
    apply_attempt,
    apply_patch,
    download_bytes,
    paths_in,
    upload_text,
)
from responses_api_agents.mini_swe_agent.pytest_runner import SECRET, WATCHED_FILES

Report = dict[str, Any]
Grader = Literal["auto", "pytest", "swebench"]
OpenBox = Callable[[], AbstractAsyncContextManager[AsyncSandbox]]
"""Opens a fresh copy of the repository."""
Rewrite = Callable[[bytes], Controlled | None]

RUNNER = ".git/nemo-gym-tests.py"
OPTIONS = ("--tb=short", "-q", "-p", "no:cacheprovider", "-o", "addopts=", "--continue-on-collection-errors")
INTROSPECTION = re.compile(
    r"^\+.*\b(inspect|traceback|_getframe|tb_frame|settrace|setprofile|ctypes|gc|__code__)\b", re.MULTILINE
)
"""A gold patch with such a line shows that right patches may look at frames and code objects."""


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


def check_instance(instance: Instance) -> None:
    """Refuse a row whose tests would accept every attempt, or none."""
    if not instance.FAIL_TO_PASS:
        raise RolloutError("input", f"{instance.instance_id} has no FAIL_TO_PASS: doing nothing would resolve it.")
    if not paths_in(instance.test_patch):
        raise RolloutError("input", f"The test_patch of {instance.instance_id} changes no file.")


def check_base(instance: Instance, passed: Collection[str]) -> None:
    """Refuse a row all of whose FAIL_TO_PASS tests pass without a patch."""
    if all(test in passed for test in instance.FAIL_TO_PASS):
        raise RolloutError("input", f"All FAIL_TO_PASS tests of {instance.instance_id} pass without a patch.")


async def current_patch(box: AsyncSandbox, instance: Instance) -> str:
    """All that an attempt changed, new files included."""
    base = shlex.quote(instance.base_commit)
    result = await box.exec(f"git add -A && git diff --cached --binary {base}", timeout_s=120)
    return result.stdout or "" if result.return_code == 0 and not result.is_truncated else ""


async def grade(open_box: OpenBox, instance: Instance, patch: str, *, timeout_s: float, prefix: str = "") -> Report:
    """Run the hidden tests on a patch. If all pass, compare with a run without the patch, then run their controls."""
    suite, report = _Suite(open_box, instance, timeout_s, prefix), empty_report(patch)
    run = await suite.run(patch)
    if run is None:
        return report
    report["patch_successfully_applied"] = True
    found = graded(report, instance, run, expected_failures=run.outcomes)
    if not found["resolved"]:
        await suite.check_names(run)
        return found
    base = await suite.run("", watched=run.changed) or SuiteRun()
    check_base(
        instance, graded(report, instance, base, expected_failures=())["tests_status"]["FAIL_TO_PASS"]["success"]
    )
    found = graded(report, instance, run, expected_failures=base.expected_failures)
    if not found["resolved"]:
        return found
    names = full_names(run.outcomes)
    named = {name for test in expected_tests(instance) for name in names[test]}
    run.problem = (
        difference(run, base, named)
        or await suite.control_problem(patch, run, named)
        or await suite.wrong_value_problem(patch, run, named)
    )
    return graded(report, instance, run, expected_failures=base.expected_failures)


@dataclass(frozen=True, slots=True)
class _Suite:
    """The hidden tests of an instance."""

    open_box: OpenBox
    instance: Instance
    timeout_s: float
    prefix: str

    async def run(
        self, patch: str, *, watched: Collection[str] = (), control: str = "", has_wrong_values: bool = False
    ) -> SuiteRun | None:
        """Run the tests on a patch, with a token their controls, or the tests with wrong values. None if the patch
        does not apply."""
        test_patch = self.instance.test_patch
        async with self.open_box() as box:
            if not await apply_patch(box, test_patch, check_only=True):
                raise RolloutError("input", f"The test patch of {self.instance.instance_id} does not apply.")
            changed = await apply_attempt(box, patch, gold=self.instance.patch, test_patch=test_patch)
            if changed is None:
                return None
            if not await apply_patch(box, test_patch):
                return SuiteRun(problem="The test patch does not apply to what the patch left.")
            tests = await _test_files(box, test_patch)
            rewrite: Rewrite = unchanged
            if control:
                equals = await self._files_without_equality(box, changed)
                rewrite = partial(with_controls, token=control, files=equals)
            elif has_wrong_values:
                rewrite = partial(with_wrong_values, seed=patch)
            controls = await _rewrite_tests(box, tests, rewrite)
            run = await self._run_pytest(box, tests, sorted({*changed, *watched}))
            run.changed, run.controls = changed, controls
            return run

    async def _files_without_equality(self, box: AsyncSandbox, changed: list[str]) -> list[str]:
        """The files of a patch that define no `__eq__` without it, unless the gold patch defines one: an object of the
        patch that decides itself what it equals solves nothing."""
        if not changed or "__eq__" in self.instance.patch:
            return []
        search = f"git grep -l __eq__ {shlex.quote(self.instance.base_commit)} -- {shlex.join(changed)}"
        found = (await box.exec(search, timeout_s=120)).stdout or ""
        known = {line.partition(":")[2] for line in found.splitlines()}
        return [file for file in changed if file not in known]

    async def _run_pytest(self, box: AsyncSandbox, tests: list[str], watched: list[str]) -> SuiteRun:
        secret = secrets.token_hex(16)
        is_watched = not INTROSPECTION.search(self.instance.patch)
        await upload_text(box, WATCHED_FILES, json.dumps({"code": watched if is_watched else [], "tests": tests}))
        await upload_text(box, SECRET, secret)
        await upload_text(box, RUNNER, (Path(__file__).parent / "pytest_runner.py").read_text())
        command = f"{self.prefix}python3 -I {RUNNER} supervise {shlex.join([*OPTIONS, *tests])} </dev/null"
        result = await box.exec(command, timeout_s=self.timeout_s)
        if result.error_type == "timeout":
            return SuiteRun(problem=f"The tests did not finish within {self.timeout_s:g} s.")
        if result.is_truncated:
            raise SandboxError(f"The tests of {self.instance.instance_id} are too many for a report.")
        return await asyncio.to_thread(read_report, result.stdout or "", secret)

    async def check_names(self, run: SuiteRun) -> None:
        """Refuse a row with tests that neither this run nor one of the gold patch has."""
        missing = [test for test in expected_tests(self.instance) if test not in full_names(run.outcomes)]
        if not missing or run.problem or not self.instance.patch:
            return
        gold = await self.run(self.instance.patch) or SuiteRun(problem="The patch does not apply.")
        names = full_names(gold.outcomes)
        unknown = [test for test in missing if test not in names]
        if unknown and not gold.problem and not gold.errors:
            raise RolloutError("input", f"There is no test {unknown[0]!r} in {self.instance.instance_id}.")

    async def control_problem(self, patch: str, run: SuiteRun, named: set[str]) -> str:
        """Name the tests whose controls do not fail at their end; empty if all do."""
        token = f"control_{secrets.token_hex(16)}"
        control = await self.run(patch, control=token) or SuiteRun(problem="The patch does not apply.")
        if control.problem:
            return f"The controls of the tests did not run: {control.problem}"
        names = _control_names(run, control)
        tests = [
            name for name in named if run.outcomes[name] == "PASSED" and without_parameters(name) in control.controls
        ]
        failure = FAILURE.format(token=token)
        passed = sorted(test for test in tests if failure not in control.messages.get(names.get(test, ""), ""))
        own = [test for test in control.messages if without_parameters(test).endswith(EQUALITY_CHECK)]
        passed += sorted(test for test in own if failure in control.messages[test])
        return f"Tests that must fail do not: the controls of {', '.join(passed)}." if passed else ""

    async def wrong_value_problem(self, patch: str, run: SuiteRun, named: set[str]) -> str:
        """Name the tests that pass although they expect a wrong value; empty if none does."""
        wrong = await self.run(patch, has_wrong_values=True) or SuiteRun(problem="The patch does not apply.")
        if wrong.problem:
            return f"The tests did not run with wrong values: {wrong.problem}"
        names = _control_names(run, wrong)
        passed = sorted(
            name
            for name in named
            if without_parameters(name) in wrong.controls and wrong.outcomes.get(names.get(name, "")) == "PASSED"
        )
        return f"Tests pass with wrong values: {', '.join(passed)}." if passed else ""


def _control_names(run: SuiteRun, control: SuiteRun) -> dict[str, str]:
    """What the tests of a run are called in the run of their controls, whose parameters may be other ones: the n-th
    test of a function is the n-th there."""
    collected = [defaultdict[str, list[str]](list) for _ in range(2)]
    for tests, each in zip(collected, (run, control), strict=True):
        for name in each.collected:
            tests[without_parameters(name)].append(name)
    ours, theirs = collected
    return {
        name: other
        for function, names in ours.items()
        if len(names) == len(theirs[function])
        for name, other in zip(names, theirs[function], strict=True)
    }


async def _test_files(box: AsyncSandbox, test_patch: str) -> list[str]:
    """The Python files of a test patch that are there after it."""
    listed = await box.exec(f"ls -d -- {shlex.join(paths_in(test_patch))} 2>/dev/null", timeout_s=120)
    return [file for file in (listed.stdout or "").splitlines() if file.endswith(".py")]


def unchanged(source: bytes) -> Controlled | None:
    try:
        return Controlled(source.decode(), set())
    except UnicodeDecodeError:
        return None


async def _rewrite_tests(box: AsyncSandbox, files: list[str], rewrite: Rewrite) -> set[str]:
    """Rewrite the tests of some files and return their names. Tests that stay as they are are written again, too: the
    tested code cannot tell by the times of a file."""
    names: set[str] = set()
    for file in files:
        controlled = await asyncio.to_thread(rewrite, await download_bytes(box, file))
        if controlled is not None:
            await upload_text(box, file, controlled.source)
            names |= {f"{file}::{test}" for test in controlled.tests}
    return names


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


def expected_tests(instance: Instance) -> list[str]:
    return [*instance.FAIL_TO_PASS, *instance.PASS_TO_PASS]


def without_parameters(test: str) -> str:
    return test.partition("[")[0]


def full_names(outcomes: Collection[str]) -> Mapping[str, list[str]]:
    """The tests by what a row may call them. Rows made from logs have names that end at the first space."""
    names: dict[str, list[str]] = {}
    for name in outcomes:
        names.setdefault(name.partition(" ")[0], []).append(name)
    return {**names, **{name: [name] for name in outcomes}}


def graded(report: Report, instance: Instance, run: SuiteRun, *, expected_failures: Collection[str]) -> Report:
    """Complete a report. A test that fails as its marker says counts if it is one of the expected failures."""
    names = full_names(run.outcomes)
    passed = {
        name
        for name, outcome in run.outcomes.items()
        if outcome == "PASSED" or (outcome == "XFAIL" and name in expected_failures)
    }

    def passes(test: str) -> bool:
        return not run.problem and test in names and passed.issuperset(names[test])

    status = {
        kind: {
            "success": [test for test in tests if passes(test)],
            "failure": [test for test in tests if not passes(test)],
        }
        for kind, tests in (("FAIL_TO_PASS", instance.FAIL_TO_PASS), ("PASS_TO_PASS", instance.PASS_TO_PASS))
    }
    has_failed = any(kind["failure"] for kind in status.values())
    found = {**report, "tests_status": status, "resolved": not has_failed and bool(expected_tests(instance))}
    return {**found, "note": run.problem} if run.problem else found


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
