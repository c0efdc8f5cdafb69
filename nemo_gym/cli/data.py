"""Prepare datasets."""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from nemo_gym.cli.command import command, read_unchecked
from nemo_gym.compat.global_config import GlobalConfigDictParserConfig
from nemo_gym.data.prepare import (
    CheckedDataset,
    Collated,
    DuplicateReport,
    Progress,
    TrainDataProcessor,
    TrainDataProcessorConfig,
)
from nemo_gym.data.reports import offending_lines
from nemo_gym.data.scope import AgentDataset, DatasetScope

_WIDTH = 100


@command(TrainDataProcessorConfig)
def prepare_data() -> None:
    """Check datasets, print and save their statistics, and collate them for training."""
    config = read_unchecked(GlobalConfigDictParserConfig.NO_MODEL_GLOBAL_CONFIG_DICT)
    options = TrainDataProcessorConfig.read(config)
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
        for line in offending_lines(each.figures) if is_dropping else ():
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
