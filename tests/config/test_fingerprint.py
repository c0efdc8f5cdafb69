"""Workers whose servers reply alike have equal fingerprints, wherever they run."""

from pathlib import Path
from typing import Any

import pytest

from nemo_gym.config.fingerprint import Fingerprint, make_fingerprint

BLOCK = {"entrypoint": "app.py", "prompt_fpath": "prompt.txt", "limits": {"steps": 3}}


def fingerprint_in(folder: Path, monkeypatch: pytest.MonkeyPatch, **config: Any) -> Fingerprint:
    """That of a server whose code and prompt are in `folder`."""
    monkeypatch.chdir(folder)
    return make_fingerprint({"mine": {"resources_servers": {"mine": {**BLOCK, **config}}}})


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Those of two machines with the same files."""
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        (folder / "resources_servers/mine").mkdir(parents=True)
        (folder / "resources_servers/mine/app.py").write_text("code = 1")
        (folder / "prompt.txt").write_text("Judge this.")
    return here, there


@pytest.mark.parametrize(
    "own",
    [
        {},
        {"host": "10.0.0.2", "port": 7, "num_workers": 8},
        {"base_url": "http://node-7/v1", "urls": ["http://node-8"]},
        {"api_key": "another"},
        {"log_dir": "/var/log/mine", "cache_dirpath": "/scratch", "output_fpath": "out.jsonl", "venv_path": "/v"},
        {"prompt_fpath": "renamed.txt"},
        {"unset": None},
    ],
)
def test_what_may_differ_from_machine_to_machine_does_not_count(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, own: dict[str, Any]
) -> None:
    (folders[1] / "renamed.txt").write_text("Judge this.")
    run = fingerprint_in(folders[0], monkeypatch, api_key="a key", base_url="http://node-1/v1", port=1)
    worker = fingerprint_in(folders[1], monkeypatch, **own)
    assert (worker.differences(run), run.differences(worker)) == ([], [])


def test_settings_code_and_named_files_count(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    run = fingerprint_in(folders[0], monkeypatch, max_results=5)
    (folders[1] / "resources_servers/mine/app.py").write_text("code = 2")
    (folders[1] / "resources_servers/mine/more.py").write_text("")
    (folders[1] / "prompt.txt").write_text("Judge that.")
    worker = fingerprint_in(folders[1], monkeypatch, limits={"steps": 4})
    *files, prompt, steps, results = worker.differences(run)
    assert [line.partition(":")[0] for line in files] == [
        f"resources_servers/mine/{name}.py" for name in ("app", "more")
    ]
    assert prompt.startswith("mine.resources_servers.mine.prompt_fpath: content ")
    assert steps == "mine.resources_servers.mine.limits.steps: 4 in this worker, 3 in the run"
    assert results == "mine.resources_servers.mine.max_results: missing in this worker, 5 in the run"


def test_a_worker_may_have_fewer_servers_but_no_others() -> None:
    one, two = (Fingerprint(version="1", servers={name: {} for name in names}) for names in (["a"], ["a", "b"]))
    assert one.differences(two) == []
    assert two.differences(one) == ["b: the run has no such server"]
    assert one.differences(one.model_copy(update={"version": "2"})) == ["nemo_gym: 1 in this worker, 2 in the run"]
