"""The Hugging Face commands, with the real client, against a server that speaks the hub's protocol."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.data.hubs import HubError, hugging_face
from nemo_gym.data.hubs.hugging_face import (
    DownloadJsonlDatasetHuggingFaceConfig,
    Uploaded,
    UploadJsonlDatasetHuggingFaceConfig,
)
from nemo_gym.testing import rows_of
from tests.commands import ng
from tests.data.conftest import NgHere
from tests.data.datasets import dataset, row, write_config, write_rows
from tests.data.faulty_server import Fault, Reply, served
from tests.data.hub_server import TOKEN, HubServer, Repo

pytest.importorskip("huggingface_hub")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

REPO = "nvidia/Nemotron-RL-instruction_following-My_Data"
COLLECTION = "nvidia/my-collection-abc123"
SETTINGS: dict[str, Any] = {
    "hf_token": TOKEN,
    "hf_organization": "nvidia",
    "hf_collection_name": "My Collection",
    "hf_collection_slug": "abc123",
    "resource_config_path": "resources_servers/multineedle/configs/multineedle.yaml",
    "input_jsonl_fpath": "train.jsonl",
}
ROWS = b'{"a": 1}\n{"a": 2}\n'


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    server = HubServer(collections={COLLECTION: []})
    with served(server):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")  # large files by LFS, which the server speaks
        # As if the client had been imported with this environment, whichever test has imported it before.
        monkeypatch.setattr("huggingface_hub.constants.HF_URL_HOSTS", frozenset(("127.0.0.1",)))
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield server


def upload_command(cwd: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    (cwd / "env.yaml").write_text(json.dumps(SETTINGS))
    done = ng("ng_upload_dataset_to_hf", "+dataset_name=My_Data", *arguments, cwd=cwd)
    assert TOKEN not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def upload(**options: Any) -> Uploaded:
    return hugging_face.upload(UploadJsonlDatasetHuggingFaceConfig(**SETTINGS, dataset_name="My_Data", **options))


def download(**options: Any) -> list[Path]:
    return hugging_face.download(DownloadJsonlDatasetHuggingFaceConfig(repo_id=REPO, **options))


def test_a_large_dataset_is_created_filled_by_lfs_and_collected(tmp_path: Path, hub: HubServer) -> None:
    path = write_rows(tmp_path / "train.jsonl", [row("x" * 3000)])
    hub.faults = [Fault("PUT /storage/", Reply.json({"error": "slow down"}, 429, **{"Retry-After": "0"}))]
    done = upload_command(tmp_path, "+commit_message=First", "+commit_description=One row")
    assert done.returncode == 0, done.stderr
    assert "[Nemo-Gym] - Dataset upload successful" in done.stdout
    assert hub.repos[REPO].revisions["main"] == {"train.jsonl": path.read_bytes()}
    assert hub.collections[COLLECTION] == [REPO]
    assert (hub.commits[0]["summary"], hub.commits[0]["description"]) == ("First", "One row")
    assert list(hub.lfs.values()) == [path.read_bytes()]
    assert len(hub.calls("PUT /storage/")) == 2


def test_a_pull_request_needs_no_write_access(tmp_path: Path, hub: HubServer, ng_here: NgHere) -> None:
    write_rows(tmp_path / "train.jsonl", [row("a")])
    hub.repos[REPO], hub.read_only = Repo(), True
    with pytest.raises(HubError, match="403"):
        upload()
    (tmp_path / "env.yaml").write_text(json.dumps(SETTINGS))
    done = ng_here(
        "ng_upload_dataset_to_hf",
        "+dataset_name=My_Data",
        "+create_pr=true",
        "+revision=my-branch",
        "+commit_message=Add it",
    )
    assert done.returncode == 0, done.stderr
    assert f"[Nemo-Gym] - Pull Request created: {hub.url}/datasets/{REPO}/discussions/1" in done.stdout
    assert hub.repos[REPO].pull_requests == [{"against": "main", "title": "Add it"}]


def test_a_wrong_token_is_an_error_and_never_shown(tmp_path: Path, hub: HubServer, ng_here: NgHere) -> None:
    write_rows(tmp_path / "train.jsonl", [row("a")])
    (tmp_path / "env.yaml").write_text(json.dumps(SETTINGS | {"hf_token": "hf_wrong_token_5678"}))
    done = ng_here("ng_upload_dataset_to_hf", "+dataset_name=My_Data")
    assert done.returncode == 1
    assert "answered 401" in done.stderr
    assert "hf_wrong_token_5678" not in done.stderr + done.stdout


def test_a_dataset_that_is_collected_already_is_not_added_again(tmp_path: Path, hub: HubServer) -> None:
    hub.collections[COLLECTION] = [REPO.lower()]
    write_rows(tmp_path / "train.jsonl", [row("a")])
    assert upload() == Uploaded(REPO, None, [])
    assert hub.collections[COLLECTION] == [REPO.lower()]


def test_rows_for_training_must_have_parameters(tmp_path: Path, hub: HubServer) -> None:
    (tmp_path / "train.jsonl").write_text('{"responses_create_params": {}}\n{"question": "?"}\n')
    with pytest.raises(HubError, match=r"train.jsonl:2 "):
        upload()
    assert hub.requests == []
    upload(split="validation")
    assert "train.jsonl" in hub.repos[REPO].revisions["main"]


def test_a_pull_request_with_a_revision_makes_the_branch(tmp_path: Path, hub: HubServer) -> None:
    write_rows(tmp_path / "train.jsonl", [row("a")])
    assert upload(create_pr=True, revision="my-branch").pull_request_url
    assert hub.repos[REPO].pull_requests[0]["against"] == "my-branch"


def test_a_revision_alone_must_exist(tmp_path: Path, hub: HubServer) -> None:
    write_rows(tmp_path / "train.jsonl", [row("a")])
    hub.repos[REPO] = Repo({"main": {}, "there": {}})
    upload(revision="there")
    assert "train.jsonl" in hub.repos[REPO].revisions["there"]
    with pytest.raises(HubError, match="Hugging Face answered 404"):
        upload(revision="gone")


@pytest.mark.parametrize(
    ("status", "message"), [(401, "Check hf_token"), (403, "+create_pr=true"), (400, "answered 400")]
)
def test_a_refused_upload_is_an_error(tmp_path: Path, hub: HubServer, status: int, message: str) -> None:
    write_rows(tmp_path / "train.jsonl", [row("a")])
    hub.faults = [Fault("POST .*/commit/", Reply.json({"error": f"no, {TOKEN}"}, status), times=9)]
    with pytest.raises(HubError) as caught:
        upload()
    assert message in str(caught.value)
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize("pattern", ["POST .*/commit/", "POST /api/repos/create", "GET /api/collections"])
def test_a_throttled_upload_is_tried_again(tmp_path: Path, hub: HubServer, pattern: str) -> None:
    write_rows(tmp_path / "train.jsonl", [row("a")])
    hub.faults = [Fault(pattern, Reply.json({"error": "slow down"}, 429, **{"Retry-After": "0"}))]
    upload()
    assert len(hub.calls(pattern)) == 2
    assert "train.jsonl" in hub.repos[REPO].revisions["main"]


def test_a_file_is_downloaded_as_it_is_without_a_token(tmp_path: Path, hub: HubServer, ng_here: NgHere) -> None:
    hub.repos[REPO] = Repo({"main": {"sub/rows.jsonl": ROWS}})
    arguments = (f"+repo_id={REPO}", "+artifact_fpath=sub/rows.jsonl", "+output_dirpath=out")
    done = ng_here("ng_download_dataset_from_hf", *arguments)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out/rows.jsonl").read_bytes() == ROWS
    assert download(artifact_fpath="sub/rows.jsonl", output_fpath="x/y.jsonl") == [Path("x/y.jsonl")]
    assert (tmp_path / "x/y.jsonl").read_bytes() == ROWS


def test_splits_are_downloaded_as_jsonl(tmp_path: Path, hub: HubServer) -> None:
    pq.write_table(pa.table({"a": [3, 4], "b": [{"c": "x"}, {"c": "y"}]}), tmp_path / "part.parquet")
    files = {
        "README.md": b"# data",
        "data/train-00000-of-00002.parquet": (tmp_path / "part.parquet").read_bytes(),
        "data/train-00001-of-00002.jsonl": ROWS,
        "validation.csv": b"a,b\n5,six\n",
    }
    hub.repos[REPO] = Repo({"main": files})
    download(output_dirpath="out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["train.jsonl", "validation.jsonl"]
    train = [{"a": 3, "b": {"c": "x"}}, {"a": 4, "b": {"c": "y"}}, {"a": 1}, {"a": 2}]
    assert rows_of(tmp_path / "out/train.jsonl") == train
    assert rows_of(tmp_path / "out/validation.jsonl") == [{"a": "5", "b": "six"}]
    assert download(output_fpath="one.jsonl", split="validation") == [Path("one.jsonl")]
    with pytest.raises(HubError, match=r"'test'. .*: train, validation"):
        download(output_fpath="two.jsonl", split="test")


def test_files_without_a_split_in_their_name_are_for_training(tmp_path: Path, hub: HubServer) -> None:
    hub.repos[REPO] = Repo({"main": {"my_data.jsonl": ROWS}})
    assert download(output_dirpath="out") == [Path("out/train.jsonl")]


def test_a_revision_is_downloaded(tmp_path: Path, hub: HubServer) -> None:
    hub.repos[REPO] = Repo({"main": {"a.jsonl": ROWS}, "refs/pr/1": {"a.jsonl": b'{"a": 9}\n'}})
    download(artifact_fpath="a.jsonl", output_dirpath="out", revision="refs/pr/1")
    assert rows_of(tmp_path / "out/a.jsonl") == [{"a": 9}]


def test_a_transfer_that_breaks_off_is_resumed(tmp_path: Path, hub: HubServer) -> None:
    content = b'{"text": "' + b"x" * 15_000_000 + b'"}\n'
    hub.repos[REPO] = Repo({"main": {"a.jsonl": content}})
    whole = {"ETag": '"x"', "X-Repo-Commit": "0" * 40, "Content-Length": str(len(content))}
    hub.faults = [Fault("GET .*/resolve/", Reply(200, content, whole, sent_bytes=12_000_000))]
    download(artifact_fpath="a.jsonl", output_dirpath="out")
    assert (tmp_path / "out/a.jsonl").read_bytes() == content
    resumed_at = hub.calls("GET .*/resolve/")[-1].headers["range"]
    assert int(resumed_at.removeprefix("bytes=").removesuffix("-")) >= 10_000_000


@pytest.mark.parametrize("status", [401, 403, 404])
def test_an_error_page_is_never_saved_as_data(tmp_path: Path, hub: HubServer, status: int) -> None:
    hub.repos[REPO] = Repo({"main": {"a.jsonl": ROWS}})
    page = Reply(status, b"<html>no</html>", {"Content-Type": "text/html"})
    hub.faults = [Fault(r"(GET|HEAD) .*/resolve/", page, times=99)]
    with pytest.raises(HubError):
        download(artifact_fpath="a.jsonl", output_dirpath="out")
    assert not (tmp_path / "out/a.jsonl").exists()


PAGE = b"<html>" + b"sign in " * 100


@pytest.mark.parametrize("pattern", [r"GET .*/resolve/", r"(GET|HEAD) .*/resolve/"], ids=["file", "file and size"])
@pytest.mark.parametrize(
    "reply",
    [
        Reply(200, PAGE, {"ETag": '"x"', "X-Repo-Commit": "0" * 40}),
        Reply(200, ROWS[:-3], {"ETag": '"x"', "X-Repo-Commit": "0" * 40}, has_length=False),
    ],
    ids=["login page", "no length"],
)
def test_what_is_not_the_whole_file_is_never_saved_as_data(
    tmp_path: Path, hub: HubServer, pattern: str, reply: Reply
) -> None:
    hub.repos[REPO] = Repo({"main": {"a.jsonl": ROWS}})
    hub.faults = [Fault(pattern, reply, times=99)]
    with pytest.raises(HubError):
        download(artifact_fpath="a.jsonl", output_dirpath="out")
    assert not (tmp_path / "out/a.jsonl").exists()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"output_dirpath": "o", "split": "train", "artifact_fpath": "a"}, "both split and artifact_fpath"),
        ({"split": "train"}, "exactly one of output_dirpath and output_fpath"),
        ({"output_dirpath": "o", "output_fpath": "f", "split": "train"}, "exactly one of"),
        ({"output_fpath": "f"}, "output_fpath needs a split or an artifact_fpath"),
    ],
)
def test_a_download_must_say_what_goes_where(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DownloadJsonlDatasetHuggingFaceConfig(repo_id=REPO, **values)


@pytest.mark.parametrize(
    ("changes", "repo_id"),
    [
        ({}, "nvidia/Nemotron-RL-instruction_following-multineedle"),
        ({"dataset_name": "Other"}, "nvidia/Nemotron-RL-instruction_following-Other"),
        ({"hf_dataset_prefix": "Mine", "dataset_name": "x"}, "nvidia/Mine-instruction_following-x"),
        ({"hf_dataset_prefix": "", "dataset_name": "x"}, "nvidia/instruction_following-x"),
    ],
)
def test_a_dataset_is_named_after_its_domain(changes: dict[str, str], repo_id: str) -> None:
    assert UploadJsonlDatasetHuggingFaceConfig(**SETTINGS | changes).repo_id == repo_id


def test_missing_datasets_are_downloaded_before_they_are_prepared(
    tmp_path: Path, hub: HubServer, ng_here: NgHere
) -> None:
    rows = "".join(json.dumps(row(text)) + "\n" for text in "ab").encode()
    hub.repos[REPO] = Repo({"main": {"train.jsonl": rows, "other.jsonl": rows[: len(rows) // 2]}})
    artifact = {"repo_id": REPO, "artifact_fpath": "other.jsonl"}
    datasets = [
        dataset("d/t.jsonl", huggingface_identifier={"repo_id": REPO}),
        dataset("d/v.jsonl", "validation", huggingface_identifier=artifact),
    ]
    write_config(tmp_path / "config.yaml", one=datasets)
    command = ("ng_prepare_data", "+config_paths=[config.yaml]", "+output_dirpath=out", "+mode=train_preparation")
    done = ng_here(*command, "+should_download=true")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "d/t.jsonl").read_bytes() == rows
    assert len(rows_of(tmp_path / "out/validation.jsonl")) == 1


def test_a_download_that_fails_ends_the_preparation(tmp_path: Path, hub: HubServer, ng_here: NgHere) -> None:
    datasets = [
        dataset("t.jsonl", huggingface_identifier={"repo_id": REPO}),
        dataset("v.jsonl", "validation"),
    ]
    write_config(tmp_path / "config.yaml", one=datasets)
    command = ("ng_prepare_data", "+config_paths=[config.yaml]", "+output_dirpath=out", "+mode=train_preparation")
    done = ng_here(*command, "+should_download=true")
    assert done.returncode != 0
    assert "t.jsonl: Hugging Face answered 404" in done.stderr
    assert "v.jsonl: no huggingface_identifier" in done.stderr
    assert not (tmp_path / "t.jsonl").exists()
