"""Folders in one interpreter do not see each other's modules."""

from pathlib import Path
from uuid import uuid4

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


@pytest.fixture
def own() -> str:
    """A part of names that no other test has, nor this one when it is repeated."""
    return uuid4().hex


def folder_of(root: Path, name: str, app: str) -> Path:
    folder = root / "resources_servers" / name
    (folder / "package").mkdir(parents=True)
    (folder / "app.py").write_text(app)
    (folder / "helpers.py").write_text(f"NAME = {name!r}")
    (folder / "late_helpers.py").write_text("import helpers\nWHERE = 'late ' + helpers.NAME")
    (folder / "package/__init__.py").write_text("")
    (folder / "package/inner.py").write_text("from helpers import NAME\nDEEP = 'deep ' + NAME")
    return folder


def test_each_folder_finds_its_own_siblings_also_late(tmp_path: Path, own: str) -> None:
    for name in (f"one_{own}", f"two_{own}"):
        kind = load_server_class("resources_servers", folder_of(tmp_path, name, APP), "app.py")
        assert kind.names == (name, name, f"deep {name}", f"deep {name}")  # type: ignore[attr-defined]
        assert kind.late(None) == f"late {name}"  # type: ignore[attr-defined]
        assert kind.__module__ == f"resources_servers.{name}.app"


def test_the_class_that_the_entry_point_runs_is_taken(tmp_path: Path, own: str) -> None:
    source = APP + "\n\nclass Other(Base):\n    pass\n\n\nif __name__ == '__main__':\n    Base.run_webserver()\n"
    kind = load_server_class("resources_servers", folder_of(tmp_path, f"main_{own}", source), "app.py")
    assert kind.__name__ == "Base"


def test_without_one_the_last_server_class_is_taken(tmp_path: Path, own: str) -> None:
    source = APP + "\n\nclass Other(Base):\n    pass\n"
    kind = load_server_class("resources_servers", folder_of(tmp_path, f"last_{own}", source), "app.py")
    assert kind.__name__ == "Other"


def test_a_file_without_a_server_is_an_error_that_says_what_is_expected(tmp_path: Path, own: str) -> None:
    folder = folder_of(tmp_path, f"empty_{own}", "x = 1")
    with pytest.raises(ConfigError, match=r"no server.*SimpleResourcesServer"):
        load_server_class("resources_servers", folder, "app.py")
    with pytest.raises(ConfigError, match=r"has no 'main\.py'"):
        load_server_class("resources_servers", folder, "main.py")


def test_an_implementation_may_be_a_folder_in_a_folder(tmp_path: Path, own: str) -> None:
    kind = load_server_class("resources_servers", folder_of(tmp_path, f"outer_{own}/inner", APP), "app.py")
    assert kind.__module__ == f"resources_servers.outer_{own}.inner.app"
    assert kind.late(None) == f"late outer_{own}/inner"  # type: ignore[attr-defined]


def test_a_second_name_of_a_folder_can_be_imported_in_a_worker(tmp_path: Path, own: str) -> None:
    source = f"import resources_servers.multineedle.app as other\n{APP}"
    kind = load_server_class("resources_servers", folder_of(tmp_path, f"alias_{own}", source), "app.py")
    assert kind.__module__ == f"resources_servers.alias_{own}.app"
