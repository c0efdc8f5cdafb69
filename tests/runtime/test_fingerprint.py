"""Workers whose servers reply alike have equal fingerprints, wherever they run."""

import re
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.config.keys import changes
from nemo_gym.runtime.fingerprint import Fingerprint, make_fingerprint

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
    assert re.fullmatch(r"mine\.resources_servers\.mine\.limits\.steps: 4 .* 3 .*", steps)
    assert re.fullmatch(r"mine\.resources_servers\.mine\.max_results: missing .* 5 .*", results)


def test_a_worker_may_have_fewer_servers_but_no_others() -> None:
    one, two = (Fingerprint(version="1", servers={name: {} for name in names}) for names in (["a"], ["a", "b"]))
    assert one.differences(two) == []
    assert [line.partition(":")[0] for line in two.differences(one)] == ["b"]
    (version,) = one.differences(one.model_copy(update={"version": "2"}))
    assert re.fullmatch(r"nemo_gym: 1 .* 2 .*", version)


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ({"a": 1, "b": 2}, {"a": 2, "b": 2}, [(("a",), 1, 2)]),
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}, [(("a", 1, "b"), 2, 3)]),
        ([1], [1, 2, 3], [((1,), None, 2), ((2,), None, 3)]),
        ({"a": {"b": 1}}, {}, [(("a",), {"b": 1}, None)]),
        ({"a": []}, {"a": {}}, [(("a",), [], {})]),
        ({"a": {"b": [1, "x", None]}}, {"a": {"b": [1, "x", None]}}, []),
    ],
)
def test_changes_are_the_innermost_places_that_differ(before: Any, now: Any, expected: list[Any]) -> None:
    assert list(changes(before, now)) == expected
    assert [(path, old, new) for path, new, old in changes(now, before)] == expected
