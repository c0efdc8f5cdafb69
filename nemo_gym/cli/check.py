"""Checks of stored tokens and of verifiers."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from omegaconf import DictConfig

from nemo_gym.analysis.verifier_check import CheckVerifierConfig, VerifierReport, environments_to_check, try_verifier
from nemo_gym.cli.command import FAILED, command, read_command_line, read_parameters
from nemo_gym.common import event_loop
from nemo_gym.common.atomic_files import write_json
from nemo_gym.common.paths import find
from nemo_gym.config.types import CommandConfig
from nemo_gym.runtime.connect import connect_servers
from nemo_gym.training.token_check import TokenReport
from nemo_gym.training.token_check import check_tokens as check_lines

MAX_SHOWN = 50


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
def check_tokens() -> int:
    """Prove that the tokens of every rollout are what a trainer needs."""
    options = read_parameters(CheckTokensConfig)
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


WIDTH = 70
_HEADS = ("environment", "rows", "gold", "FN", "FP", "p50 ms", "p99 ms", "varied", "failed")
_LEFT_OUT_IF_ZERO = ("varied", "failed")


@command(CheckVerifierConfig)
def check_verifier() -> int:
    """Try verifiers with right, wrong and hostile answers."""
    config = read_command_line(fill_ports=False)
    options = CheckVerifierConfig.read(config)
    reports = event_loop.run(_check(config, options))
    _show_verifiers(reports)
    if options.output_fpath:
        write_json(Path(options.output_fpath), [report.as_json() for report in reports])
    return int(any(_is_bad(report, options.max_false_positive_rate) for report in reports))


async def _check(config: DictConfig, options: CheckVerifierConfig) -> list[VerifierReport]:
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
