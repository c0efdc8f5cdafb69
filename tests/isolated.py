"""Folders whose requirements conflict with ours: the launcher makes a virtualenv for each. `python -m tests.isolated`
makes them all."""

import sys
from pathlib import Path

import pytest

from nemo_gym.common.paths import PARENT_DIR
from nemo_gym.errors import StartupError
from nemo_gym.runtime.requirements import python_for

VERIFIERS = PARENT_DIR / "responses_api_agents/verifiers_agent"
OPENENV = PARENT_DIR / "tests/servers/openenv_server"


def interpreter_for(folder: Path) -> str:
    """The python with the requirements of a folder; the test is skipped if they cannot be installed."""
    try:
        return python_for(folder) or sys.executable
    except StartupError as error:
        pytest.skip(f"the requirements of {folder.name} cannot be installed here: {error}"[:2000])


def main() -> int:
    failures = 0
    for folder in (VERIFIERS, OPENENV):
        try:
            python_for(folder)
        except StartupError as error:
            failures += 1
            print(error, file=sys.stderr)
    return failures


if __name__ == "__main__":
    sys.exit(main())
