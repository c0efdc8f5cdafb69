"""Files appear whole or not at all, and never in place of what is still wanted."""

import contextlib
from pathlib import Path

import pytest

from nemo_gym.common.atomic_files import atomic_write, check_writable, write_json
from nemo_gym.errors import ConfigError, MissingPathError, StorageError
from tests.jsonl import write_lines


def test_a_file_appears_only_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "out.jsonl"
    with atomic_write(path) as file:
        file.write(b"old\n")
        assert not path.exists()
    with contextlib.suppress(RuntimeError), atomic_write(path) as file:
        file.write(b"new\n")
        raise RuntimeError("half way")
    assert [entry.read_bytes() for entry in path.parent.iterdir()] == [b"old\n"]


def test_nothing_is_written_over_unless_told_so_and_never_what_is_read(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "out.jsonl", [{}])
    check_writable(tmp_path / "new.jsonl", overwrite=False)
    check_writable(path, overwrite=True)
    with pytest.raises(ConfigError, match=r"exists.*\+overwrite=true"):
        check_writable(path, overwrite=False)
    with pytest.raises(ConfigError, match="is what the command reads"):
        check_writable(tmp_path / "." / "out.jsonl", overwrite=True, sources=(path,))


def test_a_file_that_cannot_be_written_is_told_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "taken.json").mkdir()
    with pytest.raises(StorageError, match=r"Cannot write .*taken\.json: Is a directory"):
        write_json(tmp_path / "taken.json", {})
    assert [path.name for path in tmp_path.iterdir()] == ["taken.json"]
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"Cannot create the folder .*file"):
        write_json(tmp_path / "file" / "new.json", {})
    (tmp_path / "file").unlink()
    missing = tmp_path / "missing"
    with pytest.raises(FileNotFoundError), atomic_write(tmp_path / "new.json"):
        missing.read_bytes()
    with pytest.raises(MissingPathError), atomic_write(tmp_path / "new.json"):
        raise MissingPathError("no such dataset")
