"""Folders of servers as packages, and which of them need imports of their own."""

import subprocess
import sys
from pathlib import Path

import pytest

from nemo_gym.common.paths import _imports_by_bare_name, is_ours, package_of

LOAD_OURS = """
import sys
from pathlib import Path
from nemo_gym.common.paths import PARENT_DIR, SERVER_FOLDERS
from nemo_gym.runtime.class_loader import load_server_class

for kind in SERVER_FOLDERS:
    for app in sorted((PARENT_DIR / kind).glob("*/app.py")):
        load_server_class(kind, app.parent, "app.py").config_class()
print(*(name for name in sys.modules if name.startswith("nemo_gym.compat")))
"""


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("import helpers", True),
        ("import json, helpers", True),
        ("from helpers import x", True),
        ("from tools.search import x", True),
        ("    from helpers import x", True),
        ("from resources_servers.multineedle.app import x", True),
        ("from resources_servers.mine.helpers import x", False),
        ("from .helpers import x", False),
        ("import helpers_of_others", False),
        ("import json", False),
    ],
)
def test_an_import_of_a_sibling_by_its_bare_name_is_found(tmp_path: Path, line: str, expected: bool) -> None:
    (tmp_path / "tools").mkdir()
    for name in ("helpers.py", "tools/__init__.py", "tools/search.py"):
        (tmp_path / name).touch()
    (tmp_path / "app.py").write_text(f"def f():\n    pass\n{line}\n" if line[0] != " " else f"def f():\n{line}\n")
    assert _imports_by_bare_name(tmp_path) is expected


def test_a_folder_has_a_package_and_is_ours_or_not(tmp_path: Path) -> None:
    folder = tmp_path / "resources_servers" / "families" / "mine"
    assert package_of("resources_servers", folder) == "resources_servers.families.mine"
    assert not is_ours(folder)


def test_our_servers_are_loaded_without_compat() -> None:
    done = subprocess.run([sys.executable, "-c", LOAD_OURS], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
