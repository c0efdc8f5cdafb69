"""Commands on stored rollouts: profile, export, reverify."""

import sys
from pathlib import Path

from omegaconf import DictConfig

from nemo_gym.analysis.dataset_rows import Dataset
from nemo_gym.analysis.export import ExportConfig, export_rollouts
from nemo_gym.analysis.profile import (
    ProfileConfig,
    ProfiledRow,
    RewardProfileConfig,
    profile_files,
    profile_rollouts,
)
from nemo_gym.analysis.reverify import ReverifyConfig, ReverifyReport, environment_finder, reverify_rollouts
from nemo_gym.cli.command import command, read_command_line, read_parameters
from nemo_gym.common import event_loop
from nemo_gym.common.redaction import one_line
from nemo_gym.rollouts.output_files import failures_path
from nemo_gym.runtime.connect import connect_servers
from nemo_gym.viewer.records import describe


@command(ProfileConfig)
def profile() -> None:
    """Tell from rollouts how hard each row of a dataset is."""
    config = read_parameters(ProfileConfig)
    found = profile_rollouts(config)
    print(found.metrics.table())
    with Dataset(config.input_jsonl_fpath) as dataset:
        _show_rows("hardest rows", found.hardest, dataset)
        _show_rows("most uncertain rows", found.most_uncertain, dataset)
    print(f"{found.rows} rows with figures in {config.output_jsonl_fpath}, all figures in {found.metrics_path}")
    print(f"plots in {found.plots_path}")
    if found.rows_without_rollouts:
        print(f"{found.rows_without_rollouts} rows have no rollout and are left out", file=sys.stderr)
    if found.records_without_reward:
        print(f"{found.records_without_reward} records have no reward and do not count", file=sys.stderr)
    if found.records_without_row:
        print(f"{found.records_without_row} records are of rows not in the dataset and do not count", file=sys.stderr)
    if found.matched_by_prompt:
        print(f"{found.matched_by_prompt} records have no _task_index; found by their prompt", file=sys.stderr)


@command(RewardProfileConfig)
def reward_profile() -> None:
    """Compute figures of stored rollouts by task and by agent."""
    summary, files = profile_files(read_parameters(RewardProfileConfig))
    print(f"{summary['num_rollouts']} of {summary['expected_num_rollouts']} rollouts")
    print(f"by task in {files[0]}, by agent in {files[1]}")


def _show_rows(title: str, rows: list[ProfiledRow], dataset: Dataset) -> None:
    for number, (index, figures) in enumerate(rows):
        prompt = describe(dataset.row(index)).prompt[:60]
        reward = f"{figures.avg_reward:.4g} +- {figures.std_reward:.4g} of {figures.total_samples}"
        print(one_line(f"{title if number == 0 else '':<20} row {index:<8} {reward:<24} {prompt}"))


@command(ExportConfig)
def export() -> None:
    """Turn scored rollouts into training data."""
    config = read_parameters(ExportConfig)
    report = export_rollouts(config)
    what = {"sft": "conversations", "dpo": "pairs"}.get(config.format, "samples")
    print(f"{report.examples} {what} in {config.output_jsonl_fpath}, from {report.used} of {report.read} rollouts")
    for reason, count in report.dropped.most_common():
        print(f"{count:>8} dropped: {reason}")


@command(ReverifyConfig)
def reverify() -> int:
    """Verify stored rollouts again and show which rewards changed, or complete failed ones."""
    config = read_command_line(fill_ports=False)
    options = ReverifyConfig.read(config)
    report = event_loop.run(_reverify(config, options))
    _show_reverified(report, Path(options.output_jsonl_fpath))
    return int(report.unconfirmed > options.max_moved)


async def _reverify(config: DictConfig, options: ReverifyConfig) -> ReverifyReport:
    async with connect_servers(config) as client:
        environment_of = environment_finder(options, client.global_config_dict)
        return await reverify_rollouts(options, client, environment_of)


def _show_reverified(report: ReverifyReport, output: Path) -> None:
    before, after = report.means
    unmoved = report.rescored - report.up - report.down
    if report.completed or report.unusable:
        print(f"{report.completed} failed rollouts completed in {output}; {report.unusable} have no response")
    if report.rescored or not report.completed:
        print(f"{report.rescored} rollouts verified again: {unmoved} unchanged, {report.up} up, {report.down} down")
        print(f"mean reward {before:.4f} before, {after:.4f} now; in {output}")
    if report.masked:
        print(f"{report.masked} rollouts not verified and left as they are: values of env.yaml are masked in them")
    if report.tool_calls:
        print(f"{report.tool_calls} tool calls repeated, {report.tool_outputs_changed} with another output")
    if report.changed_rows:
        print(f"{report.changed_rows} rollouts are of rows that have changed since")
    if report.largest:
        print(f"{'task':>8} {'repeat':>8} {'before':>10} {'now':>10}")
    for change in report.largest:
        print(f"{change.task_index:>8} {change.repeat_index:>8} {change.old:>10.4g} {change.new:>10.4g}")
    if report.failed:
        causes = ", ".join(f"{cause}: {count}" for cause, count in report.failed.most_common())
        print(f"{report.failed.total()} without a new reward ({causes}) in {failures_path(output)}", file=sys.stderr)
