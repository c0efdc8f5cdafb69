"""Training samples for a trainer from stored rollouts: one line per segment, with the advantage in its group."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nemo_gym.analysis.export_report import ExportReport
from nemo_gym.analysis.records import prompt_digest, read_records
from nemo_gym.analysis.trainer_views import VIEWS
from nemo_gym.analysis.training_samples import TrainingSample, group_advantages, reward_of, samples_of
from nemo_gym.config.keys import TASK_INDEX_FIELD
from nemo_gym.errors import RolloutError
from nemo_gym.llm_api.base import JsonObject
from nemo_gym.rollouts.token_traces import TokenTraceError
from nemo_gym.rollouts.types import REPEAT_INDEX_KEY_NAME, task_index_of


def token_samples(rollouts: Path, trainer: str, report: ExportReport) -> Iterator[JsonObject]:
    """The lines for a trainer. The file is read twice: advantages need the rewards of all rollouts of a task."""
    advantages = _advantages_by_offset(rollouts)
    for stored in read_records(rollouts):
        report.read += 1
        try:
            samples = _samples(stored.record, advantages.get(stored.offset))
        except TokenTraceError as error:
            report.dropped[str(error)] += 1
            continue
        report.used += 1
        for sample in samples:
            yield {
                TASK_INDEX_FIELD: task_index_of(stored.record),
                REPEAT_INDEX_KEY_NAME: stored.record.get(REPEAT_INDEX_KEY_NAME),
                "segment": sample.segment,
                "advantage": sample.advantage,
                "sample": VIEWS[trainer].write(sample),
            }


def _samples(record: dict[str, Any], advantage: float | None) -> list[TrainingSample]:
    if advantage is None:
        raise TokenTraceError("no scored rollout")
    samples = samples_of(record, advantage=advantage)
    if not samples:
        raise TokenTraceError("no sampled tokens")
    return samples


def _advantages_by_offset(rollouts: Path) -> dict[int, float]:
    tasks: dict[Any, list[tuple[int, float]]] = defaultdict(list)
    for offset, _, record in read_records(rollouts):
        try:
            reward = reward_of(record)
        except RolloutError:
            continue
        index = task_index_of(record)
        tasks[prompt_digest(record) if index is None else index].append((offset, reward))
    return {
        offset: advantage
        for members in tasks.values()
        for (offset, _), advantage in zip(members, group_advantages([reward for _, reward in members]), strict=True)
    }
