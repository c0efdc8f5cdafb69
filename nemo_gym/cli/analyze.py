"""Look at stored rollouts: profile, compare, export, verify again, check tokens and verifiers."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from omegaconf import DictConfig

from nemo_gym.analysis.compare import CompareConfig, Comparison, Flip, compare_rollouts, draw_comparison
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
from nemo_gym.analysis.verifier_check import CheckVerifierConfig, VerifierReport, environments_to_check, try_verifier
from nemo_gym.cli.command import FAILED, command, config_command, print_result
from nemo_gym.common import event_loop
from nemo_gym.common.atomic_files import write_json
from nemo_gym.common.paths import find
from nemo_gym.common.redaction import one_line
from nemo_gym.common.words import count_of, shorten
from nemo_gym.config.types import CommandConfig
from nemo_gym.rollouts.store import failures_path
from nemo_gym.runtime.connect import connect_servers
from nemo_gym.training.token_check import TokenReport
from nemo_gym.training.token_check import check_tokens as check_lines
from nemo_gym.viewer.records import describe

WIDTH = 70
"""Columns of the tables."""
MAX_SHOWN = 50
"""How many faults of tokens are printed."""


@command(CompareConfig)
def compare_runs(config: CompareConfig) -> None:
    """Compare two runs on the same tasks."""
    found = compare_rollouts(config)
    print_result(found.as_json(), "\n".join(_comparison_lines(found, config.max_flips)))
    for name, count in ((config.before, found.failed_before), (config.after, found.failed_after)):
        if count:
            print(f"{name}: {count_of(count, 'rollout')} without a result", file=sys.stderr)
    if config.plots_fpath is not None:
        draw_comparison(config, Path(config.plots_fpath))
        print(f"plots in {config.plots_fpath}", file=sys.stderr)


def _comparison_lines(found: Comparison, most: int) -> Iterator[str]:
    only = ""
    if found.only_before or found.only_after:
        only = f"; {found.only_before} only before, {found.only_after} only after"
    yield f"{count_of(found.tasks, 'task')} in both runs{only}"
    rewards, interval = found.rewards, found.rewards.difference.interval_95
    shown = "unknown" if interval is None else " .. ".join(f"{bound:+.3g}" for bound in interval)
    yield f"mean reward  {rewards.mean_before:.4g} before, {rewards.mean_after:.4g} after"
    yield f"difference   {rewards.difference.mean:+.4g}, 95 % interval {shown}"
    unchanged, chance = found.tasks - rewards.up - rewards.down, f"sign test p = {rewards.sign_test:.2g}"
    yield f"tasks        {rewards.up} up, {rewards.down} down, {unchanged} unchanged ({chance})"
    yield from _flip_lines("pass", "passes", found.gained, most)
    yield from _flip_lines("fail", "fails", found.lost, most)


def _flip_lines(several: str, one: str, flips: Sequence[Flip], most: int) -> Iterator[str]:
    if not flips:
        return
    yield f"{count_of(len(flips), 'task')} now {one if len(flips) == 1 else several}:"
    for flip in flips[:most]:
        head = f"  {flip.task_index!s:>5}  {flip.before:.3g} → {flip.after:.3g}  "
        yield head + shorten(flip.prompt, max(WIDTH - len(head), 10))
    if len(flips) > most:
        yield f"  ... and {len(flips) - most} more (--max-flips)"


@command(ProfileConfig)
def profile(config: ProfileConfig) -> None:
    """Compute from rollouts how hard each row of a dataset is."""
    found = profile_rollouts(config)
    print(found.metrics.table())
    with Dataset(config.input_jsonl_fpath) as dataset:
        _show_rows("hardest rows", found.hardest, dataset)
        _show_rows("most uncertain rows", found.most_uncertain, dataset)
    print(f"{found.rows} rows with metrics in {config.output_jsonl_fpath}, all metrics in {found.metrics_path}")
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
def reward_profile(config: RewardProfileConfig) -> None:
    """Compute statistics of stored rollouts by task and by agent."""
    summary, files = profile_files(config)
    print(f"{summary['num_rollouts']} of {summary['expected_num_rollouts']} rollouts")
    print(f"by task in {files[0]}, by agent in {files[1]}")


def _show_rows(title: str, rows: list[ProfiledRow], dataset: Dataset) -> None:
    for number, (index, figures) in enumerate(rows):
        prompt = describe(dataset.row(index)).prompt[:60]
        reward = f"{figures.avg_reward:.4g} +- {figures.std_reward:.4g} of {figures.total_samples}"
        print(one_line(f"{title if number == 0 else '':<20} row {index:<8} {reward:<24} {prompt}"))


@command(ExportConfig)
def export(config: ExportConfig) -> None:
    """Turn scored rollouts into training data."""
    report = export_rollouts(config)
    what = {"sft": "conversations", "dpo": "pairs"}.get(config.format, "samples")
    print(f"{report.examples} {what} in {config.output_jsonl_fpath}, from {report.used} of {report.read} rollouts")
    for reason, count in report.dropped.most_common():
        print(f"{count:>8} dropped: {reason}")


@config_command(ReverifyConfig)
def reverify(options: ReverifyConfig, config: DictConfig) -> int:
    """Verify stored rollouts again and show which rewards changed, or complete failed ones."""
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


class CheckTokensConfig(CommandConfig):
    """Check that in every rollout each turn's prompt token ids extend the tokens of the turns before it, and that
    every trainer's view of it has exactly the sampled tokens.

    Prints the row, the turn and the first token that differs. The exit code is 1 if there is one.
    """

    rollouts_jsonl_fpath: str
    """Rollouts collected with a model server that returns token ids, or what `ng_export` wrote for a trainer."""

    format: Literal["rollouts", "nemo_rl", "verl", "skyrl", "slime", "trl"] = "rollouts"
    """What the file contains: rollouts, or samples exported for this trainer."""

    allow_breaks: bool = False
    """Accept turns that do not extend the ones before, as after a compaction: each starts a new segment."""


@command(CheckTokensConfig)
def check_tokens(options: CheckTokensConfig) -> int:
    """Check that the tokens of every rollout are what a trainer needs."""
    with find(options.rollouts_jsonl_fpath, what="rollouts file").open("rb") as lines:
        report = check_lines(lines, trainer=None if options.format == "rollouts" else options.format)
    show_tokens(report)
    return 0 if is_sound(report, allow_breaks=options.allow_breaks) else FAILED


def is_sound(report: TokenReport, *, allow_breaks: bool) -> bool:
    """Whether all is well. A file without any tokens proves nothing, so it is not."""
    return bool(report.turns) and not report.faults and (allow_breaks or not report.breaks)


def show_tokens(report: TokenReport) -> None:
    """Print what was found."""
    found = report.faults + report.breaks
    for line in found[:MAX_SHOWN]:
        print(line, file=sys.stderr)
    if len(found) > MAX_SHOWN:
        print(f"... and {len(found) - MAX_SHOWN} more", file=sys.stderr)
    counts = f"{report.turns} turns with tokens in {report.segments} segments"
    print(f"{report.rollouts} rollouts, {counts}, {len(report.breaks)} breaks, {len(report.faults)} faults")
    if not report.turns and not report.faults:
        print("No turn has tokens. Was return_token_id_information set for the model server?", file=sys.stderr)


_HEADS = ("environment", "rows", "gold", "FN", "FP", "p50 ms", "p99 ms", "varied", "failed")
_LEFT_OUT_IF_ZERO = ("varied", "failed")


@config_command(CheckVerifierConfig)
def check_verifier(options: CheckVerifierConfig, config: DictConfig) -> int:
    """Try verifiers with right, wrong and hostile answers."""
    reports = event_loop.run(_try_verifiers(config, options))
    _show_verifiers(reports)
    if options.output_fpath:
        write_json(Path(options.output_fpath), [report.as_json() for report in reports])
    return int(any(_is_bad(report, options.max_false_positive_rate) for report in reports))


async def _try_verifiers(config: DictConfig, options: CheckVerifierConfig) -> list[VerifierReport]:
    async with connect_servers(config) as client:
        chosen = environments_to_check(options, client.global_config_dict)
        return [await try_verifier(options, client, each) for each in chosen]


def _is_bad(report: VerifierReport, most: float | None) -> bool:
    too_many = most is not None and (report.false_positive_rate or 0.0) > most
    return bool(report.varied or report.failed or too_many)


def _show_verifiers(reports: list[VerifierReport]) -> None:
    for line in verifier_table(reports):
        print(line)
    for report in reports:
        _show_remarks(report)


def verifier_table(reports: list[VerifierReport]) -> Iterator[str]:
    """At most 70 columns. What is 0 everywhere is left out; a long name has a line of its own above its figures."""
    columns = zip(_HEADS, *map(_cells, reports), strict=True)
    names, *figures = (column for column in columns if column[0] not in _LEFT_OUT_IF_ZERO or {*column[1:]} != {"0"})
    padded = [[cell.rjust(max(map(len, column))) for cell in column] for column in figures]
    texts = ["  ".join(cells) for cells in zip(*padded, strict=True)]
    room = WIDTH - len(texts[0]) - 2
    width = max(len(name) for name in names if len(name) <= room)
    for name, text in zip(names, texts, strict=True):
        if len(name) > width:
            yield name
        yield f"{name if len(name) <= width else '':{width}}  {text}"


def _cells(report: VerifierReport) -> tuple[str, ...]:
    rates = (_shown(rate, ".1%") for rate in (report.false_negative_rate, report.false_positive_rate))
    counts = (f"{report.varied:,}", f"{report.failed.total():,}")
    latencies = (_shown(report.latency_ms(percent), ".1f") for percent in (50, 99))
    return report.environment, str(report.rows), str(report.rows_with_gold), *rates, *latencies, *counts


def _shown(figure: float | None, form: str) -> str:
    return "-" if figure is None else format(figure, form)


def _show_remarks(report: VerifierReport) -> None:
    name = report.environment
    if report.false_negative_rate == 1.0:
        print(
            f"{name} rejects every right answer. Probably the gold answers are wrong: check gold_response and "
            "expected_answer"
        )
    if not report.discriminates:
        print(f"{name} does not discriminate: an empty output has the full reward")
    elif report.trivial_rows:
        print(
            f"{name}: {report.trivial_rows} rows are left out of the rate, an empty output has the full reward there"
        )
    for kind, figures in report.kinds.items():
        if figures.full and not figures.may_be_right and report.discriminates:
            print(f"{name}: {kind} has the full reward in {figures.full} of {figures.rows} rows")
        if figures.varied:
            print(f"{name}: {kind} does not have the same result twice in {figures.varied} of {figures.rows} rows")
        if figures.failed:
            causes = ", ".join(f"{cause}: {count}" for cause, count in figures.failed.most_common())
            print(f"{name}: {kind} has no result ({causes}): {report.messages[kind]}", file=sys.stderr)
