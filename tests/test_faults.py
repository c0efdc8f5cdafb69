"""The short form of `python -m bench.faults`: all kinds of faults and kills at once, and every score right."""

from pathlib import Path

import pytest

from bench.faults import KINDS, FaultRun, FaultRunError, Options, run_faults


def test_with_all_faults_at_once_every_score_is_right_and_every_cause_true(tmp_path: Path) -> None:
    report = run_faults(tmp_path, Options(rows=150, seconds=0, min_kills=5, kill_every_s=0.5, fault_rate=0.1, seed=1))
    assert set(report.kills) == set(KINDS)
    assert report.rows == 150 * (report.rounds + 1)
    assert report.faults
    assert report.failures
    first_mb, last_mb = report.memory_mb
    assert last_mb < first_mb + 50
    assert len(list(report.lines())) == 5


@pytest.mark.parametrize(
    ("record", "failure", "message"),
    [
        (b'{"reward":1.0,"_task_index":0}', b"", "1 wrong rewards"),
        (b'{"reward":0.0,"_task_index":0}\n{"reward":0.0,"_task_index":0}', b"", "every row once"),
        (
            b'{"reward":0.0,"_task_index":0}',
            b'{"_task_index":0,"cause":"judge","started_at":1,"seconds":1}\n',
            "no fault explains",
        ),
    ],
)
def test_what_is_wrong_is_found(tmp_path: Path, record: bytes, failure: bytes, message: str) -> None:
    (tmp_path / "out.jsonl").write_bytes(record + b"\n")
    (tmp_path / "out_failures.jsonl").write_bytes(failure)
    with pytest.raises(FaultRunError, match=message):
        FaultRun(tmp_path, Options(rows=1)).check(tmp_path / "out.jsonl")
