"""An app.py that cannot be imported: its author sees their own line, not ours."""

from pathlib import Path

import pytest

from nemo_gym.errors import StartupError
from nemo_gym.runtime.class_loader import load_server_class

APP = "import sys\n\n{line}\n"


@pytest.mark.parametrize(
    ("name", "line", "message", "is_missing"),
    [
        ("lacks_package", "import pandaz", "`import pandaz` failed. ModuleNotFoundError: No module named", True),
        ("misspells", "print(gone)", "`print(gone)` failed. NameError: name 'gone' is not defined.", False),
        ("is_no_python", "def f(:", "`def f(:` failed. SyntaxError: invalid syntax.", False),
        (
            "lacks_name",
            "from nemo_gym.answers import no_such",
            "`from nemo_gym.answers import no_such` failed. ImportError: cannot import name 'no_such' from",
            False,
        ),
        (
            "lacks_module",
            "import nemo_gym.no_such",
            "`import nemo_gym.no_such` failed. ModuleNotFoundError: No module named 'nemo_gym.no_such'.",
            False,
        ),
    ],
)  # fmt: skip
def test_the_authors_line_is_shown(name: str, line: str, message: str, is_missing: bool, tmp_path: Path) -> None:
    folder = tmp_path / "resources_servers" / name
    folder.mkdir(parents=True)
    (folder / "app.py").write_text(APP.format(line=line))
    with pytest.raises(StartupError) as raised:
        load_server_class("resources_servers", folder, "app.py")
    text = str(raised.value)
    assert text.startswith(f"{folder / 'app.py'}:3: {message}")
    assert "\n" not in text
    assert (str(folder / "requirements.txt") in text) is is_missing


def test_the_line_may_be_in_another_file_of_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "resources_servers" / "has_helpers"
    folder.mkdir(parents=True)
    (folder / "app.py").write_text("import helpers_of_mine\n")
    (folder / "helpers_of_mine.py").write_text("\nimport pandaz\n")
    with pytest.raises(StartupError) as raised:
        load_server_class("resources_servers", folder, "app.py")
    assert str(raised.value).startswith(f"{folder / 'helpers_of_mine.py'}:2: `import pandaz` failed.")
