"""Planted defects are found, and sound verifiers are not accused."""

import pytest

from tests.trust.bench import report_on
from tests.trust.verifiers import DEFECTS, SOUND, Planted

FEW = {"max_probes": 500, "budget_s": 20.0}


def few_of(table: list[Planted], offset: int) -> list[Planted]:
    """Each 24th verifier; `python -m tests.trust.bench` checks all of them."""
    return table[offset::24]


@pytest.mark.parametrize("planted", few_of(DEFECTS, 1) + few_of(DEFECTS, 6), ids=lambda planted: planted.name)
def test_a_planted_defect_is_found(planted: Planted) -> None:
    report = report_on(planted, **FEW)
    assert list(report.findings()) != []


@pytest.mark.parametrize("planted", few_of(SOUND, 0) + few_of(SOUND, 5), ids=lambda planted: planted.name)
def test_a_sound_verifier_is_not_accused(planted: Planted) -> None:
    report = report_on(planted, **FEW)
    assert list(map(str, report.findings())) == []
    assert report.false_negatives.errors == 0
