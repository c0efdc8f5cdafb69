"""Training samples for a trainer from stored rollouts: one line per segment, with the advantage in its group."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nemo_gym.analysis.export_report import MASKED, ExportReport
from nemo_gym.analysis.records import StoredLine, prompt_digest, read_rollouts
from nemo_gym.analysis.trainer_views import VIEWS
from nemo_gym.analysis.training_samples import TrainingSample, group_advantages, reward_of, samples_of
from nemo_gym.common.redaction import MASKED_FIELD
from nemo_gym.config.keys import TASK_INDEX_FIELD
from nemo_gym.errors import RolloutError
from nemo_gym.llm_api.base import JsonObject
from nemo_gym.participants import POLICY, policy_records
from nemo_gym.rollouts.token_traces import TokenTraceError
from nemo_gym.rollouts.types import REPEAT_INDEX_KEY_NAME, task_index_of


def token_samples(rollouts: Path, trainer: str, report: ExportReport) -> Iterator[JsonObject]:
    """The lines for a trainer. The file is read twice: advantages need the rewards of all rollouts of a task."""
    advantages = _advantages(rollouts)
    for stored in read_rollouts(rollouts):
        report.read += 1
        try:
            samples = _samples(stored, advantages)
        except TokenTraceError as error:
            report.dropped[str(error)] += 1
            continue
        report.used += 1
        for policy, sample in samples:
            yield {
                TASK_INDEX_FIELD: task_index_of(stored.record),
                REPEAT_INDEX_KEY_NAME: stored.record.get(REPEAT_INDEX_KEY_NAME),
                "policy": policy,
                "segment": sample.segment,
                "advantage": sample.advantage,
                "sample": VIEWS[trainer].write(sample),
            }


def _samples(stored: StoredLine, advantages: dict[tuple[int, str], float]) -> list[tuple[str, TrainingSample]]:
    """The samples of every policy of a rollout, with its name."""
    if MASKED_FIELD in stored.record:
        raise TokenTraceError(MASKED)
    samples: list[tuple[str, TrainingSample]] = []
    for policy, part in _policies(stored.record).items():
        if (stored.offset, policy) not in advantages:
            raise TokenTraceError("no scored rollout")
        advantage = advantages[stored.offset, policy]
        samples += [(policy, sample) for sample in samples_of(part, advantage=advantage)]
    if not samples:
        raise TokenTraceError("no sampled tokens")
    return samples


def _policies(record: JsonObject) -> dict[str, JsonObject]:
    return policy_records(record) if "response" in record else {POLICY: record}


def _advantages(rollouts: Path) -> dict[tuple[int, str], float]:
    """The advantage of each policy of the record at each offset, among the rollouts of the task by the same policy."""
    groups: dict[tuple[Any, str], list[tuple[int, float]]] = defaultdict(list)
    for stored in read_rollouts(rollouts, warn=False):
        offset, record = stored.offset, stored.record
        index = task_index_of(record)
        task = prompt_digest(record) if index is None else index
        for policy, part in _policies(record).items():
            try:
                reward = reward_of(part)
            except RolloutError:
                continue
            groups[task, policy].append((offset, reward))
    return {
        (offset, policy): advantage
        for (_, policy), members in groups.items()
        for (offset, _), advantage in zip(members, group_advantages([reward for _, reward in members]), strict=True)
    }
