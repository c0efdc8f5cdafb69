from dataclasses import asdict

import pytest

from bench.verifiers import VERIFIERS
from bench.verify_load import HEAD, as_row, measure_verify_load


async def test_a_verifier_is_measured() -> None:
    load = await measure_verify_load("mcqa", count=100)
    measured = {name: value for name, value in asdict(load).items() if name != "verifier"}
    assert all(value > 0 for value in measured.values()), measured
    assert as_row(load).count("|") == HEAD.splitlines()[0].count("|")


@pytest.mark.parametrize("name", VERIFIERS)
def test_no_two_rows_are_alike(name: str) -> None:
    rows = [str(VERIFIERS[name].row(number)) for number in range(-50, 50)]
    assert len(set(rows)) == 100
    assert rows == [str(VERIFIERS[name].row(number)) for number in range(-50, 50)]
