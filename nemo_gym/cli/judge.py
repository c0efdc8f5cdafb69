"""`ng check_judge`: measure a judge on labelled examples."""

from pathlib import Path

from nemo_gym.cli.command import command, print_result
from nemo_gym.common import event_loop
from nemo_gym.common.atomic_files import write_json
from nemo_gym.evaluation.judge_check import CheckJudgeConfig, JudgeReport, acheck_judge, target_of


@command(CheckJudgeConfig)
def check_judge(options: CheckJudgeConfig) -> int:
    """Measure a judge on labelled examples."""
    asked = acheck_judge(
        target_of(options.environment),
        options.examples,
        judge=options.judge,
        limit=options.limit,
        tolerance=options.tolerance,
        concurrency=options.concurrency,
        verify_timeout_s=options.verify_timeout_s,
    )
    report = event_loop.run(asked)
    print_result(report.as_json(), str(report))
    if options.output_fpath:
        write_json(Path(options.output_fpath), report.as_json())
    return int(_is_bad(report, options))


def _is_bad(report: JudgeReport, options: CheckJudgeConfig) -> bool:
    least, most = options.min_agreement, options.max_injected
    disagrees = least is not None and (not report.agreed.samples or report.agreed.mean < least)
    return bool(report.failed) or disagrees or (most is not None and report.most_injected > most)
