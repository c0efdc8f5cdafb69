"""Folders in one interpreter do not see each other's modules."""

from pathlib import Path

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.runtime.class_loader import load_server_class

APP = """
from typing import ClassVar

import helpers
from helpers import NAME
from package.inner import DEEP
import package.inner

from nemo_gym.base_resources_server import SimpleResourcesServer


class Base(SimpleResourcesServer):
    names: ClassVar = (NAME, helpers.NAME, DEEP, package.inner.DEEP)

    def late(self):
        from late_helpers import WHERE
        return WHERE

    async def verify(self, body: dict) -> float:
        return 0.0
"""


def folder_of(root: Path, name: str, app: str) -> Path:
    folder = root / "resources_servers" / name
    (folder / "package").mkdir(parents=True)
    (folder / "app.py").write_text(app)
    (folder / "helpers.py").write_text(f"NAME = {name!r}")
    (folder / "late_helpers.py").write_text("import helpers\nWHERE = 'late ' + helpers.NAME")
    (folder / "package/__init__.py").write_text("")
    (folder / "package/inner.py").write_text("from helpers import NAME\nDEEP = 'deep ' + NAME")
    return folder


def test_each_folder_finds_its_own_siblings_also_late(tmp_path: Path) -> None:
    for name in ("loader_one", "loader_two"):
        kind = load_server_class("resources_servers", folder_of(tmp_path, name, APP), "app.py")
        assert kind.names == (name, name, f"deep {name}", f"deep {name}")  # type: ignore[attr-defined]
        assert kind.late(None) == f"late {name}"  # type: ignore[attr-defined]
        assert kind.__module__ == f"resources_servers.{name}.app"


def test_the_class_that_the_entry_point_runs_is_taken(tmp_path: Path) -> None:
    source = APP + "\n\nclass Other(Base):\n    pass\n\n\nif __name__ == '__main__':\n    Base.run_webserver()\n"
    kind = load_server_class("resources_servers", folder_of(tmp_path, "loader_main", source), "app.py")
    assert kind.__name__ == "Base"


def test_without_one_the_last_server_class_is_taken(tmp_path: Path) -> None:
    source = APP + "\n\nclass Other(Base):\n    pass\n"
    kind = load_server_class("resources_servers", folder_of(tmp_path, "loader_last", source), "app.py")
    assert kind.__name__ == "Other"


def test_a_file_without_a_server_is_an_error_that_says_what_is_expected(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "loader_empty", "x = 1")
    with pytest.raises(ConfigError, match=r"defines no server\. Expected a subclass of SimpleResourcesServer"):
        load_server_class("resources_servers", folder, "app.py")
    with pytest.raises(ConfigError, match=r"has no 'main\.py'"):
        load_server_class("resources_servers", folder, "main.py")


def test_an_implementation_may_be_a_folder_in_a_folder(tmp_path: Path) -> None:
    kind = load_server_class("resources_servers", folder_of(tmp_path, "loader_outer/inner", APP), "app.py")
    assert kind.__module__ == "resources_servers.loader_outer.inner.app"
    assert kind.late(None) == "late loader_outer/inner"  # type: ignore[attr-defined]


def test_a_second_name_of_a_folder_can_be_imported_in_a_worker(tmp_path: Path) -> None:
    source = f"import resources_servers.multineedle.app as other\n{APP}"
    kind = load_server_class("resources_servers", folder_of(tmp_path, "loader_alias", source), "app.py")
    assert kind.__module__ == "resources_servers.loader_alias.app"
