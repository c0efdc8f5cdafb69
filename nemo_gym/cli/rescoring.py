"""Score stored rollouts anew, and show what moved."""

import sys
from pathlib import Path

from omegaconf import DictConfig

from nemo_gym import loops
from nemo_gym.command import command, read_command_line
from nemo_gym.peers import peers
from nemo_gym.reverify import ReverifyConfig, ReverifyReport, environment_finder, reverify_rollouts
from nemo_gym.rollout_store import failures_path


@command(ReverifyConfig)
def reverify() -> int:
    """Score stored rollouts anew and show what moved."""
    config = read_command_line(fill_ports=False)
    options = ReverifyConfig.read(config)
    report = loops.run(_reverify(config, options))
    _show(report, Path(options.output_jsonl_fpath))
    return int(report.unconfirmed > options.max_moved)


async def _reverify(config: DictConfig, options: ReverifyConfig) -> ReverifyReport:
    async with peers(config) as client:
        environment_of = environment_finder(options, client.global_config_dict)
        return await reverify_rollouts(options, client, environment_of)


def _show(report: ReverifyReport, output: Path) -> None:
    before, after = report.means
    unmoved = report.rescored - report.up - report.down
    print(f"{report.rescored} rollouts scored anew: {unmoved} as before, {report.up} up, {report.down} down")
    print(f"mean reward {before:.4f} before, {after:.4f} now; in {output}")
    if report.tool_calls:
        print(f"{report.tool_calls} tool calls made again, {report.tool_outputs_changed} with another output")
    if report.changed_rows:
        print(f"{report.changed_rows} rollouts are of rows that have changed since")
    if report.largest:
        print(f"{'task':>8} {'repeat':>8} {'before':>10} {'now':>10}")
    for change in report.largest:
        print(f"{change.task_index:>8} {change.repeat_index:>8} {change.old:>10.4g} {change.new:>10.4g}")
    if report.failed:
        causes = ", ".join(f"{cause}: {count}" for cause, count in report.failed.most_common())
        print(f"{report.failed.total()} without a new reward ({causes}) in {failures_path(output)}", file=sys.stderr)
