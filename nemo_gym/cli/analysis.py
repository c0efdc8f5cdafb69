"""What to make of stored rollouts: figures, and training data."""

import sys

from nemo_gym.command import command, read_parameters
from nemo_gym.export import ExportConfig, export_rollouts
from nemo_gym.profile import ProfileConfig, profile_rollouts


@command(ProfileConfig)
def profile() -> None:
    """Tell from rollouts how hard each row of a dataset is."""
    config = read_parameters(ProfileConfig)
    found = profile_rollouts(config)
    print(found.metrics.table())
    print(f"{found.rows} rows with figures in {config.output_jsonl_fpath}, all figures in {found.metrics_path}")
    if found.rows_without_rollouts:
        print(f"{found.rows_without_rollouts} rows have no rollout and are left out", file=sys.stderr)
    if found.records_without_reward:
        print(f"{found.records_without_reward} records have no reward and do not count", file=sys.stderr)
    if found.matched_by_prompt:
        print(f"{found.matched_by_prompt} records have no _task_index; found by their prompt", file=sys.stderr)


@command(ExportConfig)
def export() -> None:
    """Turn scored rollouts into training data."""
    config = read_parameters(ExportConfig)
    report = export_rollouts(config)
    what = "conversations" if config.format == "sft" else "pairs"
    print(f"{report.examples} {what} in {config.output_jsonl_fpath}, from {report.used} of {report.read} rollouts")
    for reason, count in report.dropped.most_common():
        print(f"{count:>8} dropped: {reason}")
