"""`ng trust`, also called `ng_check_verifier`: measure how often verifiers are wrong, and how they can be cheated."""

import logging
import sys
from collections.abc import Iterator
from pathlib import Path

from omegaconf import DictConfig

from nemo_gym.cli.command import checked_config, command, print_result
from nemo_gym.common import event_loop
from nemo_gym.common.atomic_files import atomic_write, write_json
from nemo_gym.common.paths import PARENT_DIR
from nemo_gym.config.command_line import process_command_line
from nemo_gym.errors import ConfigError, GymError
from nemo_gym.runtime.connect import connect_servers
from nemo_gym.server import error_responses
from nemo_gym.trust.apart import Beats, run_apart
from nemo_gym.trust.baseline import (
    accepted_in,
    baseline_path,
    known_exploits,
    read_baseline,
    worse_than,
    write_baseline,
)
from nemo_gym.trust.check import CheckVerifierConfig, try_verifier
from nemo_gym.trust.environments import (
    ALL,
    CheckedEnvironment,
    config_files,
    configs_to_check,
    environments_to_check,
)
from nemo_gym.trust.mutation import check_mutants
from nemo_gym.trust.page import badge, trust_page
from nemo_gym.trust.report import TrustReport
from nemo_gym.trust.scoring import Budget

WIDTH = 80
"""Columns of the tables."""
MAX_LINE = 300
_HEADS = ("environment", "rows", "gold", "FN", "FP", "probes", "p50 ms", "p99 ms", "varied", "failed")
_LEFT_OUT_IF_ZERO = ("varied", "failed")


@command(CheckVerifierConfig)
def check_verifier(options: CheckVerifierConfig) -> int:
    """Measure how often verifiers are wrong, and how they can be cheated."""
    reports, worse = [], list[str]()
    for config in _configs(options):
        try:
            for environment in environments_to_check(options, config):
                report = _report_on(environment, options, config)
                reports.append(report)
                worse += _compared(environment, report, options)
        except GymError as error:
            if options.environment != ALL:
                raise
            print(f"Left out: {str(error).splitlines()[0][:MAX_LINE]}", file=sys.stderr)
    print_result([report.as_json() for report in reports], "\n".join(_lines(reports, worse)))
    if options.output_fpath:
        write_json(Path(options.output_fpath), [report.as_json() for report in reports])
    if options.html_fpath:
        with atomic_write(Path(options.html_fpath)) as file:
            file.write(trust_page(reports).encode())
    return int(bool(worse) or any(_is_bad(report, options.max_false_positive_rate) for report in reports))


def _configs(options: CheckVerifierConfig) -> Iterator[DictConfig]:
    line = process_command_line()
    if options.environment is None:
        yield checked_config(line)
        return
    for path in configs_to_check(options.environment):
        try:
            yield checked_config(line, {"config_paths": config_files(path)})
        except ConfigError as error:
            if options.environment != ALL:
                raise
            print(f"{path} is left out: {str(error).splitlines()[0][:MAX_LINE]}", file=sys.stderr)


def _report_on(environment: CheckedEnvironment, options: CheckVerifierConfig, config: DictConfig) -> TrustReport:
    bar, exploits = _Bar(environment.spec.name), list(known_exploits(read_baseline(environment.spec.folder)))

    async def checked(beats: Beats, skipped: frozenset[str]) -> TrustReport:
        logging.getLogger(error_responses.__name__).setLevel(logging.CRITICAL)  # failures are in the report
        async with connect_servers(config, environment.classes or None) as client:
            return await try_verifier(
                options,
                client,
                environment.checked,
                folder=environment.spec.folder,
                judge=environment.judge,
                on_progress=bar.show,
                on_probe=beats,
                skipped=skipped,
                exploits=[] if options.input_jsonl_fpath else exploits,
            )

    try:
        report = run_apart(lambda beats, skipped: event_loop.run(checked(beats, skipped)))
    finally:
        bar.close()
    if options.mutants:
        check_mutants(environment, options, config, report)
    return report


def _compared(environment: CheckedEnvironment, report: TrustReport, options: CheckVerifierConfig) -> Iterator[str]:
    """What is worse than the recorded rates, which are written if that is asked for."""
    folder = environment.spec.folder
    if options.baseline == "ignore" or not baseline_path(folder).parent.is_dir():
        return
    baseline = read_baseline(folder)
    report.accepted = accepted_in(baseline, report.environment)
    if options.baseline == "write":
        path = write_baseline(folder, report)
        shown = path.relative_to(PARENT_DIR) if path.is_relative_to(PARENT_DIR) else path
        print(f"{report.environment}: rates written to {shown}", file=sys.stderr)
        return
    if options.input_jsonl_fpath is None:  # rates are those of the environment's own rows
        yield from (f"{report.environment}: {line}" for line in worse_than(baseline, report))


def _is_bad(report: TrustReport, most: float | None) -> bool:
    too_many = most is not None and (report.false_positive_rate or 0.0) > most
    return too_many or any(report.findings())


def _lines(reports: list[TrustReport], worse: list[str]) -> Iterator[str]:
    yield from verifier_table(reports)
    for report in reports:
        yield from _remarks(report)
    yield from (f"worse than recorded: {line}" for line in worse)
    yield from (f"{report.environment}: {badge(report)}" for report in reports)


def verifier_table(reports: list[TrustReport]) -> Iterator[str]:
    """At most 80 columns. Columns of zeros are left out; a long name has a line of its own."""
    columns = zip(_HEADS, *map(_cells, reports), strict=True)
    names, *values = (column for column in columns if column[0] not in _LEFT_OUT_IF_ZERO or {*column[1:]} != {"0"})
    padded = [[cell.rjust(max(map(len, column))) for cell in column] for column in values]
    texts = ["  ".join(cells) for cells in zip(*padded, strict=True)]
    left = WIDTH - len(texts[0]) - 2
    width = max((len(name) for name in names if len(name) <= left), default=0)
    for name, text in zip(names, texts, strict=True):
        if len(name) > width:
            yield name
        yield f"{name if len(name) <= width else '':{width}}  {text}"


def _cells(report: TrustReport) -> tuple[str, ...]:
    rates = (_shown(rate, ".1%") for rate in (report.false_negative_rate, report.false_positive_rate))
    failed = sum(causes.total() for causes in report.failed.values())
    counts = (f"{report.varied.total():,}", f"{failed:,}")
    latencies = (_shown(report.latency_ms(percent), ".1f") for percent in (50, 99))
    sizes = (str(report.rows), str(report.rows_with_gold))
    return report.environment, *sizes, *rates, str(report.probes), *latencies, *counts


def _shown(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _remarks(report: TrustReport) -> Iterator[str]:
    name = report.environment
    if report.discriminates and report.trivial_rows:
        yield f"{name}: {report.trivial_rows} rows are left out, an empty output has the full reward there"
    for kind, stats in report.kinds.items():
        if stats.wrong_rows and not stats.is_finding:
            verb = "is rejected" if stats.expected == "right" else "has the full reward"
            yield f"{name}: {kind} {verb} in {stats.wrong_rows} of {len(stats.rows)} rows"
    for finding in report.findings():
        yield f"{name}: FOUND: {finding}"[:MAX_LINE]
    for kind, why in report.accepted.items():
        yield f"{name}: {kind} is so on purpose: {why}"
    if report.mutants.trials:
        yield f"{name}: {report.mutants.trials - report.mutants.errors} of {report.mutants.trials} mutants are noticed"
    yield from (f"{name}: not measured: {what}" for what in report.not_done)


class _Bar:
    """How much of the budget is spent, on a terminal."""

    def __init__(self, name: str) -> None:
        self._bar = None
        if sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(desc=name, total=100, unit="%", leave=False)

    def show(self, budget: Budget) -> None:
        if self._bar is not None:
            self._bar.n = min(100, round(100 * max(budget.used / budget.cpu_s, _share_of_probes(budget))))
            self._bar.refresh()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def _share_of_probes(budget: Budget) -> float:
    return budget.probes / budget.max_probes if budget.max_probes else 0.0
