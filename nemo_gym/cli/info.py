"""Show what is set up here: the configuration, versions, packages, and which sandbox works."""

import json
import os
import platform
import subprocess
import sys
from importlib import metadata
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ConfigDict, Field

from nemo_gym.cli.command import FAILED, command, config_command, print_result, wants_json
from nemo_gym.cli.environments import find_folder
from nemo_gym.common.paths import PARENT_DIR, find_uv
from nemo_gym.config.types import CommandConfig
from nemo_gym.errors import StartupError
from nemo_gym.runtime.requirements import python_for

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from nemo_gym.sandbox.registry import Assessment

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


@config_command(DumpConfigConfig)
def dump_config(_options: DumpConfigConfig, config: "DictConfig") -> None:
    """Print the merged configuration without its secrets."""
    from omegaconf import OmegaConf

    from nemo_gym.config.loading import dump

    text = dump(config)
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
def version(parameters: VersionConfig) -> None:
    """Show versions and installation paths."""
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
def pip_list(parameters: PipListConfig) -> int:
    """List the packages that a server folder runs with."""
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


_LEVELS = {"full": "full", "partial": "partial (see below)", "none": "none"}


class DoctorConfig(CommandConfig):
    """Show which sandbox level holds on this machine, why, and the exact fix for what does not work.

    The exit code is 1 if model-written code cannot be run in any sandbox here.
    """


@command(DoctorConfig)
def doctor(_options: DoctorConfig) -> int:
    """Show which sandbox works on this machine."""
    from nemo_gym.sandbox.registry import assess

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


def _described(one: "Assessment") -> list[str]:
    lines = [f"  {'works' if one.works else 'no':<6} {one.name:<11} level: {one.level:<8} {one.reason}"]
    return lines if one.fix is None else [*lines, f"         fix: {one.fix}"]


def _verdict(best: "Assessment | None") -> str:
    if best is None:
        return (
            "No sandbox: model-written code is refused. Environments that run code need one of the fixes above, or "
            "'unconfined' named in their config."
        )
    return f"`auto` means '{best.name}' here, level {_LEVELS[best.level]}."
