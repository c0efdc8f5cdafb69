"""Try verifiers with made-up answers, and show what they take for one."""

import sys
from pathlib import Path

from omegaconf import DictConfig

from nemo_gym import loops
from nemo_gym.command import command, read_command_line
from nemo_gym.files import write_json
from nemo_gym.peers import peers
from nemo_gym.verifier_check import CheckVerifierConfig, VerifierReport, environments_to_check, try_verifier

_HEADS = ("environment", "rows", "gold", "false neg.", "false pos.", "varied", "failed", "p50 ms", "p99 ms")


@command(CheckVerifierConfig)
def check_verifier() -> int:
    """Try verifiers with right, wrong and hostile answers."""
    config = read_command_line(fill_ports=False)
    options = CheckVerifierConfig.read(config)
    reports = loops.run(_check(config, options))
    _show(reports)
    if options.output_fpath:
        write_json(Path(options.output_fpath), [report.told() for report in reports])
    return int(any(_is_bad(report, options.max_false_positive_rate) for report in reports))


async def _check(config: DictConfig, options: CheckVerifierConfig) -> list[VerifierReport]:
    async with peers(config) as client:
        chosen = environments_to_check(options, client.global_config_dict)
        return [await try_verifier(options, client, each) for each in chosen]


def _is_bad(report: VerifierReport, most: float | None) -> bool:
    too_many = most is not None and (report.false_positive_rate or 0.0) > most
    return bool(report.varied or report.failed or too_many)


def _show(reports: list[VerifierReport]) -> None:
    table = [_HEADS, *map(_cells, reports)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for name, *figures in table:
        cells = [figure.rjust(width) for figure, width in zip(figures, widths[1:], strict=True)]
        print("  ".join([name.ljust(widths[0]), *cells]))
    for report in reports:
        _show_remarks(report)


def _cells(report: VerifierReport) -> tuple[str, ...]:
    rates = (_shown(rate, ".1%") for rate in (report.false_negative_rate, report.false_positive_rate))
    counts = (str(report.varied), str(report.failed.total()))
    latencies = (_shown(report.latency_ms(percent), ".1f") for percent in (50, 99))
    return report.environment, str(report.rows), str(report.rows_with_gold), *rates, *counts, *latencies


def _shown(figure: float | None, form: str) -> str:
    return "-" if figure is None else format(figure, form)


def _show_remarks(report: VerifierReport) -> None:
    name = report.environment
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
