"""Health checks of rollouts: what their records and trajectories say went wrong, without a threshold.

A record is unhealthy if a check finds something, else unobserved if one could not be evaluated, else healthy. A record
without a trajectory is checked by the turns in its response, and by its model calls if they are known."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, NamedTuple

import orjson
from pydantic import ValidationError

from nemo_gym.analysis.observations import ModelCallRef, TrajectoryModelCall, TrajectoryRecord
from nemo_gym.config.keys import ROLLOUT_INDEX_KEY_NAME, TASK_INDEX_KEY_NAME
from nemo_gym.llm_api.base import JsonObject
from nemo_gym.rollouts.types import REPEAT_INDEX_KEY_NAME, task_index_of

Verdict = Literal["healthy", "unhealthy", "unobserved"]
Result = bool | None
"""True if a check finds something, None if it could not be evaluated."""
UNREADABLE, FAILED_CHECK, DUPLICATE = "record_unreadable", "check_execution_error", "rollout_duplicate_identity"
TASK_UNHEALTHY, TASK_WITHOUT_CALLS = "task_consistently_unhealthy", "task_no_successful_model_calls"
NO_TURNS_GAP = "turns_unavailable"
CAPTURE_GAPS = frozenset(("model_call_reference_unavailable", "trajectory_capture_mismatch"))
CUT_OFF = frozenset(("length", "max_tokens", "max_output_tokens"))
BAD_STATUSES = frozenset(("failed", "error", "cancelled"))
MIN_REPEATS = 2
_MODEL_ITEMS = frozenset(("reasoning", "function_call"))
_IDS = {"task_id": "0", "rollout_id": "0"}
"""Of a trajectory that a record does not have."""
VERDICTS_FILE, SUMMARY_FILE = "rollout_verdicts.jsonl", "quality_summary.json"


class Finding(NamedTuple):
    """What a check found."""

    check: str
    detail: str = ""


@dataclass
class RolloutHealth:
    """The result for one record."""

    task: Any = None
    rollout: Any = None
    stage: Any = None
    findings: list[Finding] = field(default_factory=list)
    unobserved: list[str] = field(default_factory=list)
    evaluated: list[str] = field(default_factory=list)
    policy_calls_observed: bool = False
    """True if every turn names a model call that was captured."""
    has_successful_call: Result = None

    @property
    def checks(self) -> list[str]:
        """The checks that found something."""
        return list(dict.fromkeys(finding.check for finding in self.findings))

    @property
    def verdict(self) -> Verdict:
        return "unhealthy" if self.findings else "unobserved" if self.unobserved else "healthy"


@dataclass
class HealthReport:
    """The results for all records, and what was written of them."""

    rollouts: list[RolloutHealth]
    summary: JsonObject


class _Calls:
    """The captured model calls of a trajectory, found by reference."""

    def __init__(self, trajectory: TrajectoryRecord) -> None:
        self.trajectory = trajectory
        self.all = trajectory.model_calls
        refs = [ref for turn in trajectory.turns for ref in turn.model_calls]
        self.of_turns = self._found(refs)
        invoked = [ref for each in trajectory.invocations for ref in each.model_calls]
        self.refs = [*refs, *invoked]
        self.bound = self._found(self.refs)
        self.all_turns_bound = bool(trajectory.turns) and all(
            turn.model_calls and all(len(self.matches(ref)) == 1 for ref in turn.model_calls)
            for turn in trajectory.turns
        )

    def matches(self, ref: ModelCallRef) -> list[TrajectoryModelCall]:
        if ref.model_call_id is not None:
            return [call for call in self.all if call.model_call_id == ref.model_call_id]
        return [call for call in self.all if call.response_metadata.response_id == ref.response_id]

    def _found(self, refs: Iterable[ModelCallRef]) -> list[TrajectoryModelCall]:
        found = {id(call): call for ref in refs for call in self.matches(ref)}
        return list(found.values())


def _value(call: TrajectoryModelCall, *names: str) -> Any:
    """Return a fact about a call: of the call itself, else of its metadata."""
    for source in (call.model_extra or {}, call.response_metadata.model_extra or {}):
        for name in names:
            if source.get(name) is not None:
                return source[name]
    return None


def _usage(call: TrajectoryModelCall) -> Mapping[str, Any]:
    usage = call.response.get("usage") if isinstance(call.response, Mapping) else None
    return usage if isinstance(usage, Mapping) else {}


def _tokens(call: TrajectoryModelCall) -> tuple[Any, Any]:
    usage = _usage(call)
    given, made = _value(call, "tokens_in", "prompt_tokens"), _value(call, "tokens_out", "completion_tokens")
    return (
        usage.get("input_tokens", usage.get("prompt_tokens")) if given is None else given,
        usage.get("output_tokens", usage.get("completion_tokens")) if made is None else made,
    )


def _has_failed(call: TrajectoryModelCall) -> bool:
    status = _value(call, "status_code")
    is_bad = call.response_metadata.response_status in BAD_STATUSES
    has_error = _value(call, "error_category", "error") is not None
    return is_bad or has_error or (isinstance(status, int) and status >= 400)


def _is_empty(value: Any) -> bool:
    """True for text, items or parts without anything in them."""
    if isinstance(value, str):
        return not value.strip()
    if isinstance(value, Mapping):
        if str(value.get("type", "")).endswith("_call"):
            return False
        return all(_is_empty(value[key]) for key in ("content", "text", "summary", "refusal") if value.get(key))
    if isinstance(value, list | tuple):
        return all(_is_empty(item) for item in value)
    return not value if not hasattr(value, "model_dump") else _is_empty(value.model_dump())


def _missing_turns(calls: _Calls, _record: JsonObject) -> Result:
    turns, gaps = calls.trajectory.turns, {gap.code for gap in calls.trajectory.gaps}
    if NO_TURNS_GAP in gaps:
        return None
    return not any(turn.model_calls or not _is_empty(turn.answer) for turn in turns)


def _hollow_turn(calls: _Calls, _record: JsonObject) -> Result:
    turns, gaps = calls.trajectory.turns, {gap.code for gap in calls.trajectory.gaps}
    if NO_TURNS_GAP in gaps:
        return None
    return any(_is_empty(turn.answer) and _is_empty(turn.reasoning_content) for turn in turns)


def _ended_on_failure(calls: _Calls, _record: JsonObject) -> Result:
    if not calls.all or CAPTURE_GAPS & {gap.code for gap in calls.trajectory.gaps}:
        return None
    by_model: dict[Any, list[TrajectoryModelCall]] = defaultdict(list)
    for call in calls.all:
        by_model[str(_value(call, "model_ref"))].append(call)
    for own in by_model.values():
        own.sort(key=lambda call: _value(call, "started_at") or 0.0)
        if _has_failed(own[-1]):
            return True
    return False


def _of_bound(check: Callable[[TrajectoryModelCall], bool]) -> Callable[[_Calls, JsonObject], Result]:
    """A check of each call that a turn or an invocation names."""
    return lambda calls, _record: any(check(call) for call in calls.bound) if calls.bound else None


def _mismatch(calls: _Calls, _record: JsonObject) -> Result:
    if not calls.refs:
        return None
    gaps = CAPTURE_GAPS & {gap.code for gap in calls.trajectory.gaps}
    return bool(gaps) or any(len(calls.matches(ref)) != 1 for ref in calls.refs)


def _runaway(calls: _Calls, _record: JsonObject) -> Result:
    if not calls.bound or not any(isinstance(call.response, Mapping) for call in calls.bound):
        return None
    return any(_is_runaway(call) for call in calls.bound)


def _is_runaway(call: TrajectoryModelCall) -> bool:
    response = call.response if isinstance(call.response, Mapping) else {}
    choices = response.get("choices") or [{}]
    reason = (response.get("incomplete_details") or {}).get("reason") or choices[0].get("finish_reason")
    content = _said(response["output"]) if "output" in response else (choices[0].get("message") or {}).get("content")
    return (reason or _value(call, "finish_reason")) in CUT_OFF and _is_empty(content)


def _said(output: Any) -> Any:
    """Return the items that are not reasoning."""
    if not isinstance(output, list):
        return output
    return [item for item in output if not isinstance(item, Mapping) or item.get("type") != "reasoning"]


def _tokens_differ(calls: _Calls, record: JsonObject) -> Result:
    response = record.get("response")
    usage = response.get("usage") if isinstance(response, Mapping) else None
    counts = [_tokens(call) for call in calls.of_turns]
    known = [all(isinstance(count, int) for count in each) for each in counts]
    if not isinstance(usage, Mapping) or not calls.all_turns_bound or not all(known):
        return None
    totals = tuple(map(sum, zip(*counts, strict=True)))
    return (usage.get("input_tokens"), usage.get("output_tokens")) != totals


CHECKS: dict[str, Callable[[_Calls, JsonObject], Result]] = {
    "rollout_missing_agent_turns": _missing_turns,
    "rollout_ended_on_failed_model_call": _ended_on_failure,
    "agent_turn_hollow": _hollow_turn,
    "model_call_zero_completion_tokens": _of_bound(lambda call: _tokens(call)[1] == 0),
    "model_call_missing_token_counts": _of_bound(lambda call: None in _tokens(call)),
    "trajectory_capture_mismatch": _mismatch,
    "model_call_failed": _of_bound(_has_failed),
    "rollout_token_count_mismatch": _tokens_differ,
    "model_call_runaway_generation": _runaway,
}
ALL_CHECKS = (FAILED_CHECK, UNREADABLE, DUPLICATE, *CHECKS, TASK_UNHEALTHY, TASK_WITHOUT_CALLS)


def check_rollouts(lines: Iterable[bytes], *, ignored_checks: Iterable[str] = ()) -> HealthReport:
    """Check the records of a collection, one a line."""
    ignored = frozenset(ignored_checks)
    unknown = sorted(ignored - set(ALL_CHECKS))
    if unknown:
        raise ValueError(f"There is no check {', '.join(unknown)}. Checks: {', '.join(ALL_CHECKS)}.")
    rollouts = [_checked(line, ignored) for line in lines if line.strip()]
    if DUPLICATE not in ignored:
        _find_duplicates(rollouts)
    tasks = _tasks(rollouts, ignored)
    return HealthReport(rollouts, _summary(rollouts, tasks, sorted(ignored)))


def _checked(line: bytes, ignored: frozenset[str]) -> RolloutHealth:
    try:
        record = orjson.loads(line)
        if not isinstance(record, dict):
            raise ValueError("it is no JSON object")
    except ValueError as error:
        return _unreadable(RolloutHealth(), error, ignored)
    return health_of(record, ignored=ignored)


def _unreadable(health: RolloutHealth, error: ValueError, ignored: frozenset[str]) -> RolloutHealth:
    if UNREADABLE not in ignored:
        health.findings.append(Finding(UNREADABLE, str(error)[:200]))
    return health


def health_of(record: JsonObject, *, ignored: frozenset[str] = frozenset()) -> RolloutHealth:
    """Check one record by itself."""
    repeat = record.get(ROLLOUT_INDEX_KEY_NAME, record.get(REPEAT_INDEX_KEY_NAME))
    health = RolloutHealth(task_index_of(record), repeat, record.get("stage"))
    try:
        trajectory = _trajectory_of(record)
        calls = None if trajectory is None else _Calls(trajectory)
    except ValidationError as error:
        return _unreadable(health, error, ignored)
    for name in CHECKS.keys() - ignored:
        _run(name, calls, record, health)
    health.findings.sort()
    health.unobserved.sort()
    if calls is not None:
        health.policy_calls_observed = calls.all_turns_bound
        health.has_successful_call = any(not _has_failed(call) for call in calls.of_turns) or (
            False if calls.all_turns_bound else None
        )
    return health


def _trajectory_of(record: JsonObject) -> TrajectoryRecord | None:
    """Return the trajectory of a record, or the one that its response shows."""
    given, response = record.get("ng_trajectory"), record.get("response")
    if given is not None:
        return TrajectoryRecord.model_validate(given)
    if not isinstance(response, Mapping) or not isinstance(response.get("output"), list):
        return None
    turns = list(_turns([item for item in response["output"] if isinstance(item, Mapping)]))
    calls = (record.get("ng_model_call_capture") or {}).get("calls")
    if calls is None and len(turns) <= 1 and response.get("usage"):
        calls = [{"model_call_id": "0", "response": response}]  # the response is that of its only call
    calls = [{"model_call_id": str(number), **call} for number, call in enumerate(calls or ())]
    is_bound = len(calls) == len(turns)
    return TrajectoryRecord.model_validate(
        {
            **_IDS,
            "model_calls": calls,
            "turns": [
                {
                    **_IDS,
                    "invocation_id": "0",
                    "turn_no": number,
                    "timestamp": 0.0,
                    "answer": [item for item in items if item.get("type") != "reasoning"],
                    "reasoning_content": [item for item in items if item.get("type") == "reasoning"],
                    "model_calls": [{"model_call_id": calls[number - 1]["model_call_id"]}] if is_bound else [],
                }
                for number, items in enumerate(turns, 1)
            ],
        }
    )


def is_made_by_model(item: Mapping[str, Any]) -> bool:
    """True for an output item of the model, false for what tools and others answered."""
    return item.get("type") in _MODEL_ITEMS or item.get("role") == "assistant"


def _turns(output: Iterable[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    """Yield what the model made at once."""
    for is_made, items in groupby(output, key=is_made_by_model):
        if is_made:
            yield list(items)


def _run(name: str, calls: _Calls | None, record: JsonObject, health: RolloutHealth) -> None:
    try:
        found = None if calls is None else CHECKS[name](calls, record)
    except Exception as error:  # a check must not end the others
        health.findings.append(Finding(FAILED_CHECK, f"{name}: {type(error).__name__}: {error}"))
        return
    (health.unobserved if found is None else health.evaluated).append(name)
    if found:
        health.findings.append(Finding(name))


def _find_duplicates(rollouts: list[RolloutHealth]) -> None:
    times = Counter((each.stage, each.task, each.rollout) for each in rollouts)
    for each in rollouts:
        if each.task is not None and times[each.stage, each.task, each.rollout] > 1:
            each.findings.append(Finding(DUPLICATE))


def _tasks(rollouts: list[RolloutHealth], ignored: frozenset[str]) -> dict[str, JsonObject]:
    by_task: dict[Any, list[RolloutHealth]] = defaultdict(list)
    for each in rollouts:
        by_task[each.task].append(each)
    found: dict[str, JsonObject] = {}
    for task, own in by_task.items():
        verdicts = Counter(each.verdict for each in own)
        judged = verdicts["healthy"] + verdicts["unhealthy"]
        flags, unobserved = [], []
        if judged < MIN_REPEATS:
            unobserved.append(TASK_UNHEALTHY)
        elif not verdicts["healthy"]:
            flags.append(TASK_UNHEALTHY)
        if any(each.has_successful_call is None for each in own):
            unobserved.append(TASK_WITHOUT_CALLS)
        elif not any(each.has_successful_call for each in own):
            flags.append(TASK_WITHOUT_CALLS)
        found[str(task)] = {
            "repeats": len(own),
            **{verdict: verdicts[verdict] for verdict in ("healthy", "unhealthy", "unobserved")},
            "flags": [flag for flag in flags if flag not in ignored],
            "unobserved_checks": [name for name in unobserved if name not in ignored],
        }
    return found


def _summary(rollouts: list[RolloutHealth], tasks: dict[str, JsonObject], ignored: list[str]) -> JsonObject:
    coverage = {
        name: {
            "evaluated": sum(name in each.evaluated for each in rollouts),
            "unobserved": sum(name in each.unobserved for each in rollouts),
        }
        for name in CHECKS
        if name not in ignored
    }
    for name in (TASK_UNHEALTHY, TASK_WITHOUT_CALLS):
        if name not in ignored:
            missing = sum(name in task["unobserved_checks"] for task in tasks.values())
            coverage[name] = {"evaluated": len(tasks) - missing, "unobserved": missing}
    issues = Counter(check for each in rollouts for check in each.checks)
    issues.update(flag for task in tasks.values() for flag in task["flags"])
    verdicts = Counter(each.verdict for each in rollouts)
    return {
        "run": {
            "ignored_checks": ignored,
            "artifacts": {"records": len(rollouts), "coverage": coverage},
            "verdicts": {verdict: verdicts[verdict] for verdict in ("healthy", "unhealthy", "unobserved")},
            "issues": dict(sorted(issues.items())),
        },
        "tasks": tasks,
    }


def run_health_checks(
    paths: str | Path | Iterable[str | Path],
    *,
    output_dir: str | Path | None = None,
    workers: int | None = None,
    ignored_checks: Iterable[str] = (),
) -> HealthReport:
    """Check the records in files, and write the results beside the first one or into a folder."""
    files = [Path(paths)] if isinstance(paths, str | Path) else [Path(path) for path in paths]
    report = check_files(files, ignored_checks=ignored_checks)
    write_health(report, Path(output_dir) if output_dir is not None else files[0].parent)
    return report


def write_health(report: HealthReport, folder: Path) -> None:
    """Write the summary and the verdicts into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SUMMARY_FILE).write_bytes(orjson.dumps(report.summary, option=orjson.OPT_INDENT_2))
    (folder / VERDICTS_FILE).write_bytes(b"".join(orjson.dumps(_verdict(each)) + b"\n" for each in report.rollouts))


def check_files(files: Iterable[Path], *, ignored_checks: Iterable[str] = ()) -> HealthReport:
    """Check the records in files."""
    return check_rollouts(_lines(files), ignored_checks=ignored_checks)


def _lines(files: Iterable[Path]) -> Iterator[bytes]:
    for path in files:
        with path.open("rb") as file:
            yield from file


def _verdict(health: RolloutHealth) -> JsonObject:
    return {
        TASK_INDEX_KEY_NAME: health.task,
        ROLLOUT_INDEX_KEY_NAME: health.rollout,
        "verdict": health.verdict,
        "findings": [finding._asdict() for finding in health.findings],
        "unobserved": health.unobserved,
    }
