"""Run the check on a planted verifier: `python -m tests.trust.bench` prints the table."""

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

from nemo_gym.analysis.gold import gold_finder
from nemo_gym.testing import running_servers, server_spec
from nemo_gym.trust.apart import Beats, run_apart
from nemo_gym.trust.check import Checked, CheckVerifierConfig, try_verifier
from nemo_gym.trust.judge_probes import JudgeScript, played_judge
from nemo_gym.trust.report import TrustReport
from tests.trust.verifiers import DEFECTS, SOUND, Planted

HERE = Path(__file__).parent


def report_on(planted: Planted, **options: object) -> TrustReport:
    """The report on one verifier."""
    return run_apart(lambda beats, skipped: asyncio.run(_checked(planted, beats, skipped, **options)))


async def _checked(planted: Planted, beats: Beats, skipped: frozenset[str], **options: object) -> TrustReport:
    script = JudgeScript()
    environment = replace(server_spec("env", "resources_servers", "env", folder=HERE), served_class=planted.kind)
    judge = server_spec("judge", "responses_api_models", "judge", folder=HERE)
    judge = replace(judge, served_class=played_judge(script))
    servers = [environment, judge] if planted.asks_judge else [environment]
    async with running_servers(servers) as client:
        checked = Checked("env", planted.rows, gold_finder(environment))
        settings = CheckVerifierConfig.model_validate(
            {"budget_s": 20.0, "verify_timeout_s": 60.0, "max_probes": 1500, **options}
        )
        return await try_verifier(
            settings, client, checked, judge=script if planted.asks_judge else None, on_probe=beats, skipped=skipped
        )


def main() -> None:
    names = sys.argv[1:]
    for title, table in (("sound", SOUND), ("defects", DEFECTS)):
        for planted in table:
            if names and planted.name not in names:
                continue
            report = report_on(planted)
            findings = list(report.findings())
            shown = "; ".join(str(each)[:110] for each in findings[:8])
            bad = bool(findings) == (title == "sound")
            print(
                f"{'!!' if bad else '  '} {title:8} {planted.name:40} {report.probes:6} {report.cpu_s:6.1f} {shown}",
                flush=True,
            )
            if names:
                print(*(each.as_json() for each in findings), sep="\n")
                print(report.not_done, report.slowest, report.judge, report.rows_with_gold)


if __name__ == "__main__":
    main()
