"""The GitLab commands, against a server with the registry's behaviour."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from nemo_gym.data.hubs import HubError, gitlab
from nemo_gym.data.hubs.gitlab import (
    DownloadJsonlDatasetGitlabConfig,
    MLFlowConfig,
    UploadJsonlDatasetGitlabConfig,
)
from nemo_gym.testing import rows_of
from tests.data.conftest import NgHere
from tests.data.datasets import dataset, row, write_config, write_rows
from tests.data.faulty_server import Fault, Reply, served
from tests.data.gitlab_server import TOKEN, GitlabServer, etag_of
from tests.data.hub_server import TOKEN as HUB_TOKEN
from tests.data.hub_server import HubServer

ROWS = b'{"a": 1}\n' * 1000


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GitlabServer]:
    server = GitlabServer()
    with served(server):
        monkeypatch.chdir(tmp_path)
        yield server


def keys(registry: GitlabServer, token: str = TOKEN) -> dict[str, str]:
    return {"mlflow_tracking_uri": registry.tracking_uri, "mlflow_tracking_token": token}


class Run(Protocol):
    def __call__(self, name: str, *arguments: str, env: dict[str, Any], answer: str = "") -> tuple[int, str]: ...


@pytest.fixture
def run(tmp_path: Path, ng_here: NgHere) -> Run:
    """The exit code of a command and all that it showed. No token may be."""

    def run(name: str, *arguments: str, env: dict[str, Any], answer: str = "") -> tuple[int, str]:
        (tmp_path / "env.yaml").write_text(json.dumps(env))
        done = ng_here(name, *arguments, answer=answer)
        shown = done.stdout + done.stderr
        assert TOKEN not in shown
        assert HUB_TOKEN not in shown
        return done.returncode, shown

    return run


def upload(registry: GitlabServer, **changes: str) -> gitlab.Uploaded:
    values = {"dataset_name": "My_Model", "version": "0.0.1", "input_jsonl_fpath": "a.jsonl", **keys(registry)}
    return gitlab.upload(UploadJsonlDatasetGitlabConfig.model_validate(values | changes))


def download(registry: GitlabServer, **changes: str) -> Path:
    values = {"dataset_name": "m", "version": "0.0.1", "artifact_fpath": "a.jsonl", "output_fpath": "out/a.jsonl"}
    return gitlab.download(DownloadJsonlDatasetGitlabConfig.model_validate(values | keys(registry) | changes))


def test_a_dataset_is_uploaded_and_downloaded(tmp_path: Path, registry: GitlabServer, run: Run) -> None:
    (tmp_path / "a.jsonl").write_bytes(ROWS)
    arguments = ("+dataset_name=My_Model", "+version=0.0.1", "+input_jsonl_fpath=a.jsonl")
    code, shown = run("ng_upload_dataset_to_gitlab", *arguments, env=keys(registry))
    assert code == 0, shown
    assert registry.models == {"My_Model": {"0.0.1": {"a.jsonl": ROWS}}}
    [line_shown] = [line for line in shown.splitlines() if line.startswith("ng_download_dataset_from_gitlab")]
    command, *options = line_shown.split()
    code, shown = run(command, *options[:-1], "+output_fpath=out/b.jsonl", env=keys(registry))
    assert code == 0, shown
    assert (tmp_path / "out/b.jsonl").read_bytes() == ROWS


def test_a_second_file_goes_into_the_same_version(tmp_path: Path, registry: GitlabServer) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_bytes(ROWS)
        upload(registry, input_jsonl_fpath=name)
    assert sorted(registry.models["My_Model"]["0.0.1"]) == ["a.jsonl", "b.jsonl"]


def broken_off(content: bytes, sent_bytes: int, etag: str | None = None) -> Fault:
    """The first download of a file ends early."""
    headers = {"Content-Type": "application/octet-stream", "ETag": etag or etag_of(content)}
    return Fault("GET /files/", Reply(200, content, headers, sent_bytes=sent_bytes))


@pytest.mark.parametrize("supports_ranges", [True, False])
def test_a_download_that_breaks_off_half_way_is_completed(
    tmp_path: Path, registry: GitlabServer, *, supports_ranges: bool
) -> None:
    registry.models["m"] = {"0.0.1": {"a.jsonl": ROWS}}
    registry.supports_ranges = supports_ranges
    registry.faults = [broken_off(ROWS, len(ROWS) // 2)]
    download(registry)
    assert (tmp_path / "out/a.jsonl").read_bytes() == ROWS
    first, second = registry.calls("GET /files/")
    assert "range" not in first.headers
    assert "range" in second.headers


NEWER = b'{"b": 2}\n' * 1000
"""As long as `ROWS`, to the byte."""


@pytest.mark.parametrize(
    "second",
    [
        Reply(206, NEWER[4500:], {"Content-Range": "bytes 4500-8999/9000", "ETag": etag_of(NEWER)}),
        Reply(206, NEWER, {"Content-Range": "bytes 0-8999/9000"}),
        Reply(206, NEWER, {}),
        Reply(206, NEWER[4500:], {"Content-Range": "bytes 4500-8999/12000"}),
        None,
    ],
    ids=["another file", "from the start", "no range", "another size", "ignores If-Range"],
)
def test_a_download_never_joins_parts_of_two_versions(
    tmp_path: Path, registry: GitlabServer, second: Reply | None
) -> None:
    registry.models["m"] = {"0.0.1": {"a.jsonl": NEWER}}
    registry.faults = [broken_off(ROWS, 4500), *([] if second is None else [Fault("GET /files/", second)])]
    download(registry)
    assert (tmp_path / "out/a.jsonl").read_bytes() == NEWER


def test_without_a_strong_etag_a_download_starts_again(tmp_path: Path, registry: GitlabServer) -> None:
    registry.models["m"] = {"0.0.1": {"a.jsonl": NEWER}}
    registry.faults = [broken_off(ROWS, 4500, etag='W/"same"')]
    download(registry)
    assert (tmp_path / "out/a.jsonl").read_bytes() == NEWER


PAGE = b'<?xml version="1.0"?>\n<!-- proxy -->\n<!DOCTYPE html><html>sign in</html>'


@pytest.mark.parametrize(
    "reply",
    [
        Reply(401, PAGE, {"Content-Type": "text/html"}),
        Reply(404, PAGE, {"Content-Type": "text/html"}),
        Reply(200, PAGE, {"Content-Type": "text/html"}),
        Reply(200, PAGE, {"Content-Type": "application/octet-stream"}),
        Reply(200, ROWS[:4503], {"Content-Type": "application/octet-stream"}, has_length=False),
    ],
    ids=["401", "404", "login page", "page called data", "no length"],
)
def test_what_is_not_the_whole_file_is_never_saved_as_data(
    tmp_path: Path, registry: GitlabServer, reply: Reply
) -> None:
    registry.models["m"] = {"0.0.1": {"a.jsonl": ROWS}}
    registry.faults = [Fault("GET /files/", reply, times=9)]
    with pytest.raises(HubError):
        download(registry)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_server_error_is_tried_again(tmp_path: Path, registry: GitlabServer) -> None:
    registry.models["m"] = {"0.0.1": {"a.jsonl": ROWS}}
    registry.faults = [Fault("GET .*/runs/get", Reply(500, b"oops"))]
    download(registry)
    assert (tmp_path / "out/a.jsonl").read_bytes() == ROWS


def test_a_missing_version_and_a_wrong_token_are_reported(registry: GitlabServer) -> None:
    registry.models["m"] = {}
    with pytest.raises(HubError, match=r"no version 0.0.1 of 'm'"):
        download(registry)
    with pytest.raises(HubError, match="Check mlflow_tracking_token") as caught:
        download(registry, mlflow_tracking_token="glpat-wrong-token-00")
    assert "glpat-wrong-token-00" not in str(caught.value)


def test_the_token_is_not_sent_to_another_host(registry: GitlabServer) -> None:
    registry.models["m"] = {"0.0.1": {}}
    elsewhere = {"run": {"info": {"artifact_uri": "http://127.0.0.2:9/files"}}}
    registry.faults = [Fault("GET .*/runs/get", Reply.json(elsewhere))]
    with pytest.raises(HubError, match="another host"):
        download(registry)


def test_names_are_case_sensitive(registry: GitlabServer) -> None:
    registry.models = {"My_Model": {}, "other": {}}
    config = MLFlowConfig.model_validate(keys(registry))
    assert gitlab.has_dataset(config, "My_Model")
    assert not gitlab.has_dataset(config, "my_model")


@pytest.mark.parametrize(("answer", "is_deleted"), [("YES\n", True), ("n\n", False), ("", False)])
def test_a_dataset_is_deleted_once_that_is_confirmed(
    tmp_path: Path, registry: GitlabServer, run: Run, answer: str, *, is_deleted: bool
) -> None:
    registry.models = {"My_Model": {"0.0.1": {}}, "my_model": {}}
    arguments = ("+dataset_name=My_Model",)
    code, shown = run("ng_delete_dataset_from_gitlab", *arguments, env=keys(registry), answer=answer)
    assert code == 0
    assert (
        "[Nemo-Gym] - Found model 'My_Model' in the registry. Are you sure you want to delete it from Gitlab?" in shown
    )
    assert ("Deleted" in shown, "Skipped deletion" in shown) == (is_deleted, not is_deleted)
    assert ("My_Model" not in registry.models) is is_deleted
    assert "my_model" in registry.models


def test_there_is_no_question_about_an_absent_dataset(tmp_path: Path, registry: GitlabServer, run: Run) -> None:
    code, shown = run("ng_delete_dataset_from_gitlab", "+dataset_name=gone", env=keys(registry))
    assert code == 0
    assert "Are you sure" not in shown
    assert "No model 'gone'" in shown


def test_a_dataset_moves_from_gitlab_to_hugging_face(
    tmp_path: Path, registry: GitlabServer, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.models = {"My_Model": {"0.0.1": {}}}
    write_rows(tmp_path / "a.jsonl", [row("a")])
    hub = HubServer(collections={"org/c-1": []})
    settings = {"hf_token": HUB_TOKEN, "hf_organization": "org", "hf_collection_name": "c", "hf_collection_slug": "1"}
    arguments = (
        "+dataset_name=My_Model",
        "+input_jsonl_fpath=a.jsonl",
        "+resource_config_path=resources_servers/mcqa/configs/mcqa.yaml",
    )
    with served(hub):
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        env = settings | keys(registry)
        hub.faults = [Fault("POST .*/commit/", Reply.json({"error": "no"}, 403))]
        code, shown = run("ng_gitlab_to_hf_dataset", *arguments, env=env, answer="y\n")
        assert code == 1
        assert "Are you sure" not in shown
        assert registry.models == {"My_Model": {"0.0.1": {}}}
        assert registry.requests == []
        code, shown = run("ng_gitlab_to_hf_dataset", *arguments, env=env, answer="y\n")
        assert code == 0, shown
        assert "Dataset upload successful" in shown
        assert registry.models == {}
        forbidden = run("ng_gitlab_to_hf_dataset", *arguments, "+delete_from_gitlab=true", env=env)
        assert forbidden[0] == 2
        assert "Forbidden fields present: delete_from_gitlab" in forbidden[1]


def test_missing_datasets_are_downloaded_from_gitlab(tmp_path: Path, registry: GitlabServer, run: Run) -> None:
    content = json.dumps(row("a")).encode() + b"\n"
    registry.models = {"m": {"0.0.1": {"sub/train.jsonl": content}}}
    place = {"dataset_name": "m", "version": "0.0.1", "artifact_fpath": "sub/train.jsonl"}
    write_config(tmp_path / "config.yaml", one=[dataset("d/t.jsonl", gitlab_identifier=place)])
    arguments = (
        "+config_paths=[config.yaml]",
        "+output_dirpath=out",
        "+mode=train_preparation",
        "+should_download=true",
    )
    code, shown = run("ng_prepare_data", *arguments, "+data_source=gitlab", env={})
    assert code == 1
    assert "mlflow_tracking_uri and mlflow_tracking_token" in shown
    code, shown = run("ng_prepare_data", *arguments, "+data_source=gitlab", env=keys(registry))
    assert code == 0, shown
    assert len(rows_of(tmp_path / "out/train.jsonl")) == 1
