"""Create a new environment or agent from the templates, and find the folder of an existing one."""

import keyword
import os
import re
import shutil
from pathlib import Path
from string import Template
from typing import ClassVar, NamedTuple

from nemo_gym.cli.command import command
from nemo_gym.common.paths import PACKAGE_DIR, SERVER_FOLDERS, find, nearest
from nemo_gym.config.types import CommandConfig
from nemo_gym.errors import ConfigError

TEMPLATES = PACKAGE_DIR / "templates"
MAX_PARTS = 4
"""Of the path of an existing folder: the name of a server may have slashes."""


class Kind(NamedTuple):
    """What can be created."""

    folder: str
    templates: str
    files: dict[str, str]
    """Each template, without its suffix, and its path in the new folder."""
    next_steps: Template


_FILES = {
    "app.py": "app.py",
    "config.yaml": "configs/{name}.yaml",
    "test_app.py": "tests/test_app.py",
    "README.md": "README.md",
}
_DATA = {"example.jsonl": "data/example.jsonl", "gitignore": "data/.gitignore"}

ENVIRONMENT = Kind(
    "resources_servers",
    "resources_server",
    {**_FILES, **_DATA},
    Template("""\
Next:
  Run its tests:
    ng_test +entrypoint=$folder +should_validate_data=true
  Let the small model on your CPU play it, or the model of your env.yaml without --model:
    ng eval $folder --model local
  The same in full, with policy_base_url, policy_api_key and policy_model_name in env.yaml:
    config_paths="$folder/configs/$name.yaml,responses_api_models/openai_model/configs/openai_model.yaml"
    ng_collect_rollouts "+config_paths=[$${config_paths}]" +agent_name=${name}_simple_agent \\
        +input_jsonl_fpath=$folder/data/example.jsonl +output_jsonl_fpath=results/${name}_rollouts.jsonl
  Or only start its servers:
    ng_run "+config_paths=[$${config_paths}]\""""),
)
AGENT = Kind(
    "responses_api_agents",
    "agent",
    _FILES,
    Template("""\
Next:
  Run its tests:
    ng_test +entrypoint=$folder
  Collect rollouts in an environment, with policy_base_url, policy_api_key and policy_model_name in env.yaml:
    environment=resources_servers/example_stateful_counter
    config_paths="$folder/configs/$name.yaml,$$environment/configs/stateful_counter.yaml,\\
responses_api_models/openai_model/configs/openai_model.yaml"
    ng_collect_rollouts "+config_paths=[$${config_paths}]" +agent_name=$name \\
        +$name.responses_api_agents.$name.resources_server.name=example_stateful_counter_resources_server \\
        +input_jsonl_fpath=$$environment/data/example.jsonl +output_jsonl_fpath=results/${name}_rollouts.jsonl"""),
)


class InitResourcesServerConfig(CommandConfig):
    """Create a new environment in the working directory: a tool, a verifier, a configuration, example rows and tests.

    An existing folder is not changed.

    Examples:

    ```bash
    ng_init_resources_server +entrypoint=resources_servers/my_server
    ```
    """

    POSITIONAL: ClassVar[tuple[str, ...]] = ("entrypoint",)

    entrypoint: str
    """Folder to create: resources_servers/<name>. The name consists of lower-case letters, digits and underscores."""


class InitAgentConfig(CommandConfig):
    """Create a new agent in the working directory: a few lines on the base class, a configuration and a test.

    An existing folder is not changed.

    Examples:

    ```bash
    ng_init_agent +entrypoint=responses_api_agents/my_agent
    ```
    """

    POSITIONAL: ClassVar[tuple[str, ...]] = ("entrypoint",)

    entrypoint: str
    """Folder to create: responses_api_agents/<name>. The name has lower-case letters, digits and underscores."""


@command(InitResourcesServerConfig)
def init_resources_server(options: InitResourcesServerConfig) -> None:
    """Create a new environment and print the next steps."""
    _init(ENVIRONMENT, options.entrypoint)


@command(InitAgentConfig)
def init_agent(options: InitAgentConfig) -> None:
    """Create a new agent and print the next steps."""
    _init(AGENT, options.entrypoint)


def _init(kind: Kind, entrypoint: str) -> None:
    name = _name_in(entrypoint, kind)
    folder = Path(kind.folder) / name
    if folder.exists():
        print(f"{folder} already exists. Nothing was written; choose another name.")
        return
    write_folder(folder, kind)
    print(f"Wrote {folder}:", *sorted(str(file) for file in folder.rglob("*") if file.is_file()), sep="\n  ")
    print(kind.next_steps.substitute(folder=folder, name=name))


def write_folder(folder: Path, kind: Kind = ENVIRONMENT) -> None:
    """Create the folder from the templates, completely or not at all."""
    name = folder.name
    words = {"name": name, "class_name": "".join(word.capitalize() for word in name.split("_"))}
    making = folder.with_name(f".{name}.{os.getpid()}")
    try:
        for template, place in kind.files.items():
            file = making / place.format(name=name)
            file.parent.mkdir(parents=True, exist_ok=True)
            text = (TEMPLATES / kind.templates / f"{template}.template").read_text()
            file.write_text(Template(text).substitute(words))
        making.rename(folder)
    except OSError as error:
        raise ConfigError(f"Cannot write {folder.absolute()}: {error}.") from error
    finally:
        shutil.rmtree(making, ignore_errors=True)


def _name_in(text: str, wanted: Kind) -> str:
    kind, name = parse_entrypoint(text).parts
    if kind != wanted.folder:
        raise ConfigError(f"The entrypoint is '{text}', expected {wanted.folder}/<name>.")
    if not _is_module_name(name):
        spelled = re.sub(r"\W+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)).strip("_").lower()
        hint = f" How about '{wanted.folder}/{spelled}'?" if _is_module_name(spelled) else ""
        raise ConfigError(
            f"The name is '{name}', expected a module name: lower-case letters, digits and underscores, "
            f"starting with a letter, and not a Python keyword.{hint}"
        )
    return name


def _is_module_name(name: str) -> bool:
    return bool(re.fullmatch(r"[a-z][a-z0-9_]*", name)) and not keyword.iskeyword(name)


def parse_entrypoint(text: str, *, max_parts: int = 2) -> Path:
    """Parse `<kind>/<name>`. The folder need not exist."""
    path = Path(text)
    if path.is_absolute() or not 2 <= len(path.parts) <= max_parts or ".." in path.parts:
        raise ConfigError(
            f"The entrypoint is '{text}', expected a relative path of two parts, such as resources_servers/my_server."
        )
    kind = path.parts[0]
    if kind not in SERVER_FOLDERS:
        listed = ", ".join(SERVER_FOLDERS)
        raise ConfigError(
            f"The entrypoint is '{text}', expected a folder in one of {listed}.{nearest(kind, SERVER_FOLDERS)}"
        )
    return path


def find_folder(entrypoint: str) -> Path:
    """The existing folder, in the working directory or beside the package. The name of a server may have a slash."""
    folder = find(parse_entrypoint(entrypoint, max_parts=MAX_PARTS), what="server folder")
    if not folder.is_dir():
        raise ConfigError(f"{folder} is a file, expected the folder of a server.")
    return folder


def project_of(folder: Path) -> Path:
    """The folder that has `resources_servers/` and its siblings, of one of the servers in it."""
    return next((above.parent for above in folder.parents if above.name in SERVER_FOLDERS), folder.parent.parent)
