"""Upload datasets to Hugging Face and download them, with `huggingface_hub`."""

import contextlib
import logging
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypeVar

import orjson
from pydantic import model_validator

from nemo_gym.common.atomic_files import atomic_write
from nemo_gym.common.paths import find
from nemo_gym.common.retry import RETRIED_STATUSES, backoff_s
from nemo_gym.config.command_options import CommandConfig
from nemo_gym.config.sources import load_file
from nemo_gym.data.hubs import HubError, refuse_page, safe_text
from nemo_gym.data.records import SUFFIXES, json_lines
from nemo_gym.data.row_check import PARAMS_KEY
from nemo_gym.data.scan import lines_of
from nemo_gym.errors import ConfigError, MissingExtraError

Split = Literal["train", "validation", "test"]


class UploadJsonlDatasetHuggingFaceConfig(CommandConfig):
    """Upload a JSONL dataset to Hugging Face, named after the domain of its environment, and add it to a collection.

    Examples:

    ```bash
    resource_config_path="resources_servers/multineedle/configs/multineedle.yaml"
    ng_upload_dataset_to_hf \\
        +dataset_name=my-dataset \\
        +input_jsonl_fpath=data/multineedle_benchmark.jsonl \\
        +resource_config_path=${resource_config_path}
    ```
    """

    hf_token: str
    """Your Hugging Face token. Set it in env.yaml."""

    hf_organization: str
    """Organization of the dataset."""

    hf_collection_name: str
    """Name of the collection to add the dataset to."""

    hf_collection_slug: str
    """Letters and digits at the end of the collection's URL."""

    input_jsonl_fpath: str
    """The file to upload."""

    resource_config_path: str
    """Configuration of the environment. Its domain is part of the dataset's name."""

    dataset_name: str | None = None
    """Last part of the dataset's name. By default the name of the environment's folder."""

    hf_dataset_prefix: str = "Nemotron-RL"
    """First part of the dataset's name."""

    split: Split = "train"
    """Split of the rows. Rows for training must have `responses_create_params`."""

    create_pr: bool = False
    """Open a pull request instead of pushing."""

    revision: str | None = None
    """Branch to push to. With create_pr it may be new."""

    commit_message: str | None = None
    """Title of the commit or pull request."""

    commit_description: str | None = None
    """Description of the commit or pull request."""

    @property
    def repo_id(self) -> str:
        """Name of the repository, such as nvidia/Nemotron-RL-math-OpenMathReasoning."""
        name = self.dataset_name or folder_in(self.resource_config_path)
        return f"{self.hf_organization}/{'-'.join(filter(None, (self.hf_dataset_prefix, self.domain, name)))}"

    @property
    def domain(self) -> str:
        """The domain of the environment that `resource_config_path` configures."""
        config = load_file(find(self.resource_config_path, what="configuration of an environment"))
        for block in config.values():
            for environment in (getattr(block, "resources_servers", None) or {}).values():
                if environment.get("domain"):
                    return str(environment["domain"]).lower()
        raise ConfigError(f"No environment with a `domain` in {self.resource_config_path}; it names the dataset.")

    @property
    def collection_id(self) -> str:
        name = self.hf_collection_name.lower().replace(" ", "-")
        return f"{self.hf_organization}/{name}-{self.hf_collection_slug}"


class UploadJsonlDatasetHuggingFaceMaybeDeleteConfig(UploadJsonlDatasetHuggingFaceConfig):
    __doc__ = UploadJsonlDatasetHuggingFaceConfig.__doc__

    delete_from_gitlab: bool = False
    """Delete the dataset of the same name from GitLab afterwards, if you confirm it."""


class DownloadJsonlDatasetHuggingFaceConfig(CommandConfig):
    """Download a dataset from Hugging Face: one of its files, one split, or every split as its own JSONL file.

    Examples:

    ```bash
    ng_download_dataset_from_hf \\
        +repo_id=nvidia/Nemotron-RL-knowledge-mcqa \\
        +output_dirpath=data/mcqa \\
        +split=train
    ng_download_dataset_from_hf \\
        +repo_id=nvidia/Nemotron-RL-instruction_following \\
        +output_dirpath=data/instruction_following \\
        +artifact_fpath=instruction_following.jsonl
    ```
    """

    repo_id: str
    """The dataset, as organization/name."""

    output_dirpath: str | None = None
    """The folder to write to. Give this or output_fpath."""

    output_fpath: str | None = None
    """The file to write, with a split or an artifact_fpath."""

    artifact_fpath: str | None = None
    """A file of the dataset to download unchanged."""

    split: Split | None = None
    """The split to download. By default all, each into its own file."""

    revision: str | None = None
    """A branch, tag, commit or pull request (refs/pr/1). By default the main branch."""

    hf_token: str | None = None
    """Your Hugging Face token. Public datasets need none."""

    @model_validator(mode="after")
    def _check_source_and_output(self) -> Self:
        if self.split and self.artifact_fpath:
            raise ValueError("Cannot specify both split and artifact_fpath")
        if (self.output_dirpath is None) == (self.output_fpath is None):
            raise ValueError("Specify exactly one of output_dirpath and output_fpath")
        if self.output_fpath and not (self.split or self.artifact_fpath):
            raise ValueError("output_fpath needs a split or an artifact_fpath; use output_dirpath for all splits")
        return self


def folder_in(resource_config_path: str) -> str:
    """The name of the environment's folder in the path of its configuration."""
    parts = PurePath(resource_config_path).parts
    after = parts.index("resources_servers") + 1 if "resources_servers" in parts else 1
    if after >= len(parts) - 1:
        raise ConfigError(
            f"resource_config_path is '{resource_config_path}', expected resources_servers/<name>/configs/<file>. "
            "Or give +dataset_name."
        )
    return parts[after]


_WORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}


def files_of_splits(names: Sequence[str], *, wanted: str | None, repo_id: str) -> dict[str, list[str]]:
    """Return the data files of each split, or of the wanted one. If no file name contains a split, all are for
    training."""
    data = sorted(name for name in names if name.endswith(SUFFIXES) and not name.startswith("."))
    found = {split: [name for name in data if _is_named_after(name, words)] for split, words in _WORDS.items()}
    found = {split: files for split, files in found.items() if files} or ({"train": data} if data else {})
    if not found:
        raise HubError(f"{repo_id} has no data files that can be read ({', '.join(SUFFIXES)}).")
    if wanted is None:
        return found
    if wanted not in found:
        raise HubError(f"{repo_id} has no split '{wanted}'. It has: {', '.join(found)}.")
    return {wanted: found[wanted]}


def _is_named_after(name: str, words: Sequence[str]) -> bool:
    """True if a folder or the file is named after a split, as in data/train-00000-of-00001.parquet."""
    parts = re.split(r"[/._\-\s]|\d+", name.lower())
    return any(word in parts for word in words)


if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

logger = logging.getLogger(__name__)

T = TypeVar("T")

EXTRA = "huggingface"
MAX_TRIES = 4
TRIED_AGAIN_BY_THE_CLIENT = frozenset(("hf_hub_download", "get_hf_file_metadata", "list_repo_files"))
"""Calls that the client retries itself."""
UNAUTHORIZED, FORBIDDEN, NOT_FOUND = 401, 403, 404
_MAX_ROW_BYTES = 2**30


class Uploaded(NamedTuple):
    """The result of an upload."""

    repo_id: str
    pull_request_url: str | None
    notes: list[str]
    """The steps that failed because access was denied."""


class UnfitRowsError(HubError):
    """Rows for training have no `responses_create_params`."""


def client(token: str | None) -> "HfApi":
    """Return a Hugging Face client. Without a token it uses the one stored by `hf auth login`."""
    try:
        from huggingface_hub import HfApi
        from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]
    except ImportError as error:
        raise MissingExtraError("Hugging Face", EXTRA) from error
    for name in ("httpx", "httpx2"):  # they log a line for every request
        logging.getLogger(name).setLevel(logging.WARNING)
    if not sys.stderr.isatty():
        disable_progress_bars()
    return HfApi(endpoint=os.environ.get("HF_ENDPOINT"), token=token)


def upload(config: UploadJsonlDatasetHuggingFaceConfig) -> Uploaded:
    """Create the dataset if it does not exist, add it to the collection, and upload the file. Any failure is an
    error."""
    path, repo_id = find(config.input_jsonl_fpath, what="dataset"), config.repo_id
    if config.split == "train":
        check_rows_for_training(path)
    hub, notes = _Hub(config.hf_token), list[str]()
    with hub.note_refusal(notes, f"create {repo_id}", when=config.create_pr):
        hub.call("create_repo", repo_id=repo_id, repo_type="dataset", private=True, exist_ok=True)
    with hub.note_refusal(notes, f"add {repo_id} to {config.collection_id}", when=config.create_pr):
        _add_to_collection(hub, config.collection_id, repo_id)
    base = config.revision
    if config.create_pr and config.revision:
        base = None
        with hub.note_refusal(notes, f"create the branch {config.revision}", when=True):
            hub.call("create_branch", repo_id=repo_id, branch=config.revision, repo_type="dataset", exist_ok=True)
            base = config.revision
    commit = hub.call(
        "upload_file",
        path_or_fileobj=str(path),
        path_in_repo=path.name,
        repo_id=repo_id,
        repo_type="dataset",
        create_pr=config.create_pr,
        revision=base,
        commit_message=config.commit_message,
        commit_description=config.commit_description,
    )
    return Uploaded(repo_id, commit.pr_url if config.create_pr else None, notes)


def check_rows_for_training(path: Path) -> None:
    """Raise UnfitRowsError unless every line is an object with `responses_create_params`."""
    with path.open("rb") as file:
        lines = lines_of(file, 0, path.stat().st_size, max_row_bytes=_MAX_ROW_BYTES)
        for number, (_, line) in enumerate(lines, start=1):
            if line is not None and not line.strip():
                continue
            try:
                row = orjson.loads(line or b"")
            except ValueError as error:
                raise UnfitRowsError(f"{path}:{number} is not JSON: {error}. Nothing was uploaded.") from None
            if not isinstance(row, dict) or PARAMS_KEY not in row:
                raise UnfitRowsError(
                    f"{path}:{number} has no {PARAMS_KEY}, which rows for training need. Nothing was uploaded. "
                    "Give +split=validation or +split=test if they are not for training."
                )


def _add_to_collection(hub: "_Hub", collection_id: str, repo_id: str) -> None:
    collection = hub.call("get_collection", collection_id)
    if repo_id.lower() not in (item.item_id.lower() for item in collection.items):
        hub.call("add_collection_item", collection_id, item_id=repo_id, item_type="dataset", exists_ok=True)


def download(config: DownloadJsonlDatasetHuggingFaceConfig) -> list[Path]:
    """Download an artifact unchanged, or splits as JSONL, and return the paths."""
    hub = _Hub(config.hf_token)
    if config.artifact_fpath:
        output = _output(config, Path(config.artifact_fpath).name)
        with (
            hub.fetched(config, config.artifact_fpath) as path,
            path.open("rb") as source,
            atomic_write(output) as file,
        ):
            refuse_page(head := source.read(2**20), "Hugging Face")
            file.write(head)
            shutil.copyfileobj(source, file, 2**20)
        return [output]
    names = hub.call("list_repo_files", config.repo_id, repo_type="dataset", revision=config.revision)
    splits = files_of_splits(names, wanted=config.split, repo_id=config.repo_id)
    return [_write_split(hub, config, files, _output(config, f"{split}.jsonl")) for split, files in splits.items()]


def _output(config: DownloadJsonlDatasetHuggingFaceConfig, name: str) -> Path:
    return Path(config.output_fpath) if config.output_fpath else Path(config.output_dirpath or ".") / name


def _write_split(
    hub: "_Hub", config: DownloadJsonlDatasetHuggingFaceConfig, files: Sequence[str], output: Path
) -> Path:
    """Write all files of a split to one JSONL file."""
    with atomic_write(output) as file:
        for name in files:
            with hub.fetched(config, name) as path:
                for line in json_lines(path):
                    file.write(line)
    return output


class _Hub:
    """The client with retries. Its errors become HubError."""

    def __init__(self, token: str | None) -> None:
        self._token = token
        self._api = client(token)

    def call(self, method: str, *args: object, **kwargs: object) -> Any:
        """Call a method of the client and return its result."""
        max_tries = 1 if method in TRIED_AGAIN_BY_THE_CLIENT else MAX_TRIES
        return self._with_retries(lambda: getattr(self._api, method)(*args, **kwargs), method, max_tries)

    @contextlib.contextmanager
    def fetched(self, config: DownloadJsonlDatasetHuggingFaceConfig, name: str) -> Iterator[Path]:
        """Download a file of a dataset to the client's cache, which resumes interrupted transfers."""
        place = {"repo_type": "dataset", "revision": config.revision}
        cache = os.environ.get("HF_HUB_CACHE")
        path = Path(self.call("hf_hub_download", config.repo_id, name, **place, cache_dir=cache))
        self._check_size(path, self._api.endpoint, config.repo_id, name, **place)
        yield path

    def _check_size(self, path: Path, endpoint: str, repo_id: str, name: str, **place: Any) -> None:
        """Compare the size with the hub's. The client accepts a truncated file if its length is unknown."""
        from huggingface_hub import hf_hub_url

        url = hf_hub_url(repo_id, name, **place, endpoint=endpoint)
        expected, found = self.call("get_hf_file_metadata", url=url).size, path.stat().st_size
        if expected != found:
            size = "an unknown number of" if expected is None else expected
            raise HubError(f"{name} has {found} bytes, expected {size} bytes. Delete {path} and try again.")

    @contextlib.contextmanager
    def note_refusal(self, notes: list[str], what: str, *, when: bool) -> Iterator[None]:
        """Note a refused step instead of failing. With a pull request, steps that need write access may be refused."""
        try:
            yield
        except HubError as error:
            if not when or error.status not in (FORBIDDEN, NOT_FOUND):
                raise
            notes.append(f"No access to {what}; skipped.")

    def _with_retries(self, attempt: Callable[[], T], what: str, max_tries: int) -> T:
        from huggingface_hub.errors import HfHubHTTPError, HTTPError  # type: ignore[attr-defined]

        for number in range(1, max_tries + 1):
            try:
                return attempt()
            except HfHubHTTPError as error:
                status = error.response.status_code if error.response is not None else 0
                if status not in RETRIED_STATUSES or number == max_tries:
                    raise self._error(error, status) from None
                pause_s = backoff_s(number, retry_after_s=_retry_after_s(error))
                logger.warning("Hugging Face answered %d to %s; trying again in %.1f s", status, what, pause_s)
                time.sleep(pause_s)
            except (HTTPError, OSError, ValueError, RuntimeError) as error:
                raise self._error(error, 0) from None
        raise AssertionError("unreachable")

    def _error(self, error: Exception, status: int) -> HubError:
        remedies = {
            UNAUTHORIZED: " Check hf_token, and the name of the dataset.",
            FORBIDDEN: " The token has no access. To propose a change, give +create_pr=true.",
        }
        answered = f"answered {status}" if status else "could not be reached or sent an invalid reply"
        message = safe_text(error, [self._token])
        return HubError(f"Hugging Face {answered}: {message}{remedies.get(status, '')}", status=status)


def _retry_after_s(error: "HfHubHTTPError") -> float | None:
    asked = error.response.headers.get("Retry-After", "") if error.response is not None else ""
    return float(asked) if asked.isdigit() else None
