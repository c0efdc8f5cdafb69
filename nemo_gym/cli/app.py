"""`ng`: the entry point for all commands, with its help and shell completion. Listing the commands imports only the
standard library."""

import json
import shlex
import sys
from collections.abc import Iterator

from nemo_gym.cli.command import WRONG_USAGE, parameters_of, print_result, word_command
from nemo_gym.cli.commands import ALIASES, COMMANDS, GROUPS, find_command
from nemo_gym.common.paths import nearest
from nemo_gym.common.redaction import printable
from nemo_gym.common.words import terminal_columns, two_columns, wrap_paragraphs
from nemo_gym.compat.gym_command import is_of_tree, listed, translated
from nemo_gym.errors import ConfigError

_USAGE = """\
Usage: ng <command> [--name value ...]

Every command takes --help, -v (verbose), -q (quiet), --json and --log-format json. `--name value` may also be written
as +name=value.

Available CLI scripts"""

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
        if is_of_tree([name, *rest], COMMANDS):
            if name in ("list", "search"):
                found = listed([name, *rest])
                print(json.dumps(found) if "--json" in rest else "\n".join(found))
                return
            name, rest = translated([name, *rest])
        function = find_command(name).load()
    except ConfigError as error:
        sys.stderr.write(printable(f"{error}\n"))
        raise SystemExit(WRONG_USAGE) from None
    sys.argv = [f"ng {name}", *rest]
    function()


@word_command
def display_help(words: list[str]) -> None:
    """List the commands, or show the parameters of one of them: `ng help`, `ng help run`."""
    if words:
        chosen = find_command(words[0])
        sys.argv = [f"ng {chosen.name}", "--help"]
        chosen.load()()
        return
    listed = [{"name": each.name, "summary": each.summary} for each in COMMANDS.values()]
    print_result({"commands": listed}, "\n".join(_overview(terminal_columns())))


def _overview(width: int) -> Iterator[str]:
    """All commands, by what people do with them."""
    yield from wrap_paragraphs(_USAGE, width)
    longest = max(map(len, COMMANDS))
    for title, commands in GROUPS.items():
        yield from ("", title)
        yield from two_columns([(f"  ng_{each.name:<{longest}}", each.summary) for each in commands], width)
    yield ""
    yield from wrap_paragraphs(_MORE, width)


# Shell completion

_BASH = """\
_ng() {
  local word=${COMP_WORDS[COMP_CWORD]} command=${COMP_WORDS[0]##*/}
  if [[ $command == ng && $COMP_CWORD -eq 1 ]]; then
    COMPREPLY=($(compgen -W "@NAMES@" -- "$word"))
    return
  fi
  [[ $command == ng ]] && command=${COMP_WORDS[1]}
  local before=${COMP_WORDS[COMP_CWORD-1]}
  [[ $word == = ]] && word=
  [[ $before == = ]] && before=${COMP_WORDS[COMP_CWORD-2]}
  COMPREPLY=($(compgen -W "$(ng completion words -- "${command#ng_}" "$before" 2>/dev/null)" -- "$word"))
  [[ ${COMPREPLY[0]} == *= ]] && compopt -o nospace
}
complete -o default -F _ng ng @SCRIPTS@
"""

_ZSH = """\
_ng() {
  local command=${words[1]:t}
  if [[ $command == ng && $CURRENT -eq 2 ]]; then
    local -a commands=(@DESCRIBED@)
    _describe command commands
    return
  fi
  [[ $command == ng ]] && command=${words[2]}
  local -a following=(${(f)"$(ng completion words -- ${command#ng_} ${words[CURRENT-1]} 2>/dev/null)"})
  compadd -S '' -- $following || _files
}
compdef _ng ng @SCRIPTS@
"""

_FISH = """\
@LINES@
set -l words '(ng completion words -- (commandline -opc)[2] (commandline -opc)[-1] 2>/dev/null)'
complete -c ng -n 'not __fish_is_nth_token 1' -a $words
for command in @NAMES@
  complete -c ng_$command -a "(ng completion words -- $command (commandline -opc)[-1] 2>/dev/null)"
end
"""
_FISH_COMMAND = "complete -c ng -f -n '__fish_is_nth_token 1' -a {name} -d {summary}"

_SHELLS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
_FOLLOWING = {"help": list(COMMANDS), "completion": list(_SHELLS)}
"""Words that may follow commands without parameters."""


@word_command
def completion(words: list[str]) -> None:
    """Print a completion script for bash, zsh or fish: commands, and the parameters of a command.

    Add one line to your shell's startup file: eval "$(ng completion bash)" to ~/.bashrc, eval "$(ng completion zsh)"
    to ~/.zshrc after compinit, or ng completion fish | source to ~/.config/fish/config.fish.
    """
    what, *rest = words or [""]
    print("\n".join(words_after(*rest[:2])) if what == "words" and rest else script_for(what))


def words_after(name: str, before: str = "") -> list[str]:
    """The words that may follow a command, or the option `before`; a parameter includes its '='."""
    kind = parameters_of(find_command(name).load())
    fields = kind.model_fields if kind else {}
    names = [field.alias or name for name, field in fields.items()]
    values = list(_values_of(before.lstrip("-+").rstrip("=").replace("-", "_")))
    if values and before[:1] in ("-", "+"):
        return values
    plain = [word for each in (kind.POSITIONAL if kind else ()) for word in _values_of(each)]
    options = [f"--{each.replace('_', '-')}" for each in names]
    return [*(f"+{each}=" for each in names), *_FOLLOWING.get(name, ()), *plain, *options, "--help"]


def _values_of(parameter: str) -> Iterator[str]:
    """The values that a parameter may have, as far as the folders say."""
    from nemo_gym.config.keys import SERVER_TYPES
    from nemo_gym.evaluation.catalog import agents_in, entries

    match parameter:
        case "environment":
            yield from (each.name for each in entries("resources_servers"))
        case "entrypoint":
            yield from (each.path for kind in SERVER_TYPES for each in entries(kind))
        case "model" | "m":
            yield from ("local", *(each.name for each in entries("responses_api_models")))
        case "agent" | "agent_name":
            configs = [config for each in entries("resources_servers") for config in each.configs]
            yield from dict.fromkeys(agent.name for config in configs for agent in agents_in(config))
        case "config_paths":
            found = [each for kind in SERVER_TYPES for each in entries(kind)]
            yield from (f"{each.path}/configs/{config.name}" for each in found for config in each.configs)
        case "kind":
            yield from ("environments", "agents", "models", "datasets")


def script_for(shell: str) -> str:
    """The completion script for a shell."""
    if shell not in _SHELLS:
        raise ConfigError(f"Found '{shell}', expected one of {', '.join(_SHELLS)}.{nearest(shell, _SHELLS)}")
    described = [shlex.quote(f"{each.name}:{each.summary}") for each in COMMANDS.values()]
    lines = [_FISH_COMMAND.format(name=each.name, summary=shlex.quote(each.summary)) for each in COMMANDS.values()]
    return (
        _SHELLS[shell]
        .replace("@NAMES@", " ".join([*COMMANDS, *ALIASES]))
        .replace("@SCRIPTS@", " ".join(f"ng_{name}" for name in COMMANDS))
        .replace("@DESCRIBED@", " ".join(described))
        .replace("@LINES@", "\n".join(lines))
    )
