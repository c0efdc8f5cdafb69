"""Prepare datasets for training: find them, check every row, measure them, and collate them.

The steps of `ng_prepare_data`, in order. Nothing is collated while a row of any dataset is bad or its statistics
contradict those that are saved beside it.
"""

import importlib.util
import json
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal, NamedTuple

import orjson
from pydantic import Field

from nemo_gym.common import event_loop
from nemo_gym.common.atomic_files import atomic_write, concatenate, make_folder
from nemo_gym.common.paths import search_roots
from nemo_gym.compute.pool import available_cores
from nemo_gym.config.command_options import CommandConfig
from nemo_gym.config.types import DatasetType
from nemo_gym.data.digests import Spill
from nemo_gym.data.metrics import (
    Counted,
    Duplicates,
    conflict_message,
    dataset_description,
    differences,
    metrics_of,
    nearly_repeated_rows,
    nearly_shared_rows,
    offending_message,
    repeated_rows,
    shared_rows,
)
from nemo_gym.data.row_check import AGENT_REF_KEY, EnvironmentCode, row_validator
from nemo_gym.data.scan import (
    BLOCK_BYTES,
    MAX_ROW_BYTES,
    TOKENS,
    FileStatistics,
    ScanOptions,
    can_count_tokens,
    extent_of,
    lines_of,
    scan,
)
from nemo_gym.data.scope import AgentDataset, DatasetScope, datasets_in_scope, file_beside
from nemo_gym.errors import ConfigError, GymError, StartupError
from nemo_gym.llm_api.base import JsonObject

if TYPE_CHECKING:
    from omegaconf import DictConfig

Progress = Callable[[int], None]


def write_prepared(
    statistics: FileStatistics,
    output: Path,
    agent: str,
    *,
    num_repeats: int,
    max_row_bytes: int,
    on_progress: Progress,
) -> None:
    """The valid rows of a dataset, each `num_repeats` times in a row and with its `agent_ref` as the last key.

    A row is copied byte for byte, so numbers and texts stay as they were written.
    """
    reference = {"type": "responses_api_agents", "name": agent}
    ending = b', "%s": %s}\n' % (AGENT_REF_KEY.encode(), orjson.dumps(reference))
    with statistics.extent.path.open("rb") as source, atomic_write(output) as file:
        if statistics.is_plain and num_repeats == 1:
            parts = _plain_parts(source, statistics, ending)
        else:
            parts = _parts(source, statistics, ending, num_repeats, max_row_bytes)
        for part, read in parts:
            file.write(part)
            on_progress(read)


def _plain_parts(source: IO[bytes], statistics: FileStatistics, ending: bytes) -> Iterator[tuple[bytes, int]]:
    """Of a file in which every line is a row: all but the closing brace, and the ending."""
    source.seek(statistics.extent.start)
    left, carried = statistics.extent.end - statistics.extent.start, b""
    while left and (block := source.read(min(left, BLOCK_BYTES))):
        left -= len(block)
        *rows, carried = (carried + block).split(b"\n")
        parts = [row[:-1] for row in rows if row]
        yield ending.join((*parts, b"")), len(block)
    if carried:
        yield carried[:-1] + ending, 0


def _parts(
    source: IO[bytes], statistics: FileStatistics, ending: bytes, num_repeats: int, max_row_bytes: int
) -> Iterator[tuple[bytes, int]]:
    extent = statistics.extent
    bad = {index for places in statistics.bad.values() for index in places}
    index = extent.first_row
    for _, line in lines_of(source, extent.start, extent.end, max_row_bytes=max_row_bytes):
        row = line if line is None else line.strip()
        length = 0 if line is None else len(line) + 1
        if row == b"":
            yield b"", length
            continue
        if row is not None and index not in bad:
            yield _with_agent(row, ending) * num_repeats, length
        index += 1


def _with_agent(row: bytes, ending: bytes) -> bytes:
    if AGENT_REF_KEY.encode() in row:
        values = orjson.loads(row)
        if values.pop(AGENT_REF_KEY, None) is not None:
            row = orjson.dumps(values)
    return row[:-1].rstrip() + ending


logger = logging.getLogger(__name__)

CHECK_NEAR_DUPLICATES_BELOW_BYTES = 64 * 2**20
"""Looking for nearly equal prompts costs several times as much as all else, so it is not done with large data."""


class TrainDataProcessorConfig(CommandConfig):
    """Check the datasets of a configuration, print and save their statistics, and collate them for training.

    Examples:

    ```bash
    config_paths="resources_servers/example_multi_step/configs/example_multi_step.yaml,\\
    responses_api_models/openai_model/configs/openai_model.yaml"
    ng_prepare_data "+config_paths=[$config_paths]" \\
        +output_dirpath=data/example_multi_step \\
        +mode=example_validation
    ```
    """

    output_dirpath: str
    """The folder for the collated files and their statistics."""

    mode: Literal["train_preparation", "example_validation"]
    """train_preparation: the train, validation and benchmark datasets. example_validation: the example datasets."""

    should_download: bool = False
    """Download the datasets that are not on disk."""

    data_source: Literal["huggingface", "gitlab"] = "huggingface"
    """Where to download from: huggingface or gitlab."""

    drop_offending: bool = False
    """Leave out the rows that are not valid instead of refusing the data."""

    overwrite_metrics_conflicts: bool = False
    """Replace saved statistics that contradict the data."""

    count_tokens: bool | None = None
    """Count OpenAI tokens. By default if the tokenizer is installed (pip install 'nemo-gym[data]')."""

    near_duplicates: bool | None = None
    """Look for nearly equal prompts, too. By default if the data is not large (below 64 MB)."""

    num_processes: int | None = Field(default=None, ge=1)
    """How many processes check rows. By default one for each core. The result is always the same."""

    max_row_mb: int = Field(default=MAX_ROW_BYTES // 2**20, ge=1)
    """The longest line that is taken as a row, in megabytes."""

    @property
    def in_scope_dataset_types(self) -> list[DatasetType]:
        return ["train", "validation", "benchmark"] if self.mode == "train_preparation" else ["example"]


class MissingDatasetsError(ConfigError, AssertionError):
    """Datasets that are needed are not on disk."""


class OffendingRowsError(GymError):
    """Datasets have rows that are not valid, or none at all."""


class MetricsConflictError(GymError, ValueError):
    """Saved statistics contradict the data."""


class DataChangedError(GymError):
    """A file changed while it was being prepared."""


@dataclass(slots=True)
class CheckedDataset:
    """A dataset after the scan."""

    source: AgentDataset
    statistics: FileStatistics
    metrics: JsonObject
    conflicts: list[str] = field(default_factory=list)
    stamp: tuple[int, int] = (0, 0)

    @property
    def counted(self) -> Counted:
        return Counted(self.statistics, self.source.dataset.num_repeats)

    @property
    def offending_example_idxs(self) -> list[int]:
        """Bad rows by index, counted as often as they are repeated."""
        repeats = self.source.dataset.num_repeats
        rows = sorted(index for places in self.statistics.bad.values() for index in places)
        return [index * repeats + repeat for index in rows for repeat in range(repeats)]


class Collated(NamedTuple):
    """What was written for one type of dataset."""

    type: DatasetType
    path: Path
    metrics: JsonObject
    metrics_path: Path


class DuplicateReport(NamedTuple):
    """Rows that occur more than once, within a type of dataset or between train and validation."""

    where: str
    exact: Duplicates
    near: Duplicates | None


def _no_progress(_read: int) -> None:
    return None


class TrainDataProcessor:
    """The steps, in the order in which they are called. Use it as a context manager."""

    def __init__(self, config: TrainDataProcessorConfig, *, on_progress: Progress = _no_progress) -> None:
        self.config, self._on_progress = config, on_progress
        self._output = Path(config.output_dirpath)
        self._spill = Spill()

    def __enter__(self) -> "TrainDataProcessor":
        return self

    def __exit__(self, *_error: object) -> None:
        self._spill.__exit__(None, None, None)

    def load_and_validate_server_instance_configs(self, global_config: "DictConfig") -> DatasetScope:
        """The datasets in scope, by agent in the order of the configuration."""
        return datasets_in_scope(global_config, self.config.in_scope_dataset_types)

    def load_datasets(self, datasets: Sequence[AgentDataset], global_config: "DictConfig") -> None:
        """Make sure that every dataset is on disk, by download if that is asked for."""
        if self.config.should_download and self.config.mode == "train_preparation":
            from nemo_gym.data.scope import fetch_missing

            wanted = [each for each in datasets if each.dataset.prepare_script is None]
            fetch_missing(wanted, self.config.data_source, global_config, logger.info)
        self.check_datasets_are_on_disk(datasets)
        for each in datasets:
            each.fill_in_prompt()

    def check_datasets_are_on_disk(self, datasets: Sequence[AgentDataset]) -> None:
        """Refuse to go on if a dataset is missing, before any work is done."""
        missing = [each for each in datasets if not each.is_on_disk]
        if not missing:
            return
        listed = "\n".join(f"- {each.dataset.jsonl_fpath} ({each.agent}, {each.dataset.name})" for each in missing)
        if any(each.dataset.prepare_script for each in missing):
            listed += "\nWrite the rows of benchmarks with `ng_prepare_benchmark` and the same config_paths."
        if self.config.mode == "example_validation":
            raise MissingDatasetsError(f"You must provide the above missing example jsonl files!\n{listed}")
        if not self.config.should_download:
            raise MissingDatasetsError(
                "Missing local datasets. You must provide local datasets since download is disabled. "
                f"Run with `+should_download=true` to enable downloading.\n{listed}"
            )
        raise MissingDatasetsError(f"Datasets are still missing after the download:\n{listed}")

    def validate_samples_and_aggregate_metrics(self, datasets: Sequence[AgentDataset]) -> list[CheckedDataset]:
        """Check and measure every row, and compare the statistics with those that are saved. Writes nothing."""
        make_folder(self._output)
        self._spill = Spill(self._output)
        stamps = [_stamp(each.path) for each in datasets]
        extents = [
            replace(
                extent_of(each.path, each.dataset.start_idx, each.dataset.end_idx),
                environment=_importable(each.environment),
            )
            for each in datasets
        ]
        options = self._scan_options(datasets)
        found = event_loop.run_embedded(scan(extents, options, self._spill, on_progress=self._on_progress))
        checked = [
            CheckedDataset(source, statistics, {}, stamp=stamp)
            for source, statistics, stamp in zip(datasets, found, stamps, strict=True)
        ]
        for each in checked:
            each.metrics = dataset_description(each.source.dataset) | metrics_of([each.counted])
            each.conflicts = self._conflicts(each.source.beside("_metrics.json"), each.metrics)
        return checked

    def _scan_options(self, datasets: Sequence[AgentDataset]) -> ScanOptions:
        size = sum(each.path.stat().st_size for each in datasets)
        near, tokens = self.config.near_duplicates, self.config.count_tokens
        return ScanOptions(
            num_processes=self.config.num_processes or available_cores(),
            count_tokens=can_count_tokens() if tokens is None else tokens,
            find_near_duplicates=size < CHECK_NEAR_DUPLICATES_BELOW_BYTES if near is None else near,
            max_row_bytes=self.config.max_row_mb * 2**20,
        )

    def _conflicts(self, path: Path, metrics: JsonObject) -> list[str]:
        if not path.is_file() or self.config.overwrite_metrics_conflicts:
            return []
        try:
            saved = orjson.loads(path.read_bytes())
        except ValueError as error:
            return [f"not JSON: {error}"]
        return differences(saved, metrics, ignored=() if TOKENS in metrics else (TOKENS,))

    def find_duplicates(self, checked: Sequence[CheckedDataset]) -> list[DuplicateReport]:
        """Equal and nearly equal rows within each type of dataset, and between train and validation."""
        by_type = {kind: [each.statistics for each in of_type] for kind, of_type in self._by_type(checked).items()}
        reports = [
            DuplicateReport(kind, repeated_rows(files), self._near(files, files)) for kind, files in by_type.items()
        ]
        if {"train", "validation"} <= by_type.keys():
            train, validation = by_type["train"], by_type["validation"]
            shared = shared_rows(train, validation)
            reports.append(DuplicateReport("validation and train", shared, self._near(train, validation)))
        return reports

    def _near(self, earlier: list[FileStatistics], later: list[FileStatistics]) -> Duplicates | None:
        if not any(each.near.count for each in (*earlier, *later)):
            return None
        if earlier is later:
            return nearly_repeated_rows(earlier)
        return nearly_shared_rows(earlier, later)

    def save_metrics(self, checked: Sequence[CheckedDataset]) -> None:
        """Save the statistics beside each dataset; where they contradict saved ones, beside those, and refuse."""
        refused = [each for each in checked if not each.statistics.rows]
        refused += [each for each in checked if each.statistics.bad and not self.config.drop_offending]
        if refused:
            raise OffendingRowsError(offending_message([each.statistics for each in refused]))
        for each in checked:
            _write_metrics(each.source.beside("_metrics.json"), each.metrics, has_conflict=bool(each.conflicts))
        conflicts = [(each.source.beside("_metrics.json"), each.conflicts) for each in checked if each.conflicts]
        if conflicts:
            raise MetricsConflictError(conflict_message(conflicts))

    def collate_samples(self, checked: Sequence[CheckedDataset]) -> list[Collated]:
        """Write the prepared rows beside each dataset, and of each type one file with all of them."""
        by_type = self._by_type(checked)
        results = [self._final_metrics(kind, of_type) for kind, of_type in by_type.items()]
        conflicts = [(each.metrics_path, self._conflicts(each.metrics_path, each.metrics)) for each in results]
        conflicts = [(path, found) for path, found in conflicts if found]
        for each in results:
            has_conflict = any(path == each.metrics_path for path, _ in conflicts)
            _write_metrics(each.metrics_path, each.metrics, has_conflict=has_conflict)
            if not conflicts:
                self._write_rows(by_type[each.type], each.path)
        if conflicts:
            raise MetricsConflictError(conflict_message(conflicts))
        return results

    def _final_metrics(self, kind: DatasetType, of_type: Sequence[CheckedDataset]) -> Collated:
        path = self._output / f"{kind}.jsonl"
        return Collated(kind, path, metrics_of([each.counted for each in of_type]), file_beside(path, "_metrics.json"))

    def _write_rows(self, of_type: Sequence[CheckedDataset], output: Path) -> None:
        for each in of_type:
            if _stamp(each.source.path) != each.stamp:
                raise DataChangedError(f"{each.source.path} changed while it was being prepared. Start again.")
            write_prepared(
                each.statistics,
                each.source.beside("_prepare.jsonl"),
                each.source.agent,
                num_repeats=each.source.dataset.num_repeats,
                max_row_bytes=self.config.max_row_mb * 2**20,
                on_progress=self._on_progress,
            )
        concatenate([each.source.beside("_prepare.jsonl") for each in of_type], output)

    def _by_type(self, checked: Sequence[CheckedDataset]) -> dict[DatasetType, list[CheckedDataset]]:
        kinds = {kind: [each for each in checked if each.source.type == kind] for kind in self._types}
        return {kind: of_type for kind, of_type in kinds.items() if of_type}

    @property
    def _types(self) -> list[DatasetType]:
        return self.config.in_scope_dataset_types


def _importable(environment: EnvironmentCode | None) -> EnvironmentCode | None:
    """The environment, if its rules can be asked here: one with other requirements runs in a process of its own."""
    if environment is None:
        return None
    try:
        row_validator(environment)
    except (StartupError, ConfigError) as error:
        logger.warning(
            "rows are not checked by the rules of '%s', as its code cannot be imported: %s", environment.name, error
        )
        return None
    return environment


def _stamp(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def _write_metrics(path: Path, metrics: JsonObject, *, has_conflict: bool) -> None:
    conflict = file_beside(path, "_conflict.json")
    with atomic_write(conflict if has_conflict else path) as file:
        file.write(_indented(metrics))
    if not has_conflict:
        conflict.unlink(missing_ok=True)


def _indented(metrics: JsonObject) -> bytes:
    """By four spaces, as such files have always been."""
    return json.dumps(metrics, indent=4).encode()


RESULT = "prepared: "


def run_script(script: Path, arguments: dict[str, object]) -> Path:
    """What `prepare(**arguments)` of a script returns."""
    sys.path[:0] = [str(script.parent), *map(str, search_roots())]
    spec = importlib.util.spec_from_file_location("prepare_script", script)
    if spec is None or spec.loader is None:
        raise ImportError(f"{script} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return Path(module.prepare(**arguments))


if __name__ == "__main__":
    sys.stdout.write(f"{RESULT}{run_script(Path(sys.argv[1]), json.loads(sys.argv[2])).absolute()}\n")
