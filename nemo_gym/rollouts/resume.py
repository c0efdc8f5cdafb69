"""What a run finds in its output: which rollouts are done, and whether they were made the same way.

The manifest beside an output has the input, configuration and code that its rollouts were made with. A resumed run
compares it with its own, so that rollouts of two kinds do not mix unnoticed. The code is that of the servers' folders,
and the files that their configuration names."""

import contextlib
import logging
import platform
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel, Field

from nemo_gym import __version__
from nemo_gym.common.atomic_files import write_json
from nemo_gym.common.words import count_of, indented_list
from nemo_gym.config.command_line import shown_arguments
from nemo_gym.config.fingerprint import describe_file_changes, hash_server_files
from nemo_gym.config.keys import VOLATILE_KEYS, blocks_in, dotted, leaves
from nemo_gym.config.secrets import masked
from nemo_gym.errors import ConfigError
from nemo_gym.llm_api.prompts import load_prompt_config
from nemo_gym.rollouts.config import RolloutCollectionConfig
from nemo_gym.rollouts.dataset import DatasetFingerprint
from nemo_gym.rollouts.metrics import RunningMetrics
from nemo_gym.rollouts.store import (
    CompletedIndex,
    JsonlFile,
    RepeatedLines,
    RolloutStore,
    archive_paths,
    manifest_path,
)

logger = logging.getLogger(__name__)


class InputFile(BaseModel):
    path: str
    sha256: str
    rows: int | None = None
    """None in older manifests."""

    def __str__(self) -> str:
        return f"{self.path} ({count_of(self.rows, 'row')})" if self.rows else self.path


class Manifest(BaseModel):
    """What a run was made with."""

    input: InputFile
    options: dict[str, Any]
    """Options of the command that change the records."""
    servers: dict[str, Any]
    """The configuration of the servers, without secrets."""
    files: dict[str, str] | None = None
    """Hashes of the servers' code and of the files that their configuration names. None in older manifests."""
    command: list[str] = Field(default_factory=list)
    versions: dict[str, str] = Field(default_factory=dict)
    created_at: float = 0.0

    def changes_to(self, now: "Manifest") -> list[str]:
        """What is different now, a line each."""
        is_same = self.input.sha256 == now.input.sha256
        lines = [] if is_same else [f"the dataset: {self.input} before, {now.input} with other rows now"]
        lines += [*_differences(self.options, now.options), *_differences(self.servers, now.servers)]
        if self.files is not None and now.files is not None:
            lines += describe_file_changes(self.files, now.files)
        return lines


def make_manifest(
    input_path: Path, *, sha256: str, rows: int, options: dict[str, Any], settings: Mapping[str, Any]
) -> Manifest:
    """The manifest of a run that is about to start, without secrets."""
    names = {block.name for block in blocks_in(settings)}
    return Manifest(
        input=InputFile(path=str(input_path), sha256=sha256, rows=rows),
        options=options,
        servers={name: block for name, block in masked(settings).items() if name in names},
        files=hash_server_files(settings) if settings else None,
        command=[Path(sys.argv[0]).name, *shown_arguments(sys.argv[1:])],
        versions={"nemo_gym": __version__, "python": platform.python_version()},
        created_at=round(time.time(), 3),
    )


def read_manifest(output: Path) -> Manifest | None:
    """The manifest of an output, if it has one."""
    path = manifest_path(output)
    if not path.exists():
        return None
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except ValueError as error:
        raise ConfigError(f"{path} cannot be read: {error}. Move it and {output} away to start again.") from error


def write_manifest(output: Path, manifest: Manifest) -> None:
    """Write the manifest atomically."""
    write_json(manifest_path(output), manifest.model_dump(mode="json"))


def question(output: Path, changes: list[str]) -> ConfigError:
    """The error that asks the user what to do about a change."""
    return ConfigError(
        f"{output} contains rollouts from a different input or configuration:\n{indented_list(changes)}\n"
        "Choose what to do: +resume=continue keeps them and makes the missing rollouts with the new configuration, "
        "+resume=restart moves them aside and starts from the beginning. Or give another output_jsonl_fpath."
    )


def _differences(before: Any, now: Any) -> Iterator[str]:
    values, new_values = dict(leaves(before)), dict(leaves(now))
    for path in dict.fromkeys([*values, *new_values]):
        pair = values.get(path), new_values.get(path)
        if pair[0] != pair[1] and VOLATILE_KEYS.isdisjoint(path):
            old, new = ("not set" if each is None else repr(each) for each in pair)
            yield f"{dotted(path)}: {old} before, {new} now"


def archive_output(output: Path) -> None:
    """Rename the files of an earlier run, so that nothing of them is lost. Not while that run still writes."""
    with contextlib.closing(JsonlFile(output)) if output.exists() else contextlib.nullcontext():
        for path, archived in archive_paths(output):
            path.rename(archived)


def load_completed(
    store: RolloutStore,
    dataset: DatasetFingerprint,
    *,
    dataset_path: Path,
    config: RolloutCollectionConfig,
    settings: Mapping[str, Any],
    metrics: RunningMetrics,
) -> CompletedIndex:
    """The rollouts in the output, counted in `metrics`. If they were made another way, raises the question what to do,
    unless `config` answers it."""
    options = config.model_dump(include={"agent_name", "responses_create_params", "seed_per_repeat"})
    if config.num_repeats_add_seed:
        options["num_repeats_add_seed"] = True
    if config.prompt_config is not None:
        options["prompt"] = load_prompt_config(config.prompt_config).model_dump()
    now = make_manifest(dataset_path, sha256=dataset.sha256, rows=dataset.rows, options=options, settings=settings)
    before = read_manifest(store.output)
    changes = [] if before is None or store.is_empty else before.changes_to(now)
    if before is None and not store.is_empty:
        changes = [f"{manifest_path(store.output).name}, which records how they were made, is missing"]
    if changes and config.resume == "ask":
        raise question(store.output, changes)
    by_content = bool(changes) or not _rows_are_in_place(store, dataset)
    completed = CompletedIndex(num_repeats=config.max_repeats, by_content=by_content)
    repeated = RepeatedLines()
    for number, row in enumerate(store.ids(), 1):
        if not completed.add(row):
            repeated.add(number)
        metrics.num_repeats = max(metrics.num_repeats or 1, row.repeat_index + 1)  # an earlier run may have had more
    if before is None and completed.count == 0 and not store.is_empty:
        raise store.not_a_record(1)
    if before is None or changes or completed.count == 0:
        write_manifest(store.output, now)
    if completed.count:
        logger.info("found %s in %s", count_of(completed.count, "rollout"), store.output)
        repeated.warn(store.output)
        _count_records(store, metrics, repeated)
    return completed


def _count_records(store: RolloutStore, metrics: RunningMetrics, repeated: RepeatedLines) -> None:
    for number, line in enumerate(store.records(), 1):
        if number in repeated:
            continue
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise ConfigError(
                f"{store.output}, line {number} is damaged: {error}. Remove the line to make its rollout again."
            ) from error
        metrics.add(record)


def _rows_are_in_place(store: RolloutStore, dataset: DatasetFingerprint) -> bool:
    """True if every record's row hash matches the dataset row at its index. After `continue` with another input some
    do not, and no manifest says so."""
    hashes = dataset.row_hashes
    return all(row.task_index < len(hashes) and hashes[row.task_index] == int(row.row_hash, 16) for row in store.ids())
