"""Commands that print the configuration, versions and packages."""

import json
import os
import platform
import subprocess
import sys
from importlib import metadata
from typing import Any, Literal

from pydantic import ConfigDict, Field

from nemo_gym.cli.command import command, read_command_line, read_parameters
from nemo_gym.cli.folders import find_folder
from nemo_gym.cli.output import print_result, wants_json
from nemo_gym.common.paths import PARENT_DIR, find_uv
from nemo_gym.config.types import CommandConfig
from nemo_gym.errors import StartupError
from nemo_gym.runtime.venvs import python_for

_DEPENDENCIES = ("openai", "ray", "pydantic", "aiohttp", "uvicorn", "hydra-core", "omegaconf")


class DumpConfigConfig(CommandConfig):
    """Print the configuration that the other commands would use, as YAML.

    All files, env.yaml and the command line are merged, interpolations are resolved, and secrets are replaced by ****.
    A server without a configured port has no port yet.

    Examples:

    ```bash
    ng_dump_config "+config_paths=[resources_servers/mcqa/configs/mcqa.yaml]"
    ```
    """

    config_paths: list[str] | None = None
    """YAML files to merge."""


@command(DumpConfigConfig)
def dump_config() -> None:
    """Print the merged configuration without its secrets."""
    from omegaconf import OmegaConf

    from nemo_gym.config.loading import dump

    text = dump(read_command_line())
    if wants_json():
        print_result({"config": OmegaConf.to_container(OmegaConf.create(text))})
    else:
        print(text, end="")


class VersionConfig(CommandConfig):
    """Show the versions of NeMo Gym, Python, the main dependencies and the operating system.

    Examples:

    ```bash
    ng_version
    ng_version +json=true
    ```
    """

    model_config = ConfigDict(populate_by_name=True)

    json_format: bool = Field(default=False, alias="json")
    """Print a JSON object."""


@command(VersionConfig)
def version() -> None:
    """Show versions and installation paths."""
    parameters = read_parameters(VersionConfig)
    facts = version_facts()
    print_result(facts, json.dumps(facts, indent=2) if parameters.json_format else _as_text(facts))


def version_facts() -> dict[str, Any]:
    """Versions and paths, without importing the packages."""
    return {
        "nemo_gym": _version_of("nemo-gym"),
        "python": platform.python_version(),
        "python_path": sys.executable,
        "installation_path": str(PARENT_DIR),
        "dependencies": {name: _version_of(name) for name in _DEPENDENCIES},
        "system": {
            "os": f"{platform.system()} {platform.release()}",
            "platform": platform.platform(),
            "architecture": platform.machine(),
            "processor": platform.processor() or "unknown",
            "cpus": os.cpu_count(),
            "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 2),
        },
    }


def _version_of(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _as_text(facts: dict[str, Any]) -> str:
    lines = [
        f"NeMo Gym v{facts['nemo_gym']}",
        f"Python {facts['python']} ({facts['python_path']})",
        f"Installed in {facts['installation_path']}",
    ]
    for part in ("dependencies", "system"):
        lines += ["", f"{part.capitalize()}:"]
        lines += [f"  {name}: {'not installed' if value is None else value}" for name, value in facts[part].items()]
    return "\n".join(lines)


class PipListConfig(CommandConfig):
    """List the packages that a server folder runs with.

    A folder whose requirements are not met by the current environment has a virtualenv of its own, which is created if
    necessary.

    Examples:

    ```bash
    ng_pip_list +entrypoint=resources_servers/mcqa
    ng_pip_list +entrypoint=resources_servers/mcqa +format=json +outdated=true
    ```
    """

    entrypoint: str
    """The folder: resources_servers/<name>, responses_api_agents/<name> or responses_api_models/<name>."""

    format: Literal["columns", "freeze", "json"] | None = None
    """Output format."""

    outdated: bool = False
    """List only packages that have a newer version."""


@command(PipListConfig)
def pip_list() -> int:
    """List the packages that a server folder runs with."""
    parameters = read_parameters(PipListConfig)
    python = python_for(find_folder(parameters.entrypoint)) or sys.executable
    print(f"Packages of {python}", file=sys.stderr, flush=True)
    form = "json" if wants_json() else parameters.format
    options = [f"--format={form}"] if form else []
    options += ["--outdated"] if parameters.outdated else []
    listed = [_uv(), "pip", "list", "--python", python, *options]
    if not wants_json():
        return subprocess.run(listed, check=False).returncode
    done = subprocess.run(listed, stdout=subprocess.PIPE, check=False)
    print_result({"packages": json.loads(done.stdout or b"[]")})
    return done.returncode


def _uv() -> str:
    try:
        return find_uv()
    except StartupError as error:
        raise StartupError("uv is not installed. Install it with: pip install uv") from error
