"""Rates have intervals, what was not measured is no evidence, and a baseline notices what is worse."""

import json
from pathlib import Path
from random import Random

import pytest

from nemo_gym.analysis.gold import Gold
from nemo_gym.errors import ConfigError
from nemo_gym.testing import example_row, message
from nemo_gym.trust.answers import answer_of
from nemo_gym.trust.apart import StuckError, run_apart
from nemo_gym.trust.baseline import (
    accepted_in,
    baseline_path,
    known_exploits,
    read_baseline,
    worse_than,
    write_baseline,
)
from nemo_gym.trust.mutants import mutants_of
from nemo_gym.trust.page import badge, trust_page
from nemo_gym.trust.report import Finding, KindStats, Rate, TrustReport, case_of
from nemo_gym.trust.scoring import Beat

VERIFIER = '''
"""A docstring is no code."""
LIMIT = 3

def verify(text, wanted):
    if not text or len(text) > LIMIT:
        raise ValueError("a message is no verdict")
    return text[1:] == wanted and text[0] != "x"

def gold_response(row):
    return row["a"] == 1
'''


def report(errors: int, trials: int, **fields: object) -> TrustReport:
    stats = KindStats("wrong", rows=set(range(trials)), full_rows=set(range(errors)), probes=trials, full=errors)
    return TrustReport("env", rows=trials, rows_with_gold=trials, kinds={"sign": stats}, **fields)  # type: ignore[arg-type]


def test_a_rate_has_wilsons_interval_and_nothing_is_no_evidence() -> None:
    rate = Rate(0, 100)
    assert rate.interval == pytest.approx((0.0, 0.0370), abs=1e-3)
    assert (Rate().rate, Rate().interval, str(Rate())) == (None, None, "no evidence")


@pytest.mark.parametrize(
    ("errors", "trials", "is_finding"), [(0, 50, False), (1, 5, False), (2, 5, True), (4, 50, False)]
)
def test_a_kind_is_a_finding_from_two_rows_and_a_tenth_of_them_on(errors: int, trials: int, is_finding: bool) -> None:
    found = [finding.kind for finding in report(errors, trials).findings()]
    assert found == (["sign"] if is_finding else [])


def test_an_accepted_finding_is_none() -> None:
    assert list(report(5, 5, accepted={"sign": "The sign does not matter here."}).findings()) == []


def test_guessed_answers_that_are_all_rejected_are_no_evidence() -> None:
    rejected = TrustReport("env", rows=3, rows_with_gold=3, rejected_golds=3, golds_are_guessed=True)
    assert rejected.false_negative_rate is None
    assert list(rejected.findings()) == []
    rejected.golds_are_guessed = False
    assert [finding.kind for finding in rejected.findings()] == ["gold"]


def test_a_baseline_notices_a_worse_rate_and_keeps_what_people_wrote(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    assert read_baseline(tmp_path) == {}
    written = {"accepted": {"sign": "Why not."}, "exploits": [{"row": 1, "output": [message("x")]}]}
    baseline_path(tmp_path).write_text(json.dumps(written))
    write_baseline(tmp_path, report(1, 100))
    baseline = read_baseline(tmp_path)
    assert accepted_in(baseline, "env") == {"sign": "Why not."}
    assert [row for row, _ in known_exploits(baseline)] == [1]
    assert list(worse_than(baseline, report(2, 100))) == []
    assert len(list(worse_than(baseline, report(40, 100)))) == 1


@pytest.mark.parametrize("text", ["[]", "{", '{"accepted": {"sign": ""}}'])
def test_a_baseline_that_says_nothing_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "configs").mkdir()
    baseline_path(tmp_path).write_text(text)
    with pytest.raises(ConfigError, match=r"trust\.json"):
        accepted_in(read_baseline(tmp_path), "env")


def test_the_page_shows_findings_and_runs_nothing_that_a_verifier_says() -> None:
    bad = report(5, 5)
    bad.found.append(Finding("exploit", "<script>alert(1)</script>", 2, 5, (case_of(0, [message("</pre><b>")], 1.0),)))
    page = trust_page([bad])
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "2 findings" in badge(bad)


def test_every_kind_of_mutant_is_made_and_nothing_else_is_changed(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(VERIFIER)
    (tmp_path / "generate.py").write_text("def generate(x):\n    return x == 1\n")
    mutants = mutants_of(tmp_path, 100, Random(0))
    assert {mutant.what for mutant in mutants} == {"constant", "branch", "boolean", "negation", "comparison", "slice"}
    assert all(mutant.file == "app.py" for mutant in mutants)
    assert all("row['a'] == 1" in mutant.source and "a message is no verdict" in mutant.source for mutant in mutants)
    assert len({mutant.source for mutant in mutants}) == len(mutants)
    assert mutants_of(tmp_path, 3, Random(7)) == mutants_of(tmp_path, 3, Random(7))


@pytest.mark.parametrize(
    ("text", "bare", "kind", "value"),
    [
        (r"So \boxed{42}.", None, "number", "42"),
        ("Answer: 12 km", "12 km", "quantity", "12 km"),
        (r"\boxed{B}", "B", "letter", "B"),
        ('{"a": 1}', None, "json", '{"a": 1}'),
        ("<answer>Paris</answer>", None, "words", "Paris"),
        ("1, 2, 3", "1, 2, 3", "list", "1, 2, 3"),
        ("A long text that many others could replace, and that has no value of its own at all.", None, "text", None),
        ("```python\nprint(1)\n```", None, "code", None),
    ],
)
def test_a_right_answer_is_taken_apart(text: str, bare: str | None, kind: str, value: str | None) -> None:
    answer = answer_of(example_row(), Gold([message(text)], bare))
    assert answer is not None
    assert answer.kind == kind
    if value is not None:
        assert (answer.value, answer.text(answer.value)) == (value, text)


def test_a_check_goes_on_without_a_response_that_never_ends() -> None:
    def job(beats: object, skipped: frozenset[str]) -> TrustReport:
        assert callable(beats)
        beats(Beat("endless", 0.1))
        while "endless" not in skipped:
            pass
        return TrustReport("env", not_done=sorted(skipped))

    assert run_apart(job).not_done == ["endless"]


def test_an_error_of_a_check_is_raised_here() -> None:
    def job(_beats: object, _skipped: frozenset[str]) -> TrustReport:
        raise ValueError("it broke")

    with pytest.raises(StuckError, match="it broke"):
        run_apart(job)
