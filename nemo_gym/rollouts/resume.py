"""What a run finds in its output: which rollouts are done, and whether they were made the same way."""

import contextlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from nemo_gym.common.words import count_of
from nemo_gym.errors import ConfigError
from nemo_gym.llm_api.prompts import load_prompt_config
from nemo_gym.rollouts.config import RolloutCollectionConfig
from nemo_gym.rollouts.dataset import DatasetFingerprint
from nemo_gym.rollouts.manifest import make_manifest, question, read_manifest, write_manifest
from nemo_gym.rollouts.metrics import RunningMetrics
from nemo_gym.rollouts.output_files import archive_paths, manifest_path
from nemo_gym.rollouts.store import CompletedIndex, JsonlFile, RolloutStore
from nemo_gym.rollouts.stored_records import RepeatedLines

logger = logging.getLogger(__name__)


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
