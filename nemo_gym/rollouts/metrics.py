"""Metrics of a collection: a running summary of its rollouts, and what environments compute themselves in the end.

Memory does not grow with the number of rollouts: a task is kept until all of its repeats have an outcome, then only
what it adds to the estimates.
"""

import copy
import json
import logging
import math
import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from nemo_gym.client.server_client import ServerClient
from nemo_gym.common.atomic_files import write_json
from nemo_gym.common.metrics import StageLoad
from nemo_gym.common.redaction import one_line
from nemo_gym.common.statistics import (
    PASS_THRESHOLD,
    LogHistogram,
    TaskEstimates,
    TaskTotals,
    number_columns,
    numbers_in,
    only_numbers,
)
from nemo_gym.common.words import count_of, shorten
from nemo_gym.config.keys import (
    AGENT_REF_KEY_NAME,
    ENVIRONMENT_SERVER_KEY_NAME,
    ENVIRONMENT_SERVERS,
    MASK_SAMPLE,
    ROLLOUT_INDEX_KEY_NAME,
    TASK_INDEX_KEY_NAME,
    nodes,
)
from nemo_gym.config.types import is_server_ref
from nemo_gym.errors import AggregationError, Cause, RolloutError
from nemo_gym.llm_api.base import JsonObject
from nemo_gym.rollouts.hacking_signals import HackingSignals
from nemo_gym.rollouts.store import aggregate_metrics_path, read_rollouts
from nemo_gym.rollouts.types import (
    ANSWER_FIELDS,
    METADATA_FIELDS,
    Outcome,
    agent_of,
    metric_fields,
    rollout_key,
    task_index_of,
)

logger = logging.getLogger(__name__)

JUDGE_FAILURE_FIELD = "judge_failure"
"""The field in which a judged environment says that its judge gave no verdict, and why."""
MAX_NAME = 24
"""Longer names of fields are cut, so that a table fits 70 columns."""
TOKENS = ("input", "output", "reasoning", "total")
BATCH_SIZE = 1024
"""Number of rollouts that are added at once: one by one it takes ten times as long."""
MAX_RECORDS = 200_000
"""The most records of one agent in one request for its own metrics."""
_DROPPED = METADATA_FIELDS | {
    *("responses_create_params", "response", "ng_agent_observations", "ng_model_call_capture", "ng_trajectory")
}
"""Fields that are not metrics of the environment."""


class RunningMetrics:
    """The metrics of a run: add every outcome, then call `summary()` or `table()` at any time."""

    def __init__(self, *, num_repeats: int | None = None, pass_threshold: float = PASS_THRESHOLD) -> None:
        """Without `num_repeats` it is unknown when a task is complete, so all of them stay in memory until the end."""
        self.num_repeats, self.pass_threshold = num_repeats, pass_threshold
        self.scored = 0
        self.failed: Counter[Cause] = Counter()
        self.judge_failures: Counter[str] = Counter()
        """Number of judge failures by kind, including those for which a reward is configured."""
        self.signals = HackingSignals(pass_threshold)
        self.masked = 0
        """Scored rollouts with `mask_sample`, which count in no mean."""
        self._open: dict[int | None, TaskTotals] = {}
        """The tasks that are not complete. A record without an index is a task of its own."""
        self._estimates = TaskEstimates()
        self._token_sums: dict[str, tuple[float, int]] = {}
        """Sum of the token counts of each kind, and the number of rollouts that have one."""
        self._rewarded, self._reward_total = 0, 0.0
        self._not_booleans: set[str] = set()
        """Fields with a value other than true and false."""
        self._not_proportions: set[str] = set()
        """Fields with a whole number or a value not between 0 and 1. For a reward, whole numbers do not matter."""
        self._not_counts: set[str] = set()
        """Fields with a value that is no count: not whole, or below 0. The mean of counts cannot be below 0."""
        self.cut_off = 0
        """Number of rollouts that a token or step limit ended."""
        self._attempts = self._retries = 0
        self._latency = LogHistogram()
        self._batch: list[Mapping[str, Any]] = []
        """The values of rollouts that are not added up yet, their tokens, and how long they took."""
        self._tokens: list[Sequence[Any]] = []
        self._seconds: list[float] = []
        self.blocked: dict[str, dict[str, float]] = {}
        """The handlers that blocked the event loop, if the servers are in this process."""
        self.stages: dict[str, dict[str, float]] = {}
        """Requests and seconds by stage, if the servers are in this process."""

    def add(self, record: Mapping[str, Any]) -> None:
        """Add a scored rollout by its record. Records from elsewhere have no metadata."""
        self.signals.add(record, task_index_of(record) or 0)
        self._attempts += record.get("_attempts", 0)
        self._retries += record.get("_retries", 0)
        self._add_scored(task_index_of(record), record.get("_seconds"), **metric_fields(record))

    def add_outcome(self, outcome: Outcome) -> None:
        """Add a rollout that ended. One without a result is an outcome of its task, but has no metrics; an attempt
        that is repeated is none."""
        index, error = outcome.row.task_index, outcome.error
        if error is None:
            self._attempts += outcome.row.attempt
            self._retries += outcome.retries
            self._add_scored(index, outcome.seconds, outcome.values, outcome.tokens, is_cut_off=outcome.is_cut_off)
            self.signals.add_line(outcome.record, index)
        elif outcome.is_final:
            self._attempts += outcome.row.attempt
            self.failed[error.cause] += 1
            if error.cause == "judge" and error.code is not None:
                self.judge_failures[error.code] += 1
            if self.num_repeats != 1:
                self._end_rollout(index, self._open.get(index) or TaskTotals())

    def _add_scored(
        self,
        task_index: int | None,
        seconds: float | None,
        values: Mapping[str, Any],
        tokens: Sequence[Any],
        *,
        is_cut_off: bool,
    ) -> None:
        self.scored += 1
        self.cut_off += is_cut_off
        if seconds is not None:
            self._seconds.append(seconds)
        if values.get(MASK_SAMPLE):
            self.masked, values = self.masked + 1, {}
        if kind := values.get(JUDGE_FAILURE_FIELD):
            self.judge_failures[kind if isinstance(kind, str) else json.dumps(kind)] += 1
        if self.num_repeats != 1:
            self._add_to_task(task_index, values)
        if tokens:
            self._tokens.append(tokens)
        self._batch.append(values)
        if len(self._batch) == BATCH_SIZE:
            self._add_batch()

    def _add_to_task(self, index: int | None, values: Mapping[str, Any]) -> None:
        task = self._open.get(index) or TaskTotals()
        is_pass = task.add(numbers_in(values), pass_threshold=self.pass_threshold)
        if is_pass is not None:
            for name in ANSWER_FIELDS:
                if name in values:
                    task.vote(_vote(values[name]), is_pass=is_pass)
                    break
        self._end_rollout(index, task)

    def _add_batch(self) -> None:
        """Add the rollouts of the batch, name by name."""
        batch, self._batch = self._batch, []
        seconds, self._seconds = self._seconds, []
        tokens, self._tokens = self._tokens, []
        if seconds:
            self._latency.add(*seconds)
        for name, counts in zip(TOKENS, zip(*tokens, strict=True), strict=False):
            if numbers := only_numbers(counts):
                total, count = self._token_sums.get(name, (0, 0))
                self._token_sums[name] = total + sum(numbers), count + len(numbers)
        columns = number_columns(batch)
        self._not_booleans.update(name for name, values in columns.items() if set(map(type, values)) != {bool})
        self._not_proportions.update(name for name, values in columns.items() if not _are_proportions(name, values))
        self._not_counts.update(name for name, values in columns.items() if not _are_counts(values))
        if rewards := columns.get("reward"):
            self._rewarded += len(rewards)
            self._reward_total += sum(rewards)
        if self.num_repeats == 1:
            self._estimates.add_single_rollouts(columns, pass_threshold=self.pass_threshold)

    def _end_rollout(self, index: int | None, task: TaskTotals) -> None:
        task.outcomes += 1
        if index is not None and task.outcomes != self.num_repeats:
            self._open[index] = task
        else:
            self._open.pop(index, None)
            self._estimates.add(task)

    def add_stages(self, before: Mapping[str, StageLoad], now: Mapping[str, StageLoad]) -> None:
        """Add the requests by stage since `before`. Stages that no request reached are left out."""
        for stage, load in now.items():
            first = before.get(stage) or StageLoad(in_flight=0, requests=0, seconds=0.0)
            requests, seconds = load["requests"] - first["requests"], load["seconds"] - first["seconds"]
            if requests > 0 and stage != "agent":
                self.stages[stage] = {"requests": requests, "seconds": round(seconds, 6)}

    def mean_reward(self) -> float | None:
        """Return the mean reward so far, including earlier records of a resumed run."""
        self._add_batch()
        return None if not self._rewarded else self._reward_total / self._rewarded

    def means(self) -> dict[str, float]:
        """Return the means, `reward` first, each over the records that have the field."""
        summary = self.summary()
        found = {"reward": summary["reward"], **summary["fields"]}
        return {name: each["mean"] for name, each in found.items() if each}

    def summary(self) -> dict[str, Any]:
        """Return all metrics as JSON."""
        self._add_batch()
        estimates, alarms = copy.deepcopy(self._estimates), self.signals.alarms()
        for task in self._open.values():
            estimates.add(task)
        fields = {
            name: each.summary(
                is_proportion=name not in self._not_proportions, lowest=-math.inf if name in self._not_counts else 0.0
            )
            for name, each in sorted(estimates.fields.items())
        }
        return {
            "scored": self.scored,
            "failed": self.failed.total(),
            "failures_by_cause": dict(sorted(self.failed.items())),
            "judge_failures": dict(sorted(self.judge_failures.items())),
            "cut_off": self.cut_off,
            **({"masked": self.masked} if self.masked else {}),
            **({"alarms": [alarm._asdict() for alarm in alarms]} if alarms else {}),
            "tasks": estimates.tasks,
            "reward": fields.pop("reward", None),
            "pass_threshold": self.pass_threshold,
            **{name: each.summary(is_proportion=True) for name, each in estimates.chances().items()},
            "fields": fields,
            "tokens": self._token_summary(),
            "latency_s": self._latency.summary(),
            "attempts": self._attempts,
            "retries": self._retries,
            **({"blocked_handlers": self.blocked} if self.blocked else {}),
            **({"stages": self.stages} if self.stages else {}),
        }

    def _token_summary(self) -> dict[str, dict[str, float]]:
        sums = [(name, *self._token_sums[name]) for name in TOKENS if name in self._token_sums]
        # JSON holds integers of 64 bits, but an endpoint may report any number of tokens
        return {
            name: {"mean": total / count, "total": total if abs(total) < 2**63 else float(total)}
            for name, total, count in sums
        }

    def table(self) -> str:
        """Return all metrics as lines of text."""
        return "\n".join(map(one_line, _lines(self.summary(), numbers=self._not_booleans)))


def _are_counts(values: Sequence[Any]) -> bool:
    return set(map(type, values)) <= {int, bool} and min(values) >= 0


def _are_proportions(name: str, values: Sequence[float]) -> bool:
    """True for values between 0 and 1 that are no counts, so that no interval of their mean leaves that range."""
    are_counts = name != "reward" and int in set(map(type, values))
    return not are_counts and min(values) >= 0 and max(values) <= 1


def _vote(answer: Any) -> str | bytes | None:
    """Return an answer in a form that can be counted."""
    if answer is None or answer == "":
        return None
    return answer if isinstance(answer, str) else orjson.dumps(answer, option=orjson.OPT_SORT_KEYS)


def _lines(summary: Mapping[str, Any], *, numbers: Container[str]) -> Iterator[str]:
    causes = ", ".join(f"{cause} {count}" for cause, count in summary["failures_by_cause"].items())
    failed = f", {summary['failed']} without a result ({causes})" if causes else ""
    tasks = f" of {count_of(summary['tasks'], 'task')}" if summary["tasks"] else ""
    yield f"{count_of(summary['scored'], 'scored rollout')}{tasks}{failed}"
    if summary["judge_failures"]:
        kinds = (f"{kind} {count}" for kind, count in summary["judge_failures"].items())
        yield f"judge replies without a verdict: {', '.join(kinds)}"
    if summary.get("masked"):
        yield f"{count_of(summary['masked'], 'rollout')} masked by the environment, not in the means"
    if summary["cut_off"]:
        yield f"{count_of(summary['cut_off'], 'rollout')} cut off by a limit"
    for alarm in summary.get("alarms", ()):
        tasks = ", ".join(map(str, alarm["rollouts"][:5]))
        yield f"ALARM {alarm['signal']}: {alarm['says']}; look at tasks {tasks}"
    yield from _table(summary, numbers)
    if summary["tokens"]:
        tokens = {name: entry for name, entry in summary["tokens"].items() if entry["total"]}
        means = (f"{name} {_shown(entry['mean'])}" for name, entry in tokens.items())
        yield f"tokens per rollout: {', '.join(means) or 'none'}"
    if summary["latency_s"]:
        times = (f"{name} {value:.3g}" for name, value in summary["latency_s"].items())
        yield f"seconds per rollout: {', '.join(times)}"
    if summary["attempts"] > summary["scored"] + summary["failed"] or summary["retries"]:
        yield f"{count_of(summary['attempts'], 'attempt')}, {summary['retries']} requests retried within scored ones"
    if summary.get("stages"):
        stages = (f"{name} {entry['seconds']:.2f}" for name, entry in summary["stages"].items())
        yield f"seconds of requests by stage: {', '.join(stages)}"
    for name, entry in summary.get("blocked_handlers", {}).items():
        yield f"{name} blocked the event loop, times: {entry['times']}, seconds in all: {entry['seconds']:.3g}"


def _table(summary: Mapping[str, Any], numbers: Container[str]) -> Iterator[str]:
    """Yield means and intervals in at most 70 columns, without fields that are false everywhere."""
    chances = {name: entry for name, entry in summary.items() if name.startswith(("pass@", "majority@"))}
    fields = {name: each for name, each in summary["fields"].items() if each["mean"] or name in numbers}
    rows = {**({"reward": summary["reward"]} if summary["reward"] else {}), **chances, **fields}
    if not rows:
        return
    width = min(max(map(len, rows)), MAX_NAME)
    yield f"{'':<{width}}  {'mean':>8}  {'error':>8}  {'95 % interval':>17}"
    for name, entry in rows.items():
        error, interval = entry["standard_error"] or None, entry["interval_95"]
        shown = " .. ".join(f"{bound:.3g}" for bound in interval) if interval else "unknown"
        count = "" if entry["tasks"] == summary["tasks"] else f"  n={entry['samples']}"
        yield f"{shorten(name, width):<{width}}  {_shown(entry['mean']):>8}  {_shown(error):>8}  {shown:>17}{count}"


def _shown(value: float | str | None) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else "-"


async def write_aggregate_metrics(
    output: Path,
    client: ServerClient,
    *,
    agent_name: str | None,
    always: bool = False,
    inputs: Sequence[Path] = (),
) -> Path | None:
    """Ask agents for the metrics of their rollouts, and write them beside the output. Return the file, if any.

    Only agents whose environment computes metrics of its own are asked, or with `always` all of them. The records are
    in `inputs`, or else in the output. Raises AggregationError if that fails."""
    try:
        players = [name for kind in ("responses_api_agents", ENVIRONMENT_SERVERS) for name in client.names(kind)]
        agents = [agent_name] if agent_name else players
        own = [agent for agent in agents if not always and await _has_own_metrics(client, agent)]
        stored = (line for path in inputs or [output] for line in read_rollouts(path, warn=bool(inputs)))
        by_agent = _records_by_agent((line.record for line in stored), agent_name) if always or own else {}
        found = [await _own_metrics(client, agent, by_agent[agent]) for agent in by_agent if always or agent in own]
    except Exception as error:
        raise AggregationError(f"The aggregate metrics of {output} are not computed: {error}") from error
    if not found:
        return None
    write_json(aggregate_metrics_path(output), found)
    return aggregate_metrics_path(output)


async def _has_own_metrics(client: ServerClient, agent: str) -> bool:
    for server in (agent, *_environments_of(client.setting(agent))):
        reply = await client.send(server, "/aggregate_metrics", method="GET")
        if reply.status == 200 and reply.json().get("has_own_metrics"):
            return True
    return False


def _environments_of(block: Any) -> list[str]:
    """Return the environments that an agent's block refers to."""
    refs = (is_server_ref(value) for _, value in nodes(block))
    return [ref.name for ref in refs if ref is not None and ref.type == "resources_servers"]


async def _own_metrics(client: ServerClient, agent: str, records: list[JsonObject]) -> JsonObject:
    if len(records) > MAX_RECORDS:
        raise ValueError(f"'{agent}' has {len(records)} records, more than {MAX_RECORDS}")
    from nemo_gym.server.aggregate_metrics import AggregateMetrics, AggregateMetricsRequest

    request = AggregateMetricsRequest(verify_responses=records)
    metrics = await client.call(agent, "/aggregate_metrics", request, answer=AggregateMetrics)
    agents = {name for record in records if (name := agent_of(record)) is not None}
    named = agents.pop() if len(agents) == 1 else agent
    front = {} if named == agent else {ENVIRONMENT_SERVER_KEY_NAME: agent}
    return {AGENT_REF_KEY_NAME: {"name": named}, **front, **metrics.model_dump()}


def _records_by_agent(all_records: Iterable[JsonObject], agent_name: str | None) -> dict[str, list[JsonObject]]:
    """Return the stripped records of each agent, sorted by task and rollout index."""
    found: dict[str, list[JsonObject]] = {}
    for record in all_records:
        agent = agent_name or record.get(ENVIRONMENT_SERVER_KEY_NAME) or agent_of(record)
        if agent is not None:
            found.setdefault(agent, []).append(strip_record(record))
    for records in found.values():
        records.sort(key=rollout_key)
    return found


def strip_record(record: Mapping[str, Any]) -> JsonObject:
    """Return a record as `/aggregate_metrics` takes it: with its indices and usage, without its conversation."""
    response = record.get("response")
    usage = {"response": {"usage": response["usage"]}} if isinstance(response, dict) and response.get("usage") else {}
    kept = {name: value for name, value in record.items() if name not in _DROPPED}
    task, rollout = rollout_key(record)
    return {**kept, **usage, TASK_INDEX_KEY_NAME: task, ROLLOUT_INDEX_KEY_NAME: rollout}


MAX_KINDS = 1000
"""Upper bound for distinct messages. Later ones are counted together, so that memory does not grow with the rows."""
MAX_SHOWN = 160
OTHER = "other messages"

_UPSTREAM = re.compile(r"^(?:The judge failed: )?\S+ answered (\d{3}): ")
_VARYING = re.compile(r"0x[0-9a-f]+|[0-9a-f]{12,}|\d+", re.I)
_REMEDIES = {
    "unauthorized": "Check {api_key}.",
    "no_quota": "Add credits to the account of {api_key}.",
    "unknown_model": "Check {model_name}.",
    "not_found": "Check {base_url} and {model_name}.",
    "unreachable": "Is the endpoint running? Check {base_url}.",
}
_UNTRUSTED = (
    "Is its certificate of an authority that this machine trusts? If not, name the file with it in SSL_CERT_FILE."
)
_OF_POLICY = {"api_key": "policy_api_key", "model_name": "policy_model_name", "base_url": "policy_base_url"}
_OF_OTHERS = {"api_key": "its API key", "model_name": "the name of its model", "base_url": "its base URL"}


class FailureMessages:
    """Counts failures that differ in numbers only as one kind."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._examples: dict[str, str] = {}

    def add(self, outcome: Outcome) -> None:
        """Count one rollout without a result."""
        text = short_message(outcome)
        kind = _VARYING.sub("#", text)
        if kind not in self._examples:
            if len(self._examples) >= MAX_KINDS:
                kind = text = OTHER
            self._examples[kind] = text
        self._counts[kind] += 1

    def most_common(self, count: int) -> list[tuple[str, int]]:
        """The most frequent messages, each with how often it occurred."""
        return [(self._examples[kind], times) for kind, times in self._counts.most_common(count)]


def short_message(outcome: Outcome) -> str:
    """The failing server and what it said, on one line: `policy_model: 401 Incorrect API key`."""
    error = outcome.error
    if error is None:
        return ""
    text = _UPSTREAM.sub(lambda match: f"{match[1]} ", " ".join(str(error).split()))
    named = f"{error.server}: {text}" if error.server and error.server not in text else text
    if error.cause == "input" and error.server:
        named = f"row {outcome.row.task_index + 1}: {named}"
    return shorten(named, MAX_SHOWN)


def setup_message(error: RolloutError) -> str:
    """Explain why no rollout can succeed, and what to check."""
    names = _OF_POLICY if error.server == "policy_model" else _OF_OTHERS
    is_untrusted = "certificate verify failed" in str(error)
    remedy = _UNTRUSTED if is_untrusted else _REMEDIES[error.code or ""].format(**names)
    return f"{error.server or 'The model'} cannot be used: {str(error).rstrip('.')}. {remedy}"
