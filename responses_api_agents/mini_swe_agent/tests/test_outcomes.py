"""Reports of test runs: what they say, and which of them count."""

import base64
import json
import zlib
from typing import Any

import pytest

from responses_api_agents.mini_swe_agent.grading import Instance, graded
from responses_api_agents.mini_swe_agent.outcomes import SuiteRun, difference, read_report

SECRET = "abc"


def written(*events: list[Any], status: int = 0, more: str = "") -> str:
    lines = "".join(json.dumps(event) + "\n" for event in events) + more
    report = json.dumps({"status": status, "events": lines})
    return SECRET + base64.b64encode(zlib.compress(report.encode())).decode()


def phase(test: str, outcome: str, *, when: str = "call", is_expected: bool = False) -> list[Any]:
    return ["test", test, when, outcome, is_expected, "why" if outcome == "failed" else ""]


def test_a_report_says_how_each_test_ended() -> None:
    events = [
        phase("a", "passed"),
        phase("b c", "skipped", when="setup"),
        phase("d", "skipped", is_expected=True),
        phase("e", "passed"),
        phase("e", "failed", when="teardown"),
        phase("e", "passed"),
        phase("f", "passed", is_expected=True),
    ]
    run = read_report(written(["collected", ["a", "b c", "d", "e", "f"]], *events, ["end", 1], status=1), SECRET)
    assert run.problem == ""
    assert run.outcomes == {"a": "PASSED", "b c": "SKIPPED", "d": "XFAIL", "e": "ERROR", "f": "XPASS"}
    assert run.messages == {"e": "why"}


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("", "no report"),
        (written(["end", 0]).removeprefix(SECRET), "no report"),
        (written(["collected", ["a"]], phase("a", "passed")), "exit code 0"),
        (written(["collected", ["a"]], phase("a", "passed"), ["end", 0], ["end", 0]), "exit code 0"),
        (written(["collected", ["a"]], ["end", 0], phase("a", "passed")), "exit code 0"),
        (written(["collected", ["a", "b"]], phase("a", "passed"), ["end", 0]), "2 tests"),
        (written(["collected", ["a"]], phase("a", "passed"), phase("b", "passed"), ["end", 0]), "2 have"),
        (written(["collected", ["a", "a"]], phase("a", "passed"), ["end", 0]), "2 tests"),
        (written(["collected", ["a"]], phase("a", "passed"), ["end", 2], status=2), "2"),
        (written(["collected", ["a"]], phase("a", "passed"), ["end", 0], status=1), "1"),
        (written(["collected", ["a"]], phase("a", "failed"), ["end", 0]), "should be 1"),
        (written(["error", "x.py"], ["collected", ["a"]], phase("a", "passed"), ["end", 0]), "should be 1"),
        (written(["collected", ["a"]], phase("a", "passed"), ["end", 0], more="junk\n"), "other than pytest"),
        (written(["collected", [1]], ["end", 0]), "other than pytest"),
    ],
)
def test_a_report_that_contradicts_itself_does_not_count(text: str, fact: str) -> None:
    problem = read_report(text, SECRET).problem
    assert fact in problem
    run = SuiteRun({"a": "PASSED"}, problem=problem)
    found = graded({}, Instance(instance_id="i", FAIL_TO_PASS=["a"]), run, expected_failures=())
    assert (found["resolved"], found["note"]) == (False, problem)


def test_outcomes_are_compared_with_what_the_row_expects() -> None:
    run = SuiteRun({"t::a": "PASSED", "t::b[x y]": "PASSED", "t::b[x z]": "FAILED", "t::c": "XFAIL"})

    def failed(*tests: str, expected_failures: tuple[str, ...] = ()) -> list[str]:
        report = graded({}, Instance(instance_id="i", PASS_TO_PASS=[*tests]), run, expected_failures=expected_failures)
        assert report["resolved"] is not bool(report["tests_status"]["PASS_TO_PASS"]["failure"])
        return [*report["tests_status"]["PASS_TO_PASS"]["failure"]]

    assert failed("t::a", "t::b[x y]") == []
    assert failed("t::b[x") == ["t::b[x"]
    assert failed("t::c", "t::missing") == ["t::c", "t::missing"]
    assert failed("t::c", expected_failures=("t::c",)) == []
    assert graded({}, Instance(instance_id="i"), run, expected_failures=())["resolved"] is False


def test_a_run_is_compared_with_that_without_the_patch() -> None:
    run = SuiteRun(collected=["x.py::a", "x.py::new", "y.py::b"])
    assert difference(run, SuiteRun(collected=["x.py::a", "y.py::b"]), {"x.py::new"}) == ""
    assert difference(run, SuiteRun(errors=["x.py"], collected=["y.py::b"]), {"x.py::new"}) == ""
    assert difference(run, SuiteRun(problem="crashed"), set()) == ""
    assert "2 were" in difference(run, SuiteRun(collected=["x.py::a"]), {"x.py::new"})
    run.reached.add(("sys._getframe", "x.py"))
    assert "sys._getframe in x.py" in difference(run, SuiteRun(problem="crashed"), set())
    assert difference(run, SuiteRun(collected=run.collected, reached=run.reached), set()) == ""
