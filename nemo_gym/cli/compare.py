"""`ng compare`: how two runs differ on the same tasks."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from nemo_gym.analysis.compare import CompareConfig, Comparison, Flip, compare_rollouts, draw_comparison
from nemo_gym.cli.command import command, read_parameters
from nemo_gym.cli.output import print_result
from nemo_gym.common.words import count_of, shorten

WIDTH = 70


@command(CompareConfig)
def compare_runs() -> None:
    """Compare two runs on the same tasks."""
    config = read_parameters(CompareConfig)
    found = compare_rollouts(config)
    print_result(found.as_json(), "\n".join(_lines(found, config.max_flips)))
    for name, count in ((config.before, found.failed_before), (config.after, found.failed_after)):
        if count:
            print(f"{name}: {count_of(count, 'rollout')} without a result", file=sys.stderr)
    if config.plots_fpath is not None:
        draw_comparison(config, Path(config.plots_fpath))
        print(f"plots in {config.plots_fpath}", file=sys.stderr)


def _lines(found: Comparison, most: int) -> Iterator[str]:
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
