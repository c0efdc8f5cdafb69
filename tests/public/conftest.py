from pathlib import Path

import pytest

from tests.public.project_copy import copy_project

collect_ignore = ["project"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return copy_project(tmp_path)
