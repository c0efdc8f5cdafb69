"""Training data from scored rollouts: conversations to imitate (SFT), pairs of a better and a worse answer (DPO), and
token samples for reinforcement learning.

Every rollout is used, or dropped for one reason that is counted."""

import math
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, Self, TypeVar

import orjson
from pydantic import Field, ValidationError, model_validator

from nemo_gym.analysis.atif import trajectory_of
from nemo_gym.analysis.chat_messages import NotChatError, Reasoning, chat_messages, chat_tools
from nemo_gym.analysis.dataset_rows import StoredRollout, prompt_digest
from nemo_gym.common.atomic_files import atomic_write, check_writable, write_json
from nemo_gym.common.paths import find
from nemo_gym.common.statistics import PASS_THRESHOLD
from nemo_gym.config.keys import MASK_SAMPLE, TASK_INDEX_FIELD
from nemo_gym.config.types import CommandConfig
from nemo_gym.errors import GymError, RolloutError
from nemo_gym.llm_api.base import JsonObject
from nemo_gym.llm_api.stored_tokens import read_record
from nemo_gym.participants import ENVIRONMENT, HARNESS, POLICY, USER, policy_records
from nemo_gym.rollouts.store import StoredLine, StoredRolloutsError, export_path, read_rollouts
from nemo_gym.rollouts.types import REPEAT_INDEX_KEY_NAME, is_masked, task_index_of
from nemo_gym.training.samples import VIEWS, TrainingSample, group_advantages, reward_of, samples_of
from nemo_gym.training.token_file import StoredSegment, segments_of, token_restorer, write_tokens
from nemo_gym.training.token_traces import MALFORMED, TokenTraceError

T = TypeVar("T")
Advantages = dict[tuple[int, str], float]
"""Samples by the offset of their record and their policy."""


@dataclass(slots=True)
class ExportReport:
    """Counts of used and dropped rollouts. Every rollout that was read is one of the two."""

    read: int = 0
    used: int = 0
    examples: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    def as_json(self) -> JsonObject:
        return {
            "rollouts_read": self.read,
            "rollouts_used": self.used,
            "examples": self.examples,
            "dropped": dict(sorted(self.dropped.items())),
        }


def token_samples(rollouts: Path, trainer: str, report: ExportReport) -> Iterator[JsonObject]:
    """The lines for a trainer."""
    for stored, samples in _rollouts_with_tokens(rollouts, report, _samples):
        for policy, sample in samples:
            yield {
                TASK_INDEX_FIELD: task_index_of(stored.record),
                REPEAT_INDEX_KEY_NAME: stored.record.get(REPEAT_INDEX_KEY_NAME),
                "policy": policy,
                "segment": sample.segment,
                "advantage": sample.advantage,
                "sample": VIEWS[trainer].write(sample),
            }


def token_segments(rollouts: Path, report: ExportReport) -> Iterator[StoredSegment]:
    """The rows for a file of tokens."""
    for _, segments in _rollouts_with_tokens(rollouts, report, _segments):
        report.examples += len(segments)
        yield from segments


def trajectories(rollouts: Path, report: ExportReport) -> Iterator[JsonObject]:
    """The trajectories of scored rollouts."""
    restored = token_restorer(rollouts)
    for stored in read_rollouts(rollouts):
        report.read += 1
        try:
            StoredRollout.model_validate(stored.record)
            trajectory = trajectory_of(restored(stored.record))
        except ValidationError:
            report.dropped["no scored rollout"] += 1
        except NotChatError as error:
            report.dropped[f"not expressible in ATIF: {error}"] += 1
        except TokenTraceError as error:
            report.dropped[str(error)] += 1
        else:
            report.used += 1
            yield trajectory


def _rollouts_with_tokens(
    rollouts: Path, report: ExportReport, convert: "Callable[[StoredLine, Advantages], list[T]]"
) -> Iterator[tuple[StoredLine, list[T]]]:
    """Convert each rollout. The file is read twice: advantages need all rewards of a task."""
    advantages, restored = _advantages(rollouts), token_restorer(rollouts)
    for stored in read_rollouts(rollouts):
        report.read += 1
        try:
            converted = convert(stored._replace(record=restored(stored.record)), advantages)
        except TokenTraceError as error:
            report.dropped[str(error)] += 1
            continue
        except MALFORMED as error:
            report.dropped[f"not a record of a rollout ({error!r:.100})"] += 1
            continue
        report.used += 1
        yield stored, converted


def _segments(stored: StoredLine, advantages: Advantages) -> list[StoredSegment]:
    """Those that are samples, as in the views for trainers."""
    samples = {(policy, sample.segment): sample for policy, sample in _samples(stored, advantages)}
    return [
        replace(row, advantage=samples[row.policy, row.index].advantage)
        for row in segments_of(stored.record)
        if (row.policy, row.index) in samples
    ]


def _samples(stored: StoredLine, advantages: Advantages) -> list[tuple[str, TrainingSample]]:
    """The samples of every policy of a rollout, with its name."""
    if is_masked(stored.record):
        raise TokenTraceError(f"masked by its environment ({MASK_SAMPLE})")
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
    try:
        return policy_records(record)
    except MALFORMED:
        return {POLICY: record}


def _advantages(rollouts: Path) -> Advantages:
    """The advantage of each policy of the record at each offset, among the rollouts of the task by the same policy."""
    groups: dict[tuple[Any, str], list[tuple[int, float]]] = defaultdict(list)
    for stored in read_rollouts(rollouts, warn=False):
        offset, record = stored.offset, stored.record
        index = task_index_of(record)
        task = index if isinstance(index, int | str) else prompt_digest(record)
        for policy, part in _policies(record).items() if not is_masked(record) else ():
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


FILE_FORMATS = ("arrow", "parquet")
ROUNDING = 1e-9
"""Tolerance for floats: 0.7 - 0.2 is slightly less than 0.5."""


class ExportConfig(CommandConfig):
    """Convert scored rollouts to training data: SFT conversations, DPO pairs, or token samples for an RL trainer, one
    JSON object per line.

    How many rollouts were used and dropped, and why, is printed and written to `<output>_export.json`.
    """

    rollouts_jsonl_fpath: str
    """The output of `ng_collect_rollouts`."""

    output_jsonl_fpath: str
    """Output file for the training data."""

    format: Literal[
        "sft", "dpo", "nemo_rl", "verl", "skyrl", "slime", "trl", "tinker", "prime_rl", "areal", "arrow", "parquet",
        "atif",
    ] = "sft"  # fmt: skip
    """sft: `messages` and `tools`. dpo: `prompt`, `chosen`, `rejected` and `tools`, the best and worst of a task.
    arrow, parquet: one row with the tokens of each segment, as `+tokens_output` writes them, and the advantage.
    atif: each scored rollout as a trajectory of the Agent Trajectory Interchange Format. The others: a `sample` with
    token ids, loss mask and log-probs as that trainer takes it, and the `advantage` in the group of its task; one line
    for each segment of every scored rollout."""

    select: Literal["best", "all"] = "best"
    """For SFT: the best rollout of each task, or all of them."""

    min_reward: float | None = None
    """Minimum reward of a conversation or a chosen answer. The default is 1.0 for SFT, and no minimum for DPO."""

    min_gap: float = Field(default=0.5, gt=0)
    """For DPO: minimum difference between the rewards of the chosen and the rejected answer."""

    reasoning: Reasoning = "field"
    """Where to put reasoning: field (`reasoning_content`), think (in the text, between <think> tags) or drop."""

    include_incomplete: bool = False
    """Include rollouts that were cut off by a token or step limit before the model gave an answer."""

    overwrite: bool = False
    """Overwrite an existing output file."""

    @model_validator(mode="after")
    def _options_fit_the_format(self) -> Self:
        given = self.model_fields_set & {"select", "min_reward", "min_gap", "reasoning", "include_incomplete"}
        if self.format not in ("sft", "dpo") and given:
            raise ValueError(f"{sorted(given)[0]} is for sft and dpo; {self.format} takes every scored rollout")
        return self

    @property
    def least_reward(self) -> float | None:
        return PASS_THRESHOLD if self.min_reward is None and self.format == "sft" else self.min_reward


class DroppedError(GymError):
    """A rollout is dropped; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A rollout as chat messages."""

    prompt: list[JsonObject]
    answer: list[JsonObject]
    tools: JsonObject
    """Under the key `tools`, if there are any."""
    reward: float
    task: int | bytes
    """Shared by rollouts of the same row: its index or, if the record has none, the hash of the prompt."""

    @classmethod
    def of(cls, record: dict[str, Any], config: ExportConfig) -> "Conversation":
        """Read a record. Raises DroppedError with the reason if it cannot be used."""
        try:
            rollout = StoredRollout.model_validate(record)
        except ValidationError as error:
            raise DroppedError("no scored rollout") from error
        if is_masked(record):
            raise DroppedError("masked by the environment")
        try:
            prompt = chat_messages(_asked(_request(record)), reasoning=config.reasoning)
            answer = chat_messages(_until_last_policy_item(record["response"]["output"]), reasoning=config.reasoning)
        except NotChatError as error:
            raise DroppedError(f"not expressible in chat: {error}") from error
        is_final = bool(answer) and (_is_final(answer[-1]) or record["response"].get("ended_by") == HARNESS)
        is_whole = is_final and not rollout.response.is_cut_off
        if not answer or not (is_whole or config.include_incomplete):
            raise DroppedError("incomplete")
        index = task_index_of(record)
        task = rollout.responses_create_params.digest if index is None else index
        tools = chat_tools(_request(record).get("tools") or ())
        return cls(prompt, answer, {"tools": tools} if tools else {}, rollout.reward, task)

    def sft(self) -> JsonObject:
        return {"messages": [*self.prompt, *self.answer], **self.tools}

    def dpo(self, rejected: "Conversation") -> JsonObject:
        return {"prompt": self.prompt, "chosen": self.answer, "rejected": rejected.answer, **self.tools}


def _request(record: JsonObject) -> JsonObject:
    """Return the request to the model; of a harness, its own first request."""
    harness = record["response"].get("harness")
    sent = harness.get("request") if isinstance(harness, dict) else None
    request: JsonObject = record["responses_create_params"]
    return {**request, **sent} if isinstance(sent, dict) else request


def _asked(prompt: JsonObject) -> list[JsonObject]:
    instructions, asked = prompt.get("instructions"), prompt["input"]
    start = [{"role": "system", "content": instructions}] if instructions else []
    return [*start, *([{"role": "user", "content": asked}] if isinstance(asked, str) else asked)]


def _until_last_policy_item(output: list[JsonObject]) -> list[JsonObject]:
    """Return the main conversation up to the last item of the policy, without the threads of sub-agents."""
    items = [item for item in output if not item.get("thread")]
    while items and items[-1].get("produced_by") in (USER, ENVIRONMENT):
        items.pop()
    return items


def _is_final(message: JsonObject) -> bool:
    return message["role"] == "assistant" and bool(message["content"] or message.get("refusal"))


class Candidate(NamedTuple):
    """A rollout to choose from. Among equal rewards the first repeat wins, in any order of the file."""

    reward: float
    minus_repeat: int
    minus_offset: int


@dataclass(slots=True)
class _Task:
    best: Candidate
    worst: Candidate
    rollouts: int = 0

    def add(self, candidate: Candidate) -> None:
        self.best, self.worst = max(self.best, candidate), min(self.worst, candidate)
        self.rollouts += 1


def export_rollouts(config: ExportConfig) -> ExportReport:
    """Write the training data, whole or not at all."""
    rollouts, output = find(config.rollouts_jsonl_fpath, what="file of rollouts"), Path(config.output_jsonl_fpath)
    check_writable(output, overwrite=config.overwrite, sources=(rollouts,))
    report = ExportReport()
    if config.format in FILE_FORMATS:
        _export_tokens(rollouts, output, config, report)
        write_json(export_path(output), report.as_json())
        return report
    with atomic_write(output) as file:
        for example in _examples(rollouts, config, report):
            file.write(orjson.dumps(example) + b"\n")
            report.examples += 1
        if not report.examples:
            raise _nothing_to_export(rollouts, report)
    write_json(export_path(output), report.as_json())
    return report


def _export_tokens(rollouts: Path, output: Path, config: ExportConfig, report: ExportReport) -> None:
    with tempfile.TemporaryDirectory(dir=output.parent) as folder:
        written = Path(folder) / f"tokens.{config.format}"
        if not write_tokens(written, token_segments(rollouts, report)):
            raise _nothing_to_export(rollouts, report)
        written.replace(output)


def _nothing_to_export(rollouts: Path, report: ExportReport) -> StoredRolloutsError:
    reasons = ", ".join(f"{reason} ({count})" for reason, count in report.dropped.most_common())
    return StoredRolloutsError(
        f"None of the {report.read} rollouts in {rollouts} can be used. Dropped as: {reasons or 'nothing'}."
    )


def _examples(rollouts: Path, config: ExportConfig, report: ExportReport) -> Iterator[JsonObject]:
    if config.format in VIEWS:
        yield from token_samples(rollouts, config.format, report)
        return
    if config.format == "atif":
        yield from trajectories(rollouts, report)
        return
    usable, is_sft = _usable(rollouts, config, report), config.format == "sft"
    if is_sft and config.select == "all":
        for conversation, _ in usable:
            report.used += 1
            yield conversation.sft()
        return
    tasks: dict[int | bytes, _Task] = {}
    for conversation, candidate in usable:
        tasks.setdefault(conversation.task, _Task(candidate, candidate)).add(candidate)
    used, reason = (1, "not the best of its task") if is_sft else (2, "neither the best nor the worst of its task")
    with rollouts.open("rb") as file:
        for name in sorted(tasks, key=lambda name: name if isinstance(name, int) else math.inf):
            task = tasks[name]
            try:
                example = _read(file, task.best, config).sft() if is_sft else _pair(file, task, config)
            except DroppedError as error:
                report.dropped[str(error)] += task.rollouts
                continue
            report.used += used
            if task.rollouts > used:
                report.dropped[reason] += task.rollouts - used
            yield example


def _pair(file: IO[bytes], task: _Task, config: ExportConfig) -> JsonObject:
    """Return the best and the worst rollout of a task as a pair. Raises DroppedError if they are too close."""
    if task.rollouts == 1:
        raise DroppedError("the only rollout of its task")
    if config.least_reward is not None and task.best.reward < config.least_reward:
        raise DroppedError("reward too low")
    if task.best.reward - task.worst.reward < config.min_gap - ROUNDING:
        raise DroppedError("rewards too close")
    chosen, rejected = _read(file, task.best, config), _read(file, task.worst, config)
    if chosen.prompt != rejected.prompt:
        raise DroppedError("prompts differ within the task")
    return chosen.dpo(rejected)


def _read(file: IO[bytes], candidate: Candidate, config: ExportConfig) -> Conversation:
    file.seek(-candidate.minus_offset)
    return Conversation.of(read_record(file.readline()), config)


def _usable(rollouts: Path, config: ExportConfig, report: ExportReport) -> Iterator[tuple[Conversation, Candidate]]:
    """Yield the rollouts that can be used. For pairs, low rewards are usable too."""
    least = config.least_reward if config.format == "sft" else None
    for stored in read_rollouts(rollouts):
        report.read += 1
        try:
            conversation = Conversation.of(stored.record, config)
            if least is not None and conversation.reward < least:
                raise DroppedError("reward too low")
        except DroppedError as reason:
            report.dropped[str(reason)] += 1
        else:
            repeat = stored.record.get(REPEAT_INDEX_KEY_NAME, 0)
            yield conversation, Candidate(conversation.reward, -repeat, -stored.offset)
