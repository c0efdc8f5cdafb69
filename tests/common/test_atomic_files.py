"""Files appear whole or not at all, and never in place of what is still wanted."""

import contextlib
import os
import subprocess
import sys
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


def test_files_are_overwritten_only_with_the_option_and_the_input_never(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "out.jsonl", [{}])
    check_writable(tmp_path / "new.jsonl", overwrite=False)
    check_writable(path, overwrite=True)
    with pytest.raises(ConfigError, match=r"exists.*\+overwrite=true"):
        check_writable(path, overwrite=False)
    with pytest.raises(ConfigError, match="is what the command reads"):
        check_writable(tmp_path / "." / "out.jsonl", overwrite=True, sources=(path,))


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "taken.json").mkdir()
    with pytest.raises(StorageError, match=r"taken\.json: Is a directory"):
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


def test_what_killed_processes_left_is_removed_and_what_is_being_written_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "out[1].jsonl"
    program = (
        "import os, sys, time; from pathlib import Path; from nemo_gym.common.atomic_files import atomic_write\n"
        "with atomic_write(Path(sys.argv[1])) as file:\n    print('writing', flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", program, str(path)]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as killed,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as living,
    ):
        for process in (killed, living):
            assert process.stdout
            assert process.stdout.readline() == "writing\n"
        killed.kill()
        killed.wait()
        with atomic_write(path) as file:
            file.write(b"done")
        assert sorted(entry.name for entry in tmp_path.iterdir()) == [f".out[1].jsonl.{living.pid}.part", path.name]
        living.kill()


def test_a_device_or_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDWR)
    try:
        with atomic_write(path) as file:
            file.write(b"text")
        assert os.read(reader, 10) == b"text"
    finally:
        os.close(reader)
    assert path.is_fifo()
