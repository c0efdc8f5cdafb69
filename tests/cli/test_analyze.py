"""What `ng_check_verifier` prints."""

from collections import Counter

import pytest

from nemo_gym.analysis.verifier_check import ProbeStats, VerifierReport
from nemo_gym.cli.analyze import verifier_table

NAMES = ["mcqa", "math_advanced_calculations", "example_stateful_counter_resources_server", "x" * 90]


def report(name: str, *, failed: int = 0, latency_ms: float = 1.5) -> VerifierReport:
    kinds = {"empty": ProbeStats(may_be_right=False, failed=Counter({"verifier": failed}))}
    return VerifierReport(name, rows=12345, rows_with_gold=12345, kinds=kinds, latencies_ms=[latency_ms])


@pytest.mark.parametrize("failed", [0, 123])
def test_the_table_fits_70_columns_and_has_every_metric(failed: int) -> None:
    lines = list(verifier_table([report(name, failed=failed, latency_ms=12345.6) for name in NAMES]))
    assert max(len(line) for line in lines if not line.startswith("xxx")) <= 70
    assert ("failed" in lines[0]) is bool(failed)
    assert sum("12345.6" in line for line in lines) == len(NAMES)
    assert all(any(line.startswith(name) for line in lines) for name in NAMES)


def test_an_environment_of_one_letter_and_none_at_all() -> None:
    assert len(list(verifier_table([report("a")]))) == 2
    assert len(list(verifier_table([]))) == 1
