"""Make datasets: check and collate them, convert others, generate them, fill in prompts, prepare benchmarks,
and publish them on hubs."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from pydantic import Field

from nemo_gym.cli.collect import datasets_of
from nemo_gym.cli.command import FAILED, command, config_command, merged_config, print_result
from nemo_gym.cli.environments import find_folder
from nemo_gym.common.paths import EXTRA_ROOTS_ENV_VAR, PARENT_DIR, find, search_roots
from nemo_gym.common.words import count_of
from nemo_gym.compat.global_config import GlobalConfigDictParserConfig
from nemo_gym.config.command_options import CommandConfig
from nemo_gym.config.types import DatasetConfig
from nemo_gym.data.generate import GenerateDataConfig
from nemo_gym.data.generate import generate_data as generate_files
from nemo_gym.data.hubs import gitlab, hugging_face, pypi
from nemo_gym.data.hubs.gitlab import (
    DeleteJsonlDatasetGitlabConfig,
    DownloadJsonlDatasetGitlabConfig,
    MLFlowConfig,
    UploadJsonlDatasetGitlabConfig,
)
from nemo_gym.data.hubs.hugging_face import (
    DownloadJsonlDatasetHuggingFaceConfig,
    UploadJsonlDatasetHuggingFaceConfig,
    UploadJsonlDatasetHuggingFaceMaybeDeleteConfig,
    folder_in,
)
from nemo_gym.data.import_rows import ImportConfig, import_rows
from nemo_gym.data.metrics import number_ranges, offending_lines
from nemo_gym.data.prepare import (
    RESULT,
    AgentDataset,
    CheckedDataset,
    Collated,
    DatasetScope,
    DuplicateReport,
    Progress,
    TrainDataProcessor,
    TrainDataProcessorConfig,
)
from nemo_gym.data.prepare import materialize_prompts as render
from nemo_gym.errors import ConfigError, GymError
from nemo_gym.runtime.requirements import VenvSettings, python_for

_WIDTH = 100


@config_command(
    TrainDataProcessorConfig, checked=False, initial=GlobalConfigDictParserConfig.NO_MODEL_GLOBAL_CONFIG_DICT
)
def prepare_data(options: TrainDataProcessorConfig, config: DictConfig) -> None:
    """Check datasets, print and save their statistics, and collate them for training."""
    with _progress_bar() as on_progress, TrainDataProcessor(options, on_progress=on_progress) as processor:
        _title("Load and validate server instance configs")
        scope = processor.load_and_validate_server_instance_configs(config)
        _show_scope(scope)
        _title("Load datasets")
        _show_found(scope.datasets)
        processor.load_datasets(scope.datasets, config)
        _title("Validate samples and aggregate metrics")
        checked = processor.validate_samples_and_aggregate_metrics(scope.datasets)
        _show_checked(checked, is_dropping=options.drop_offending)
        _show_duplicates(processor.find_duplicates(checked))
        processor.save_metrics(checked)
        _title("Collate samples and aggregate metrics")
        _show_collated(processor.collate_samples(checked))


def _title(text: str) -> None:
    line = "#" * _WIDTH
    print(f"\n{line}\n#{'':{_WIDTH - 2}}#\n#{text:^{_WIDTH - 2}}#\n#{'':{_WIDTH - 2}}#\n{line}\n", flush=True)


@contextmanager
def _progress_bar() -> Iterator[Progress]:
    """On a terminal, how many bytes were read so far."""
    if not sys.stderr.isatty():
        yield lambda _read: None
        return
    from tqdm import tqdm

    with tqdm(desc="Reading", unit="B", unit_scale=True, dynamic_ncols=True) as bar:

        def advance(read: int) -> None:
            bar.update(read)

        yield advance


def _show_scope(scope: DatasetScope) -> None:
    print(f"Found {len(scope.servers)} server instance configs:")
    for server in scope.servers:
        print(f"- {server.name} ({server.SERVER_TYPE}/{server.implementation})")
    if scope.agents_without_datasets:
        print(f"Agents without datasets: {', '.join(scope.agents_without_datasets)}")
    print(f"Found {len(scope.datasets)} datasets in scope:")
    for each in scope.datasets:
        print(f"- {each.agent}: {each.dataset.name} ({each.type})")


def _show_found(datasets: Sequence[AgentDataset]) -> None:
    for state, wanted in (("FOUND", True), ("MISSING", False)):
        listed = [each.dataset.jsonl_fpath for each in datasets if each.is_on_disk is wanted]
        print(f"{state}: {len(listed)}")
        for path in listed:
            print(f"- {path}")
    sys.stdout.flush()


def _show_checked(checked: Sequence[CheckedDataset], *, is_dropping: bool) -> None:
    for each in checked:
        print(f"Aggregate metrics for {each.source.path}")
        print(json.dumps(each.metrics, indent=4))
        for line in offending_lines(each.statistics) if is_dropping else ():
            print(f"Left out: {line}", file=sys.stderr)


def _show_duplicates(reports: Sequence[DuplicateReport]) -> None:
    for report in reports:
        between = f"in {report.where}" if report.where in ("train", "validation", "example") else report.where
        found = [("equal rows", report.exact)]
        found += [("nearly equal prompts", report.near)] if report.near is not None else []
        for what, duplicates in found:
            if duplicates.count:
                at_least = "at least " if duplicates.is_lower_bound else ""
                print(f"Duplicates, {between}: {at_least}{duplicates.count} {what}")
                for first, again in duplicates.examples:
                    print(f"- {again} repeats {first}")
        if report.near is None:
            print(f"Nearly equal prompts {between}: not looked for in so much data (+near_duplicates=true does)")


def _show_collated(results: Sequence[Collated]) -> None:
    for each in results:
        print(f"Final aggregate metrics for {each.type}, saved in {each.metrics_path}")
        print(json.dumps(each.metrics, indent=4))
    print("View your final data!")
    for each in results:
        print(f"- {each.type}: {each.path}")


@command(ImportConfig)
def import_dataset(config: ImportConfig) -> None:
    """Turn another dataset into rows, and say what was dropped."""
    report = import_rows(config)
    lines = [
        f"{count_of(report.rows, 'row')} in {config.output_jsonl_fpath}, from {count_of(report.read, 'record')}",
        *(
            f"{count:>8} dropped: {reason} ({_records(report.dropped[reason])})"
            for reason, count in report.counts.most_common()
        ),
    ]
    print_result({"rows": report.rows, "records": report.read, "dropped": dict(report.counts)}, "\n".join(lines))


def _records(indices: list[int]) -> str:
    return number_ranges([index + 1 for index in indices], "record", most=5)


@command(GenerateDataConfig)
def generate_data(config: GenerateDataConfig) -> None:
    """Make train and validation data for an environment from a seed."""
    made = generate_files(config, find_folder(config.entrypoint))
    lines = [f"{count_of(file.rows, 'row')} in {file.path}" for file in made.files]
    lines.append(f"The verifier gave {made.verified} gold responses the full reward.")
    files = [{"path": str(file.path), "rows": file.rows} for file in made.files]
    print_result({"files": files, "verified": made.verified}, "\n".join(lines))


class UpdateReadmeConfig(CommandConfig):
    """Update the tables of environments in the README from their configurations."""

    readme_fpath: str = "README.md"
    """The README. The tables go between its START_..._TABLE and END_..._TABLE comments."""

    check: bool = False
    """Change nothing; the exit code is 1 if the tables are not up to date."""


@command(UpdateReadmeConfig)
def update_readme(config: UpdateReadmeConfig) -> int:
    """Update the tables of environments in the README."""
    from nemo_gym.data.readme_tables import update_readme as update
    from nemo_gym.data.readme_tables import updated_readme

    path = find(config.readme_fpath)
    if config.check:
        is_current = updated_readme(path.read_text(), PARENT_DIR) == path.read_text()
        print(f"{path}: the tables are {'up to date' if is_current else 'not up to date; run ng_update_readme'}")
        return 0 if is_current else FAILED
    print(f"{path}: {'updated' if update(path, PARENT_DIR) else 'was up to date'}")
    return 0


class MaterializePromptsConfig(CommandConfig):
    """Fill a prompt file in with the fields of every row."""

    input_jsonl_fpath: str
    """Rows without an `input`."""

    prompt_config: str
    """YAML with `user` and, if wanted, `system`."""

    output_jsonl_fpath: str
    """Where the rows go."""


@command(MaterializePromptsConfig)
def materialize_prompts(options: MaterializePromptsConfig) -> None:
    """Fill in a prompt for every row."""
    try:
        count = render(options.input_jsonl_fpath, options.prompt_config, options.output_jsonl_fpath)
    except KeyError as error:
        raise ConfigError(str(error.args[0])) from error
    print(f"{count} rows in {options.output_jsonl_fpath}")


DELETE_KEY = "delete_from_gitlab"


@config_command(UploadJsonlDatasetHuggingFaceMaybeDeleteConfig, checked=False)
def upload_dataset_to_hf(options: UploadJsonlDatasetHuggingFaceMaybeDeleteConfig, config: DictConfig) -> None:
    """Upload a JSONL dataset to Hugging Face."""
    _upload_to_hf(options, MLFlowConfig.read(config) if options.delete_from_gitlab else None)


@config_command(UploadJsonlDatasetHuggingFaceConfig, checked=False)
def gitlab_to_hf_dataset(options: UploadJsonlDatasetHuggingFaceConfig, config: DictConfig) -> None:
    """Upload a JSONL dataset to Hugging Face, then delete it from GitLab."""
    if DELETE_KEY in config:
        raise ConfigError(f"Forbidden fields present: {DELETE_KEY}. This command always deletes, once you confirm it.")
    _upload_to_hf(options, MLFlowConfig.read(config))


def upload_jsonl_dataset_to_hf_maybe_delete(
    config: UploadJsonlDatasetHuggingFaceConfig, delete_from_gitlab: bool = False
) -> None:
    """Upload, and if that succeeds ask whether to delete the dataset from GitLab."""
    _upload_to_hf(config, MLFlowConfig.read(merged_config()) if delete_from_gitlab else None)


def _upload_to_hf(config: UploadJsonlDatasetHuggingFaceConfig, registry: MLFlowConfig | None) -> None:
    """Upload, and if a registry is given ask whether to delete the dataset from it."""
    done = hugging_face.upload(config)
    for note in done.notes:
        _say(note)
    _say(f"Pull Request created: {done.pull_request_url}" if done.pull_request_url else "Dataset upload successful")
    if registry is not None:
        _delete_if_confirmed(registry, config.dataset_name or folder_in(config.resource_config_path))


@command(DownloadJsonlDatasetHuggingFaceConfig)
def download_dataset_from_hf(options: DownloadJsonlDatasetHuggingFaceConfig) -> None:
    """Download a dataset from Hugging Face."""
    for path in hugging_face.download(options):
        _say(f"Downloaded {path}")


@command(UploadJsonlDatasetGitlabConfig)
def upload_dataset_to_gitlab(options: UploadJsonlDatasetGitlabConfig) -> None:
    """Upload a JSONL dataset to a GitLab model registry."""
    done = gitlab.upload(options)
    _say(f"Dataset upload successful. Download it with:\n{done.download_command}")


@command(DownloadJsonlDatasetGitlabConfig)
def download_dataset_from_gitlab(options: DownloadJsonlDatasetGitlabConfig) -> None:
    """Download a JSONL dataset from a GitLab model registry."""
    _say(f"Downloaded {gitlab.download(options)}")


@command(DeleteJsonlDatasetGitlabConfig)
def delete_dataset_from_gitlab(options: DeleteJsonlDatasetGitlabConfig) -> None:
    """Delete a dataset from a GitLab model registry, once you have confirmed it."""
    _delete_if_confirmed(options, options.dataset_name)


def delete_jsonl_dataset_from_gitlab(dataset_name: str) -> None:
    """Ask whether to delete a dataset from the registry of the configuration, and do so."""
    _delete_if_confirmed(MLFlowConfig.read(merged_config()), dataset_name)


def _delete_if_confirmed(registry: MLFlowConfig, name: str) -> None:
    if not gitlab.has_dataset(registry, name):
        _say(f"No model '{name}' in the registry; nothing to delete. Names are case-sensitive.")
        return
    question = f"Found model '{name}' in the registry. Are you sure you want to delete it from Gitlab? [y/N]: "
    try:
        answer = input(f"[Nemo-Gym] - {question}")
    except EOFError:
        answer = ""
        print()
    if answer.strip().lower() not in ("y", "yes"):
        _say("Skipped deletion")
        return
    gitlab.delete_dataset(registry, name)
    _say(f"Deleted '{name}' from Gitlab")


def _say(message: str) -> None:
    print(f"[Nemo-Gym] - {message}", flush=True)


class PrepareBenchmarkConfig(CommandConfig):
    """Write the rows of the benchmarks in a configuration, with the script that each of them names.

    Examples:

    ```bash
    ng_prepare_benchmark "+config_paths=[benchmarks/my_benchmark/config.yaml]"
    ```
    """

    prepare_script_args: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the `prepare` functions."""

    use_cached_prepared_benchmarks: bool = False
    """Leave a file that is there as it is."""


@config_command(PrepareBenchmarkConfig)
def prepare_benchmark(options: PrepareBenchmarkConfig, config: DictConfig) -> None:
    """Write the rows of benchmarks."""
    found = datasets_of(config, "benchmark")
    if not found:
        raise ConfigError("The configuration has no dataset of type benchmark. Give its files with +config_paths.")
    for agent, dataset in found:
        print(f"{agent}: {dataset.name} in {_prepare(dataset, options, VenvSettings.of(dict(config)))}")


def _prepare(dataset: DatasetConfig, options: PrepareBenchmarkConfig, venvs: VenvSettings) -> Path:
    path = Path(dataset.jsonl_fpath)
    if options.use_cached_prepared_benchmarks and path.is_file():
        return path
    if dataset.pypi_identifier is not None:
        pypi.write_rows(dataset, path, _say)
        return path
    if dataset.prepare_script is None:
        raise ConfigError(f"The benchmark '{dataset.name}' has neither prepare_script nor pypi_identifier.")
    script = find(dataset.prepare_script, what="prepare_script")
    roots = os.pathsep.join(map(str, search_roots()))
    done = subprocess.run(
        [
            *(python_for(script.parent, venvs) or sys.executable, "-P", "-m", "nemo_gym.data.prepare"),
            *(str(script), json.dumps(options.prepare_script_args)),
        ],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, EXTRA_ROOTS_ENV_VAR: roots},
        check=False,
    )
    written = [line.removeprefix(RESULT) for line in done.stdout.splitlines() if line.startswith(RESULT)]
    if done.returncode or not written:
        raise GymError(f"{script} failed with exit code {done.returncode}. Its output is above.")
    wanted = (path if path.is_absolute() else Path.cwd() / path).resolve()
    if Path(written[-1]).resolve() != wanted and not _is_below_a_root(Path(written[-1]), path):
        raise GymError(
            f"{script} wrote {written[-1]}, but the jsonl_fpath of '{dataset.name}' is {dataset.jsonl_fpath}."
        )
    return Path(written[-1])


def _is_below_a_root(found: Path, wanted: Path) -> bool:
    return any(found.resolve() == (root / wanted).resolve() for root in search_roots())
