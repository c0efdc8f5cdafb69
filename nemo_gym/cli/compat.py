"""Check folders that were written for the public package."""

import os
from pathlib import Path
from typing import ClassVar

from nemo_gym.cli.command import FAILED, command, read_parameters
from nemo_gym.common.paths import EXTRA_ROOTS_ENV_VAR
from nemo_gym.config.types import CommandConfig
from nemo_gym.errors import ConfigError


class CheckCompatConfig(CommandConfig):
    """Tell what in a folder of environments, agents, models or benchmarks resolves here, what does not, and why.

    Nothing is started: names are looked up, requirements compared, configurations read. The exit code is 1 if
    something does not resolve.

    Examples:

    ```bash
    ng_check_compat path/to/folder
    ```
    """

    POSITIONAL: ClassVar[tuple[str, ...]] = ("folder",)

    folder: str
    """A folder with `resources_servers/` and its siblings in it, or one server folder."""


@command(CheckCompatConfig)
def check_compat() -> int:
    """Check a folder of environments."""
    root = Path(read_parameters(CheckCompatConfig).folder)
    if not root.is_dir():
        raise ConfigError(f"{root} is not a folder.")
    os.environ[EXTRA_ROOTS_ENV_VAR] = str(_root_of(root.resolve()))
    from nemo_gym.compat.folder_check import check_folder

    reports = check_folder(root)
    for report in reports:
        state = "does not resolve" if report.problems else "resolves"
        print(f"{report.folder}: {state} ({report.names} names, {report.configs} configs)")
        for line in (*report.problems, *report.remarks):
            print(f"  {line}")
    bad = sum(bool(report.problems) for report in reports)
    print(f"{len(reports) - bad} of {len(reports)} folders resolve.")
    return FAILED if bad else 0


def _root_of(folder: Path) -> Path:
    """The folder that paths in configurations are relative to."""
    kinds = ("resources_servers", "responses_api_agents", "responses_api_models", "environments", "benchmarks")
    return next((parent.parent for parent in (folder, *folder.parents) if parent.name in kinds), folder)
