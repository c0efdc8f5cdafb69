"""Create a new environment from the templates."""

import keyword
import os
import re
import shutil
from pathlib import Path
from string import Template

from nemo_gym.cli.command import command, read_parameters
from nemo_gym.cli.folders import parse_entrypoint
from nemo_gym.common.paths import PACKAGE_DIR
from nemo_gym.config.types import CommandConfig
from nemo_gym.errors import ConfigError

TEMPLATES = PACKAGE_DIR / "templates" / "resources_server"

_FILES = {
    "app.py": "app.py",
    "config.yaml": "configs/{name}.yaml",
    "example.jsonl": "data/example.jsonl",
    "gitignore": "data/.gitignore",
    "test_app.py": "tests/test_app.py",
    "README.md": "README.md",
}
"""Each template, without its suffix, and its path in the new folder."""

_NEXT = Template("""\
Next:
  Run its tests:
    ng_test +entrypoint=$folder +should_validate_data=true
  Collect rollouts, with policy_base_url, policy_api_key and policy_model_name in env.yaml:
    config_paths="$folder/configs/$name.yaml,responses_api_models/openai_model/configs/openai_model.yaml"
    ng_collect_rollouts "+config_paths=[$${config_paths}]" +agent_name=${name}_simple_agent \\
        +input_jsonl_fpath=$folder/data/example.jsonl +output_jsonl_fpath=results/${name}_rollouts.jsonl
  Or only start its servers:
    ng_run "+config_paths=[$${config_paths}]\"""")


class InitResourcesServerConfig(CommandConfig):
    """Create a new environment in the working directory: a tool, a verifier, a configuration, example rows and tests.

    An existing folder is not changed.

    Examples:

    ```bash
    ng_init_resources_server +entrypoint=resources_servers/my_server
    ```
    """

    entrypoint: str
    """Folder to create: resources_servers/<name>. The name consists of lower-case letters, digits and underscores."""


@command(InitResourcesServerConfig)
def init_resources_server() -> None:
    """Create a new environment and print the next steps."""
    name = _name_in(read_parameters(InitResourcesServerConfig).entrypoint)
    folder = Path("resources_servers") / name
    if folder.exists():
        print(f"{folder} already exists. Nothing was written; choose another name.")
        return
    write_environment(folder)
    print(f"Wrote {folder}:", *sorted(str(file) for file in folder.rglob("*") if file.is_file()), sep="\n  ")
    print(_NEXT.substitute(folder=folder, name=name))


def write_environment(folder: Path) -> None:
    """Create the folder from the templates, completely or not at all."""
    name = folder.name
    words = {"name": name, "class_name": "".join(word.capitalize() for word in name.split("_"))}
    making = folder.with_name(f".{name}.{os.getpid()}")
    try:
        for template, place in _FILES.items():
            file = making / place.format(name=name)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(Template((TEMPLATES / f"{template}.template").read_text()).substitute(words))
        making.rename(folder)
    except OSError as error:
        raise ConfigError(f"Cannot write {folder.absolute()}: {error}.") from error
    finally:
        shutil.rmtree(making, ignore_errors=True)


def _name_in(text: str) -> str:
    kind, name = parse_entrypoint(text).parts
    if kind != "resources_servers":
        raise ConfigError(f"The entrypoint is '{text}', expected resources_servers/<name>.")
    if not _is_module_name(name):
        spelled = re.sub(r"\W+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)).strip("_").lower()
        hint = f" How about 'resources_servers/{spelled}'?" if _is_module_name(spelled) else ""
        raise ConfigError(
            f"The name is '{name}', expected a module name: lower-case letters, digits and underscores, "
            f"starting with a letter, and not a Python keyword.{hint}"
        )
    return name


def _is_module_name(name: str) -> bool:
    return bool(re.fullmatch(r"[a-z][a-z0-9_]*", name)) and not keyword.iskeyword(name)
