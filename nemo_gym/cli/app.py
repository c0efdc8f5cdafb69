"""`ng`: the entry point for all commands. Listing them imports only the standard library."""

import sys

from nemo_gym.cli.command import WRONG_USAGE, command
from nemo_gym.cli.commands import COMMANDS, find_command
from nemo_gym.cli.output import print_result
from nemo_gym.cli.tree import is_of_tree, print_listed, translated
from nemo_gym.common.redaction import printable
from nemo_gym.errors import ConfigError

_USAGE = """\
Usage: ng <command> [--name value ...]

Every command takes --help, -v (verbose), -q (quiet), --json and --log-format json. `--name value` may also be written
as +name=value.

Available CLI scripts
---------------------"""

_MORE = """\
`ng help <command>` shows the parameters of a command. `ng run` is the same as `ng_run`.
`gym env start`, `gym eval run` and the other commands of the public tree work too: see docs/migration.md.
For shell completion: eval "$(ng completion bash)", or zsh, or fish."""


def main() -> None:
    """Run the command given as the first argument with the other arguments."""
    name, *rest = sys.argv[1:] or ["help"]
    if name in ("-V", "--version") and rest:
        name = "version"
    elif name in ("-V", "--version"):
        from importlib import metadata

        sys.stdout.write(f"NeMo Gym v{metadata.version('nemo-gym')}\n")
        return
    if name in ("-h", "--help"):
        name, rest = "help", []
    try:
        if is_of_tree([name, *rest]):
            if name in ("list", "search"):
                print_listed([name, *rest])
                return
            name, rest = translated([name, *rest])
        function = find_command(name).load()
    except ConfigError as error:
        sys.stderr.write(printable(f"{error}\n"))
        raise SystemExit(WRONG_USAGE) from None
    sys.argv = [f"ng {name}", *rest]
    function()


@command(reads_arguments=True)
def display_help() -> None:
    """List the commands, or show the parameters of one of them: `ng help`, `ng help run`."""
    arguments = sys.argv[1:]
    if arguments:
        chosen = find_command(arguments[0])
        sys.argv = [f"ng {chosen.name}", "--help"]
        chosen.load()()
        return
    width = max(map(len, COMMANDS))
    lines = [f"ng_{each.name:<{width}}   {each.summary}" for each in COMMANDS.values()]
    listed = [{"name": each.name, "summary": each.summary} for each in COMMANDS.values()]
    print_result({"commands": listed}, "\n".join([_USAGE, *lines, "", _MORE]))
