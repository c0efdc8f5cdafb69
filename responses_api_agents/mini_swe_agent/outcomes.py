"""The report of a test run, and whether it can be trusted."""

import base64
import zlib
from dataclasses import dataclass, field
from typing import Literal

from pydantic import BaseModel, TypeAdapter, ValidationError

FAILURES = ("FAILED", "ERROR")

Event = (
    tuple[Literal["error"], str]
    | tuple[Literal["collected"], list[str]]
    | tuple[Literal["test"], str, str, Literal["passed", "failed", "skipped", "rerun"], bool, str]
    | tuple[Literal["reached"], str, str]
    | tuple[Literal["end"], int]
)
_EVENT: TypeAdapter[Event] = TypeAdapter(Event)


class _Written(BaseModel):
    status: int
    events: str


@dataclass(slots=True)
class SuiteRun:
    """The outcome of each test, by its name."""

    outcomes: dict[str, str] = field(default_factory=dict)
    messages: dict[str, str] = field(default_factory=dict)
    """Why tests failed."""
    collected: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    """Files that could not be collected."""
    reached: set[tuple[str, str]] = field(default_factory=set)
    """What files of the patch used to look into the tests: an audit event of Python and the file."""
    problem: str = ""
    """Why the report does not count."""
    changed: list[str] = field(default_factory=list)
    """The files that the patch changed."""
    controls: set[str] = field(default_factory=set)
    """The tests that had been made to fail, without parameters."""

    @property
    def expected_failures(self) -> set[str]:
        return {test for test, outcome in self.outcomes.items() if outcome == "XFAIL"}

    def add(self, event: Event) -> None:
        if event[0] == "collected":
            self.collected += event[1]
        elif event[0] == "error":
            self.errors.append(event[1])
        elif event[0] == "reached":
            self.reached.add((event[1], event[2]))
        elif event[0] == "test":
            self._add_phase(*event[1:])

    def _add_phase(self, test: str, when: str, outcome: str, is_expected: bool, message: str) -> None:
        """Setup, call or teardown of a test. A failure stays one, whatever follows."""
        if outcome == "failed":
            self.outcomes[test] = "FAILED" if when == "call" else "ERROR"
            self.messages[test] = message
        elif self.outcomes.get(test) not in FAILURES and (when == "call" or outcome == "skipped"):
            names = {"passed": "XPASS" if is_expected else "PASSED", "skipped": "XFAIL" if is_expected else "SKIPPED"}
            self.outcomes[test] = names.get(outcome, "FAILED")


def read_report(written: str, secret: str) -> SuiteRun:
    """Read what the runner wrote. A report that somebody else wrote or that contradicts itself has a problem."""
    if not written.startswith(secret):
        return SuiteRun(problem="The tests left no report.")
    content = _Written.model_validate_json(zlib.decompress(base64.b64decode(written.removeprefix(secret))))
    try:
        events = [_EVENT.validate_json(line) for line in content.events.splitlines()]
    except ValidationError:
        return SuiteRun(problem="Something other than pytest wrote to the report of the tests.")
    run = SuiteRun()
    for event in events:
        run.add(event)
    run.problem = _contradiction(run, events, content.status)
    return run


def _contradiction(run: SuiteRun, events: list[Event], status: int) -> str:
    """Say how a run differs from what pytest leaves; empty if it does not."""
    kinds = [event[0] for event in events]
    if kinds.count("collected") != 1 or kinds.count("end") != 1 or kinds[-1] != "end":
        return f"The tests ended early, with exit code {status}."
    if len(set(run.collected)) != len(run.collected) or set(run.outcomes) != set(run.collected):
        return f"{len(run.collected)} tests were collected, {len(run.outcomes)} have an outcome."
    expected = int(bool(run.errors) or any(outcome in FAILURES for outcome in run.outcomes.values()))
    if not expected == events[-1][1] == status:
        return f"The exit code of the tests is {status}; by their outcomes it should be {expected}."
    return ""


def difference(run: SuiteRun, base: SuiteRun, named: set[str]) -> str:
    """Say how a run differs from the one without the patch in what a patch must not change; empty if it does not.

    Tests that the row names may be missing in that one: their parameters may come from the tested code, or their file
    may need the patch to be imported. There is no number to compare if it ended early: the issue may be a crash."""
    if reached := sorted(run.reached - base.reached):
        return f"The patch looks into the tests: {', '.join(f'{event} in {file}' for event, file in reached)}."
    if base.problem:
        return ""
    unread = {error.partition("::")[0] for error in base.errors}
    others, before = (
        [test for test in each.collected if test not in named and test.partition("::")[0] not in unread]
        for each in (run, base)
    )
    if len(others) != len(before):
        return f"Besides the tests of the row {len(others)} were collected, without the patch {len(before)}."
    return ""
