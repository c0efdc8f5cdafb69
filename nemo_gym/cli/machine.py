"""What this machine can do: which sandbox model-written code runs in, and what would make it a better one."""

import sys

from nemo_gym.cli.command import FAILED, command
from nemo_gym.cli.output import print_result
from nemo_gym.sandbox.assessment import Assessment, assess

_LEVELS = {"full": "full", "partial": "partial (see below)", "none": "none"}


@command()
def doctor() -> int:
    """Show which sandbox level holds on this machine, why, and the exact fix for what does not work.

    The exit code is 1 if model-written code cannot be run in any sandbox here.
    """
    found = list(assess())
    best = next((one for one in found if one.works), None)
    lines = [f"Python {sys.version.split()[0]}", "", "Sandbox providers, best first:"]
    lines += [line for one in found for line in _described(one)]
    lines += ["", _verdict(best)]
    if best is not None and best.not_covered:
        lines += [f"What '{best.name}' does not stop:", *(f"  - {gap}" for gap in best.not_covered)]
    providers = [{"name": one.name, "works": one.works, "level": one.level, "fix": one.fix} for one in found]
    print_result({"sandbox": best.name if best else None, "providers": providers}, "\n".join(lines))
    return 0 if best else FAILED


def _described(one: Assessment) -> list[str]:
    lines = [f"  {'works' if one.works else 'no':<6} {one.name:<11} level: {one.level:<8} {one.reason}"]
    return lines if one.fix is None else [*lines, f"         fix: {one.fix}"]


def _verdict(best: Assessment | None) -> str:
    if best is None:
        return (
            "No sandbox: model-written code is refused. Environments that run code need one of the fixes above, or "
            "'unconfined' named in their config."
        )
    return f"`auto` means '{best.name}' here, level {_LEVELS[best.level]}."
