"""What the health checks find in records, and what they cannot evaluate."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import orjson
import pytest

from nemo_gym.analysis.rollout_health import CHECKS, run_health_checks
from nemo_gym.cli.analyze import check_rollouts
from nemo_gym.testing import calls, example_row, message, response_of, tool_output
from nemo_gym.viewer.records import describe_line
from tests.jsonl import write_lines


def call(**fields: Any) -> dict[str, Any]:
    response = {"id": "r", "status": "completed", "output": [{"type": "message", "content": "Hi."}]}
    return {"model_call_id": "c", "response": response, "tokens_in": 3, "tokens_out": 2, "status_code": 200, **fields}


def record(*, calls: list[dict[str, Any]], answer: Any = "Hi.", rollout: int = 0, **fields: Any) -> dict[str, Any]:
    ids = {"task_id": "0", "rollout_id": f"0-{rollout}"}
    turn = {"invocation_id": "root", **ids, "turn_no": 1, "timestamp": 1.0, "answer": answer}
    trajectory = {**ids, "turns": [{**turn, "model_calls": [{"model_call_id": "c"}]}], "model_calls": calls}
    usage = {"usage": {"input_tokens": 3, "output_tokens": 2}}
    indices = {"_ng_task_index": 0, "_ng_rollout_index": rollout}
    return {**indices, "reward": 1.0, "response": usage, "ng_trajectory": trajectory, **fields}


def findings(tmp_path: Path, *records: Any) -> list[set[str]]:
    path = tmp_path / "rollouts.jsonl"
    write_lines(path, records)
    report = run_health_checks(path)
    written = (tmp_path / "rollout_verdicts.jsonl").read_bytes().splitlines()
    assert [orjson.loads(line)["verdict"] for line in written] == [each.verdict for each in report.rollouts]
    return [{finding.check for finding in each.findings} for each in report.rollouts]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, set()),
        ({"calls": [call(status_code=503)]}, {"model_call_failed", "rollout_ended_on_failed_model_call"}),
        ({"calls": [call(tokens_out=0)]}, {"model_call_zero_completion_tokens", "rollout_token_count_mismatch"}),
        ({"calls": [call(tokens_out=None)]}, {"model_call_missing_token_counts"}),
        ({"calls": [call(), call()]}, {"trajectory_capture_mismatch"}),
        ({"answer": ""}, {"agent_turn_hollow"}),
        (
            {"calls": [call(response={"incomplete_details": {"reason": "max_output_tokens"}, "output": []})]},
            {"model_call_runaway_generation"},
        ),
        ({"ng_trajectory": {"task_id": 1}}, {"record_unreadable"}),
    ],
)
def test_what_is_found_in_a_record(tmp_path: Path, changes: dict[str, Any], expected: set[str]) -> None:
    assert findings(tmp_path, record(**{"calls": [call()], **changes})) == [expected]


def test_what_is_found_over_records(tmp_path: Path) -> None:
    failed = [record(calls=[call(status_code=500)], rollout=index) for index in (0, 1)]
    assert "rollout_duplicate_identity" in findings(tmp_path, failed[0], failed[0])[1]
    findings(tmp_path, *failed)
    summary = orjson.loads((tmp_path / "quality_summary.json").read_bytes())
    assert summary["tasks"]["0"]["flags"] == ["task_consistently_unhealthy", "task_no_successful_model_calls"]
    assert summary["run"]["verdicts"] == {"healthy": 0, "unhealthy": 2, "unobserved": 0}


THOUGHT = {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "Hm."}]}
USAGE = {"input_tokens": 3, "output_tokens": 2}
LONG = {"usage": {**USAGE, "output_tokens": 9}, "incomplete_details": {"reason": "max_output_tokens"}}


@pytest.mark.parametrize(
    ("items", "response", "verdict", "expected"),
    [
        ([message("Hi.")], {"usage": USAGE}, "healthy", set()),
        ([message("Hi.")], {}, "unobserved", set()),
        ([], {"usage": USAGE}, "unhealthy", {"rollout_missing_agent_turns"}),
        ([THOUGHT], LONG, "unhealthy", {"model_call_runaway_generation"}),
        ([calls("look"), tool_output("x"), message(" ")], {"usage": USAGE}, "unhealthy", {"agent_turn_hollow"}),
        ([calls("look"), tool_output("x"), message("Hi.")], {"usage": USAGE}, "unobserved", set()),
    ],
)
def test_a_record_without_a_trajectory_is_checked_by_its_response(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    items: list[Any],
    response: dict[str, Any],
    verdict: str,
    expected: set[str],
) -> None:
    path = tmp_path / "rollouts.jsonl"
    answered = {**response_of(*items), "usage": None, **response}
    record = {"_task_index": 0, "_repeat_index": 0, "reward": 1.0, **example_row("Q"), "response": answered}
    write_lines(path, [record])
    options = (f"+rollouts_jsonl_fpath={tmp_path}", f"+output_dirpath={tmp_path / 'out'}")
    monkeypatch.setattr("sys.argv", ["ng_check_rollouts", *options])
    with pytest.raises(SystemExit) if expected else nullcontext():
        check_rollouts()
    shown = capsys.readouterr().out
    assert all(f"{check}: 0/0" in shown for check in expected)
    (line,) = (tmp_path / "out" / "rollout_verdicts.jsonl").read_bytes().splitlines()
    written = orjson.loads(line)
    assert (written["verdict"], {each["check"] for each in written["findings"]}) == (verdict, expected)
    fields = describe_line(path.read_bytes()).fields
    assert (fields["health"], fields.get("health.findings", "")) == (verdict, ", ".join(expected))


def test_without_a_trajectory_nothing_is_observed(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    write_lines(path, [{"_ng_task_index": 0, "reward": 1.0}])
    (health,) = run_health_checks(path).rollouts
    assert (health.verdict, health.unobserved) == ("unobserved", sorted(CHECKS))
    assert run_health_checks(path, ignored_checks=CHECKS).rollouts[0].verdict == "healthy"
