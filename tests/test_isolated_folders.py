"""Folders whose requirements conflict with ours are tested in the virtualenv that the launcher makes for them."""

import subprocess

import pytest

from nemo_gym.common.paths import PARENT_DIR
from tests.isolated import VERIFIERS, interpreter_for


@pytest.mark.slow
def test_verifiers_is_tested_in_its_own_virtualenv() -> None:
    folder = str(VERIFIERS.relative_to(PARENT_DIR))
    tests = ["tests/test_conformance.py", "tests/test_verifiers_export.py", folder, "-k", "verifiers"]
    command = [interpreter_for(VERIFIERS), "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(command, cwd=PARENT_DIR, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    assert "skipped" not in done.stdout, done.stdout[-5000:]
