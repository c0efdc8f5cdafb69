"""`gym <group> <command> --flags`: the public command tree, translated to our commands. Flags become keys."""

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from nemo_gym.common.paths import EXTRA_ROOTS_ENV_VAR, find, nearest, search_roots
from nemo_gym.config.command_line import quoted
from nemo_gym.errors import ConfigError, MissingPathError

_PLAIN_VALUE = re.compile(r"[\w.-]+")
"""Names and numbers, which need no quotes."""
_MODEL = {
    "--model": "policy_model_name",
    "-m": "policy_model_name",
    "--model-url": "policy_base_url",
    "--model-api-key": "policy_api_key",
}
_SELECT = ("--config", "--benchmark", "--environment", "--resources-server", "--model-type", "--search-dir")
_SWITCHES = frozenset(
    ("--no-serve", "--resume", "--disable-aggregation", "--force", "--overwrite", "--append", "--download", "--json")
)
_COLLECT = {
    "--agent": "agent_name",
    "-a": "agent_name",
    "--input": "input_jsonl_fpath",
    "-i": "input_jsonl_fpath",
    "--output": "output_jsonl_fpath",
    "-o": "output_jsonl_fpath",
    "--limit": "limit",
    "--num-repeats": "num_repeats",
    "--prompt-config": "prompt_config",
    "--concurrency": "num_samples_in_parallel",
    "--split": "split",
    "--temperature": "responses_create_params.temperature",
    "--top-p": "responses_create_params.top_p",
    "--max-output-tokens": "responses_create_params.max_output_tokens",
    "--disable-aggregation": "disable_aggregation=true",
    "--resume": "resume=continue",
    "--no-serve": "",
}
_STORED = {"--inputs": "input_jsonl_fpath", "--rollouts": "rollouts_jsonl_fpath", "--output": "output_jsonl_fpath"}
_HUB = {"--input": "input_jsonl_fpath", "--output": "output_fpath", "--repo-id": "repo_id", "--name": "dataset_name"}


class TreeCommand(NamedTuple):
    """A command of the tree."""

    name: str
    """Name of our command."""
    flags: Mapping[str, str] = {}
    """Flags, each with the key that it sets. A switch sets `key=value`, or nothing."""
    selects: bool = False
    """True if configurations can be selected by the names of benchmarks, environments and servers."""
    extra: tuple[str, ...] = ()
    """Arguments that are always added."""
    positional: str = ""
    """The key of an argument without a flag."""


TREE: dict[tuple[str, ...], TreeCommand] = {
    ("env", "start"): TreeCommand("run", _MODEL, True),
    ("env", "prefetch"): TreeCommand("run", _MODEL, True, ("+dry_run=true",)),
    ("env", "status"): TreeCommand("status"),
    ("env", "resolve"): TreeCommand("dump_config", _MODEL, True),
    ("env", "packages"): TreeCommand("pip_list", {"--resources-server": "entrypoint", "--outdated": "outdated=true"}),
    ("env", "test"): TreeCommand("test", {"--resources-server": "entrypoint"}),
    ("env", "init"): TreeCommand("init_resources_server", {"--resources-server": "entrypoint"}),
    ("env", "validate"): TreeCommand("check_compat", {"--resources-server": "folder"}),
    ("eval", "run"): TreeCommand("collect_rollouts", {**_MODEL, **_COLLECT}, True, ("+materialize_inputs=true",)),
    ("eval", "prepare"): TreeCommand("prepare_benchmark", _MODEL, True),
    ("eval", "aggregate"): TreeCommand(
        "aggregate_rollouts",
        {
            **_MODEL,
            **dict.fromkeys(("--input-glob", "--input", "-i"), "rollouts_jsonl_fpath"),
            **dict.fromkeys(("--output", "-o"), "output_jsonl_fpath"),
            **dict.fromkeys(("--agent", "-a"), "agent_name"),
        },
        True,
    ),
    ("eval", "reverify"): TreeCommand(
        "reverify",
        {**_MODEL, **_STORED, "--concurrency": "num_samples_in_parallel", "--force": "", "--overwrite": ""},
        True,
    ),
    ("eval", "health-check"): TreeCommand(
        "check_rollouts",
        {"--rollouts-file": "rollouts_jsonl_fpath", "--ignore": "ignored_checks", "--output-dir": "output_dirpath"},
        positional="rollouts_jsonl_fpath",
    ),
    ("eval", "profile"): TreeCommand("reward_profile", {flag: _STORED[flag] for flag in ("--inputs", "--rollouts")}),
    ("dataset", "collate"): TreeCommand(
        "prepare_data",
        {"--mode": "mode", "--output-dir": "output_dirpath", "--download": "should_download=true"},
        True,
    ),
    ("dataset", "render"): TreeCommand(
        "materialize_prompts",
        {
            "--input": "input_jsonl_fpath",
            "--prompt-config": "prompt_config",
            "--output": "output_jsonl_fpath",
        },
    ),
    ("dataset", "upload"): TreeCommand("upload_dataset_to_{storage}", _HUB),
    ("dataset", "download"): TreeCommand("download_dataset_from_{storage}", _HUB),
    ("dataset", "rm"): TreeCommand("delete_dataset_from_gitlab", _HUB),
    ("dataset", "migrate"): TreeCommand("gitlab_to_hf_dataset", _HUB),
    ("dev", "test"): TreeCommand("dev_test"),
}
NOT_HERE = {
    ("env", "publish"): "Publish a folder with git, or a dataset with `gym dataset upload`.",
    (
        "eval",
        "submit",
    ): "Run `gym eval run` in a job of your cluster, as docs/scaling.md shows.",
}
"""Public commands without a counterpart, and what to do instead."""
NO_FLAGS = {
    "--append": "Give another --output, and append it to the file yourself.",
    "--benchmark": "Write a config.yaml and a prepare.py; docs/migration.md shows the files of a benchmark.",
    "--environment": "An environment here is one resources server: use --resources-server.",
    "--judge-failed-only": "Give the file of failures as --rollouts: it is completed without asking the model again.",
    "--limit": "Give a file with fewer rollouts.",
    "--resume": "It starts from the beginning each time.",
}
"""Public flags without a counterpart where the command does not take them, and what to do instead."""
GROUPS = tuple(dict.fromkeys(path[0] for path in TREE))

_KINDS = {
    "benchmarks": "benchmarks",
    "environments": "environments",
    "agents": "responses_api_agents",
    "models": "responses_api_models",
    "resources-servers": "resources_servers",
}
_LISTED_BY_US = ("environments", "agents", "models")


def is_of_tree(arguments: Sequence[str], commands: Collection[str]) -> bool:
    """True if these arguments are a command of the tree, and not one of our own commands, such as `eval`."""
    word, following = arguments[0], arguments[1] if len(arguments) > 1 else ""
    if word == "list":
        has_name = len(arguments) > 2 and not arguments[2].startswith(("-", "+"))
        return following in _KINDS and (following not in _LISTED_BY_US or has_name)
    is_known = (word, following) in TREE or (word, following) in NOT_HERE
    return word == "search" or (word in GROUPS and (word not in commands or is_known))


def translated(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """Translate arguments to our command and its keys."""
    path = tuple(arguments[:2])
    if path in NOT_HERE:
        raise ConfigError(f"'gym {' '.join(path)}' is not part of this package. {NOT_HERE[path]}")
    if path not in TREE:
        known = [" ".join(each) for each in TREE if each[0] == arguments[0]]
        hint = nearest(" ".join(path), known)
        raise ConfigError(f"There is no command 'gym {' '.join(path)}'.{hint} There are: {', '.join(known)}.")
    command = TREE[path]
    storage, given = _take(list(arguments[2:]), "--storage")
    keys = list(_as_keys(command, given))
    name = command.name.format(storage=storage or "hf")
    if name == "test" and not any(key.startswith("+entrypoint") for key in keys):
        name = "test_all"
    return name, [*command.extra, *keys]


def _take(arguments: list[str], flag: str) -> tuple[str | None, list[str]]:
    if flag not in arguments:
        return None, arguments
    at = arguments.index(flag)
    return arguments[at + 1], [*arguments[:at], *arguments[at + 2 :]]


def _as_keys(command: TreeCommand, arguments: list[str]) -> Iterator[str]:
    configs: list[str] = []
    queue = _split_equals(arguments)
    serves = "--no-serve" not in queue
    while queue:
        argument = queue.pop(0)
        if argument in command.flags and argument not in _SELECT:
            yield from _set(command.flags[argument], queue, argument)
        elif command.selects and argument in _SELECT:
            value = _value(queue, argument)
            if argument == "--search-dir":
                before = os.environ.get(EXTRA_ROOTS_ENV_VAR)
                os.environ[EXTRA_ROOTS_ENV_VAR] = os.pathsep.join(filter(None, (before, value)))
            else:
                configs.append(value if argument == "--config" else str(_config_of(argument, value)))
        elif argument in command.flags:
            yield f"+{command.flags[argument]}=resources_servers/{_value(queue, argument)}"
        elif argument in ("-h", "--help"):
            yield "--help"
        elif argument in ("-v", "--json"):
            yield argument
        elif argument.startswith("-"):
            known = [*command.flags, *(_SELECT if command.selects else ())]
            hint = f" {NO_FLAGS[argument]}" if argument in NO_FLAGS else nearest(argument, known)
            raise ConfigError(f"'{argument}' is not a flag of this command.{hint}")
        elif command.positional and "=" not in argument:
            yield from _set(command.positional, [argument], command.positional)
        else:
            yield argument
    if configs and serves:
        yield f"+config_paths=[{','.join(configs)}]"


def _split_equals(arguments: Sequence[str]) -> list[str]:
    """Split `--flag=value` into two arguments."""
    found: list[str] = []
    for argument in arguments:
        found += argument.split("=", 1) if argument.startswith("--") and "=" in argument else [argument]
    return found


def _set(key: str, queue: list[str], flag: str) -> Iterator[str]:
    if flag in _SWITCHES or "=" in key:
        if key:
            yield f"+{key}"
        return
    value = _value(queue, flag)
    yield f"++{key}={value if _PLAIN_VALUE.fullmatch(value) else quoted(value)}"


def _value(queue: list[str], flag: str) -> str:
    if not queue:
        raise ConfigError(f"'{flag}' needs a value.")
    return queue.pop(0)


def _config_of(flag: str, value: str) -> Path:
    """Return the configuration of a name: `name`, or `name/flavor`."""
    name, _, flavor = value.partition("/")
    if flag in ("--benchmark", "--environment"):
        folder = f"{flag.removeprefix('--')}s/{name}"
        return find(f"{folder}/{flavor + '.yaml' if flavor else 'config.yaml'}", what="config file")
    kind = "resources_servers" if flag == "--resources-server" else "responses_api_models"
    folder = f"{kind}/{name}/configs"
    try:
        return find(f"{folder}/{flavor or name}.yaml", what="config file")
    except MissingPathError:
        found = sorted(find(folder, what="folder of configs").glob("*.yaml"))
        if len(found) == 1 and not flavor:
            return found[0]
        listed = ", ".join(f"{name}/{file.stem}" for file in found)
        raise ConfigError(f"'{value}' is not a configuration of {name}. There are: {listed}.") from None


def listed(arguments: Sequence[str]) -> list[str]:
    """Return the folders of a kind; with `search`, those whose path contains a text."""
    search = arguments[0] == "search"
    rest = [argument for argument in arguments[1:] if not argument.startswith("-")]
    kinds = [rest.pop(0)] if rest and rest[0] in _KINDS else list(_KINDS) if search else []
    if not kinds:
        raise ConfigError(f"Give what to list: {', '.join(_KINDS)}.{nearest(rest[0] if rest else '', _KINDS)}")
    text = rest[0] if rest else ""
    folders = {
        f"{_KINDS[kind]}/{folder.name}"
        for kind in kinds
        for root in search_roots()
        for folder in (root / _KINDS[kind]).glob("*/")
        if any(folder.glob("*.py")) or any(folder.glob("*.yaml"))
    }
    return sorted(name for name in folders if text in name)
