"""Check the tokens of a rollouts file."""

import sys

from nemo_gym.command import FAILED, command, read_parameters
from nemo_gym.config_types import CommandConfig
from nemo_gym.paths import find
from nemo_gym.token_check import TokenReport
from nemo_gym.token_check import check_tokens as check_lines

MAX_SHOWN = 50


class CheckTokensConfig(CommandConfig):
    """Prove that in every rollout of a file each turn's prompt is exactly the tokens so far, and then more.

    Names the row, the turn and the first token that does not fit, and ends with exit code 1 if there is one.
    """

    rollouts_jsonl_fpath: str
    """The rollouts, as ng_collect_rollouts writes them with a model server that returns token ids."""


@command(CheckTokensConfig)
def check_tokens() -> int:
    """Prove that the tokens of every rollout are one growing sequence."""
    options = read_parameters(CheckTokensConfig)
    with find(options.rollouts_jsonl_fpath, what="rollouts file").open("rb") as lines:
        report = check_lines(lines)
    return 0 if show(report) else FAILED


def show(report: TokenReport) -> bool:
    """Print what was found, and tell whether all is well. A file without any tokens proves nothing, so it is not."""
    for fault in report.faults[:MAX_SHOWN]:
        print(fault, file=sys.stderr)
    if len(report.faults) > MAX_SHOWN:
        print(f"... and {len(report.faults) - MAX_SHOWN} more", file=sys.stderr)
    print(f"{report.rollouts} rollouts, {report.turns} turns with tokens, {len(report.faults)} faults")
    if not report.turns:
        print("No turn has tokens. Was return_token_id_information set for the model server?", file=sys.stderr)
    return bool(report.turns) and not report.faults
