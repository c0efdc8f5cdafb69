"""Shell completion: a script for the shell, which calls `ng completion words` for the parameters of a command."""

import shlex
import sys
from collections.abc import Iterator

from nemo_gym.cli.command import command, parameters_of
from nemo_gym.cli.commands import ALIASES, COMMANDS, find_command
from nemo_gym.common.paths import nearest
from nemo_gym.config.keys import SERVER_TYPES
from nemo_gym.errors import ConfigError

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
  COMPREPLY=($(compgen -W "$(ng completion words "${command#ng_}" "$before" 2>/dev/null)" -- "$word"))
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
  local -a following=(${(f)"$(ng completion words ${command#ng_} ${words[CURRENT-1]} 2>/dev/null)"})
  compadd -S '' -- $following || _files
}
compdef _ng ng @SCRIPTS@
"""

_FISH = """\
@LINES@
set -l words '(ng completion words (commandline -opc)[2] (commandline -opc)[-1] 2>/dev/null)'
complete -c ng -n 'not __fish_is_nth_token 1' -a $words
for command in @NAMES@
  complete -c ng_$command -a "(ng completion words $command (commandline -opc)[-1] 2>/dev/null)"
end
"""
_FISH_COMMAND = "complete -c ng -f -n '__fish_is_nth_token 1' -a {name} -d {summary}"

_SHELLS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
_FOLLOWING = {"help": list(COMMANDS), "completion": list(_SHELLS)}
"""Words that may follow commands without parameters."""


@command(reads_arguments=True)
def completion() -> None:
    """Print a completion script for bash, zsh or fish: commands, and the parameters of a command.

    Add one line to your shell's startup file: eval "$(ng completion bash)" to ~/.bashrc, eval "$(ng completion zsh)"
    to ~/.zshrc after compinit, or ng completion fish | source to ~/.config/fish/config.fish.
    """
    what, *rest = sys.argv[1:] or [""]
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
    from nemo_gym.cli.catalog import agents_in, entries

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
