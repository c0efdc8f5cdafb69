"""Look at stored rollouts: profile, compare, aggregate, export, verify again, check tokens and verifiers."""

import glob
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

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
from nemo_gym.analysis.rollout_health import HealthReport, check_files, write_health
from nemo_gym.cli.command import FAILED, command, config_command, print_result
from nemo_gym.common import event_loop
from nemo_gym.common.atomic_files import concatenate
from nemo_gym.common.paths import find
from nemo_gym.common.redaction import one_line
from nemo_gym.common.words import count_of, shorten
from nemo_gym.config.types import CommandConfig
from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.dataset import agents_of, check_rows_name_agents
from nemo_gym.rollouts.metrics import write_aggregate_metrics
from nemo_gym.rollouts.store import failures_path
from nemo_gym.runtime.connect import connect_servers
from nemo_gym.training.token_check import Tokenizer, TokenReport, check_token_file
from nemo_gym.training.token_check import check_tokens as check_lines
from nemo_gym.training.token_file import ARROW, PARQUET, token_restorer
from nemo_gym.viewer.records import SCORED, describe, describe_line

WIDTH = 70
"""Columns of the tables."""
MAX_PLACES = 5
"""How many rollouts are named of each problem."""
MAX_SHOWN = 50
"""Maximum number of token faults that are printed."""


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
    for number, (index, metrics) in enumerate(rows):
        prompt = describe(dataset.row(index)).prompt[:60]
        reward = f"{metrics.avg_reward:.4g} +- {metrics.std_reward:.4g} of {metrics.total_samples}"
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
    """Check that in every rollout each turn's prompt token ids extend the tokens of the turns before it, that they
    agree with the rest of the record, and that every trainer's view of it has exactly the sampled tokens.

    Prints the row, the turn and the first token that differs, and which checks did not run and why. The exit code is 1
    if there is a fault.
    """

    rollouts_jsonl_fpath: str
    """Rollouts collected with a model server that returns token ids, what `ng_export` wrote for a trainer, or an Arrow
    or Parquet file of tokens."""

    format: Literal["rollouts", "nemo_rl", "verl", "skyrl", "slime", "trl", "tinker", "prime_rl", "areal"] = "rollouts"
    """Content of the file: rollouts, or samples exported for this trainer."""

    tokenizer: str | None = None
    """The policy's tokenizer.json, or its folder: compare text with tokens, and ids with the vocabulary."""

    allow_breaks: bool = False
    """Accept turns that do not extend the ones before, as after a compaction: each starts a new segment."""


@command(CheckTokensConfig)
def check_tokens(options: CheckTokensConfig) -> int:
    """Check that the tokens of every rollout are what a trainer needs."""
    path = find(options.rollouts_jsonl_fpath, what="rollouts file")
    tokenizer = None if options.tokenizer is None else Tokenizer(options.tokenizer)
    if path.suffix in (ARROW, PARQUET):
        report = check_token_file(path, tokenizer=tokenizer)
    else:
        trainer = None if options.format == "rollouts" else options.format
        with path.open("rb") as lines:
            report = check_lines(lines, trainer=trainer, tokenizer=tokenizer, restored=token_restorer(path))
    show_tokens(report)
    return 0 if is_sound(report, allow_breaks=options.allow_breaks) else FAILED


def is_sound(report: TokenReport, *, allow_breaks: bool) -> bool:
    """True if no token is wrong. A file without any tokens is not sound: it proves nothing."""
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
    for check in report.not_run:
        print(f"not checked: {check}")
    if not report.turns and not report.faults:
        print("No turn has tokens. Was return_token_id_information set for the model server?", file=sys.stderr)


class CheckRolloutsConfig(CommandConfig):
    """Check the health of stored rollouts: failed model calls, empty turns, runaway generations, token counts that
    differ, duplicates, tasks that never succeed.

    Prints how many rollouts are healthy, unhealthy and unobserved, and where each problem is. Records that were
    collected with `+observability_enabled=true` have what all checks need. Without, rollouts of one turn are checked
    whole, and longer ones by their turns. The exit code is 1 if a rollout or a task is unhealthy.
    """

    rollouts_jsonl_fpath: str
    """Rollouts of `ng_collect_rollouts` or of the public package, or their folder."""

    ignored_checks: str = ""
    """Names of checks that do not count, separated by commas."""

    output_dirpath: str | None = None
    """Write `quality_summary.json` and `rollout_verdicts.jsonl` into this folder."""


@command(CheckRolloutsConfig)
def check_rollouts(options: CheckRolloutsConfig) -> int:
    """Check the health of stored rollouts."""
    files = list(_files_of_rollouts(find(options.rollouts_jsonl_fpath, what="rollouts")))
    if not files:
        raise ConfigError(f"{options.rollouts_jsonl_fpath} has no file of scored rollouts.")
    ignored = [name.strip() for name in options.ignored_checks.split(",") if name.strip()]
    try:
        report = check_files(files, ignored_checks=ignored)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if options.output_dirpath is not None:
        write_health(report, Path(options.output_dirpath))
    print_result(report.summary, "\n".join(_health_lines(report)))
    return FAILED if report.summary["run"]["issues"] else 0


def _files_of_rollouts(path: Path) -> Iterator[Path]:
    """Yield a file, or the files of a folder whose first line is a scored rollout."""
    if not path.is_dir():
        yield path
        return
    for file in sorted(path.glob("*.jsonl")):
        with file.open("rb") as lines:
            if describe_line(next(iter(lines), b"")).outcome == SCORED:
                yield file


def _health_lines(report: HealthReport) -> Iterator[str]:
    run = report.summary["run"]
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in run["verdicts"].items())
    yield f"{count_of(len(report.rollouts), 'rollout')}: {verdicts}"
    for check, count in run["issues"].items():
        places = [f"{each.task}/{each.rollout}" for each in report.rollouts if check in each.checks]
        tasks = [task for task, found in report.summary["tasks"].items() if check in found["flags"]]
        listed = [*places, *(f"task {task}" for task in tasks)]
        more = f" and {len(listed) - MAX_PLACES} more" if len(listed) > MAX_PLACES else ""
        yield f"{count:>8}  {check}: {', '.join(listed[:MAX_PLACES])}{more}"
    missing = [name for name, each in run["artifacts"]["coverage"].items() if each["unobserved"]]
    if missing:
        yield f"not observed in all rollouts: {', '.join(missing)}"


class AggregateRolloutsConfig(CommandConfig):
    """Ask an agent's environment for its metrics over rollouts that are on disk. Needs the servers, as
    `ng_collect_rollouts` does."""

    agent_name: str | None = None
    """Name of the agent. If not set, the only one of the configuration, or else the `agent_ref` of each record."""

    rollouts_jsonl_fpath: str
    """Scored rollouts. The metrics go to `<name>_aggregate_metrics.json` beside it. Several files, of shards, are
    separated by commas or matched by a pattern; then give output_jsonl_fpath too."""

    output_jsonl_fpath: str | None = None
    """The metrics go beside this file."""

    merge_shards: bool = False
    """Also write all rollouts to output_jsonl_fpath."""


@config_command(AggregateRolloutsConfig)
def aggregate_rollouts(options: AggregateRolloutsConfig, config: DictConfig) -> int:
    """Compute an environment's own metrics over stored rollouts."""
    written = event_loop.run(_aggregate(config, options))
    if written is not None:
        print(f"Metrics in {written}")
    return int(written is None)


async def _aggregate(config: DictConfig, options: AggregateRolloutsConfig) -> Path | None:
    shards = _shards(options.rollouts_jsonl_fpath)
    if options.output_jsonl_fpath is None and (len(shards) > 1 or options.merge_shards):
        raise ConfigError(f"There are {len(shards)} files of rollouts. Say where the metrics go: +output_jsonl_fpath.")
    output = Path(options.output_jsonl_fpath or shards[0])
    if options.merge_shards:
        output.parent.mkdir(parents=True, exist_ok=True)
        concatenate(shards, output)
    async with connect_servers(config) as client:
        settings: Any = client.global_config_dict
        agents = list(agents_of(settings))
        agent = options.agent_name or (agents[0] if len(agents) == 1 else None)
        if agent is None:
            check_rows_name_agents(shards[0], settings)
        return await write_aggregate_metrics(output, client, agent_name=agent, always=True, inputs=shards)


def _shards(given: str) -> list[Path]:
    """The files that a list of paths and patterns means."""
    found = [Path(path) for part in given.split(",") for path in sorted(glob.glob(part.strip())) or [part.strip()]]
    return [find(path, what="rollouts file") for path in found]
