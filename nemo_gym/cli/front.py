"""`ng`: one program in front of all commands, and the one list of them.

Listing the commands imports nothing but the standard library.
"""

import importlib
import sys
from collections.abc import Callable
from typing import NamedTuple

from nemo_gym.command import WRONG_USAGE, command
from nemo_gym.errors import ConfigError
from nemo_gym.paths import nearest

_USAGE = """\
Usage: ng <command> [+name=value ...]

Available CLI scripts
---------------------"""

_MORE = """\
`ng help <command>` shows what a command can be told. `ng run` and `ng_run` are the same, and so on for all of them.
Complete commands and parameters with Tab: eval "$(ng completion bash)", or zsh, or fish."""


class Command(NamedTuple):
    """One command: `ng <name>`, `ng_<name>` and `nemo_gym_<name>`."""

    name: str
    summary: str

    target: str
    """The function that carries it out, as 'module:function'."""

    def load(self) -> Callable[[], None]:
        """The function that carries it out."""
        module, _, name = self.target.partition(":")
        function: Callable[[], None] = getattr(importlib.import_module(module), name)
        return function


_LIST = (
    Command("run", "Start the servers of a configuration and keep them running.", "nemo_gym.cli:run"),
    Command("status", "Show which servers run, and whether they are well.", "nemo_gym.cli:status"),
    Command("stop", "Stop a run from another terminal.", "nemo_gym.cli:stop"),
    Command("collect_rollouts", "Have an agent answer the rows of a dataset.", "nemo_gym.cli:collect_rollouts"),
    Command("profile", "Tell from rollouts how hard each row is.", "nemo_gym.profile:profile"),
    Command("reverify", "Score stored rollouts anew and show what moved.", "nemo_gym.cli:reverify"),
    Command("export", "Turn scored rollouts into training data.", "nemo_gym.cli:export"),
    Command("check_tokens", "Check that turns extend each other token for token.", "nemo_gym.cli:check_tokens"),
    Command("init_resources_server", "Write a new, working environment.", "nemo_gym.cli:init_resources_server"),
    Command("check_verifier", "Try verifiers with made-up answers.", "nemo_gym.cli:check_verifier"),
    Command("test", "Run the tests of one server folder.", "nemo_gym.cli:test"),
    Command("test_all", "Run the tests of all server folders.", "nemo_gym.cli:test_all"),
    Command("dev_test", "Run the tests of NeMo Gym itself.", "nemo_gym.cli:dev_test"),
    Command("dump_config", "Show the configuration a command would use.", "nemo_gym.cli:dump_config"),
    Command("pip_list", "List the packages that a server folder runs with.", "nemo_gym.cli:pip_list"),
    Command("version", "Show the versions of NeMo Gym and of what it runs on.", "nemo_gym.cli:version"),
    Command("completion", "Print a script that completes commands in a shell.", "nemo_gym.cli:completion"),
    Command("help", "List the commands, or show what one can be told.", "nemo_gym.cli:display_help"),
)
COMMANDS = {each.name: each for each in _LIST}


def main() -> None:
    """What `ng` runs: the command named first, with the rest of the arguments."""
    name, *rest = sys.argv[1:] or ["help"]
    if name in ("-V", "--version"):
        from importlib import metadata

        sys.stdout.write(f"NeMo Gym v{metadata.version('nemo-gym')}\n")
        return
    if name in ("-h", "--help"):
        name, rest = "help", []
    try:
        function = find_command(name).load()
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(WRONG_USAGE) from None
    sys.argv = [f"ng {name}", *rest]
    function()


def find_command(name: str) -> Command:
    """The command of that name, written with underscores or with dashes."""
    found = COMMANDS.get(name.replace("-", "_"))
    if found is None:
        raise ConfigError(f"There is no command '{name}'.{nearest(name, COMMANDS)} `ng help` lists them all.")
    return found


@command()
def display_help() -> None:
    """List the commands, or show what one of them can be told: `ng help`, `ng help run`."""
    arguments = sys.argv[1:]
    if arguments:
        chosen = find_command(arguments[0])
        sys.argv = [f"ng {chosen.name}", "--help"]
        chosen.load()()
        return
    width = max(map(len, COMMANDS))
    lines = [f"ng_{each.name:<{width}}   {each.summary}" for each in COMMANDS.values()]
    print("\n".join([_USAGE, *lines, "", _MORE]))
