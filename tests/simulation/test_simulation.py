"""The short form of `make simulate`: some seeds, the regressions, and the same timeline for the same seed."""

import subprocess
import sys

import pytest

from tests.simulation.mutations import MUTANTS, ROOT, Mutant
from tests.simulation.regressions import REGRESSIONS


def simulate(*arguments: str) -> str:
    """Play seeds in a process of their own, whose clock, disk and network are virtual."""
    command = [sys.executable, "-m", "tests.simulation", *arguments]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, f"{ran.stdout[-20_000:]}{ran.stderr}"
    return ran.stdout


def test_no_seed_breaks_an_invariant() -> None:
    assert "broken: none" in simulate("--seeds", "12")


def test_the_seeds_that_found_defects_break_no_invariant_any_more() -> None:
    assert f"{len(REGRESSIONS)} seeds" in simulate("--regressions")


def test_a_seed_plays_the_same_events_again() -> None:
    first, second = (
        [line for line in simulate("--digests", "--start", start, "--seeds", seeds).splitlines() if "seed 17:" in line]
        for start, seeds in (("17", "1"), ("15", "3"))
    )
    assert first == second != []


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_text_that_a_planted_defect_replaces_is_there_once(mutant: Mutant) -> None:
    assert (ROOT / "nemo_gym" / mutant.module).read_text().count(mutant.old) == 1
