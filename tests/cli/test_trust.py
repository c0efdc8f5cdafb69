"""What `ng_check_verifier` prints."""

from collections import Counter

import pytest

from nemo_gym.cli.trust import verifier_table
from nemo_gym.trust.report import TrustReport

NAMES = ["mcqa", "math_advanced_calculations", "example_stateful_counter_resources_server", "x" * 90]


def report(name: str, *, failed: int = 0, latency_ms: float = 1.5) -> TrustReport:
    failures = {"empty": Counter({"verifier": failed})} if failed else {}
    return TrustReport(name, rows=1234, rows_with_gold=1234, probes=12345, failed=failures, latencies_ms=[latency_ms])


@pytest.mark.parametrize("failed", [0, 123])
def test_the_table_fits_80_columns_and_has_every_metric(failed: int) -> None:
    lines = list(verifier_table([report(name, failed=failed, latency_ms=12345.6) for name in NAMES]))
    assert max(len(line) for line in lines if not line.startswith("xxx")) <= 80
    assert ("failed" in lines[0]) is bool(failed)
    assert sum("12345.6" in line for line in lines) == len(NAMES)
    assert all(any(line.startswith(name) for line in lines) for name in NAMES)


def test_an_environment_of_one_letter_and_none_at_all() -> None:
    assert len(list(verifier_table([report("a")]))) == 2
    assert len(list(verifier_table([]))) == 1
