"""Datasets in a GitLab model registry, through the MLflow REST API of GitLab.

A dataset is a registered model with versions such as 0.0.1. The files of a version are at the artifact URI of its run.
Names are case-sensitive.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar
from urllib.parse import quote, urlsplit

import aiohttp

from nemo_gym.common import event_loop
from nemo_gym.common.atomic_files import atomic_write
from nemo_gym.common.paths import find
from nemo_gym.common.retry import RETRIED_STATUSES, backoff_s
from nemo_gym.config.command_options import CommandConfig
from nemo_gym.data.hubs import HubError, refuse_page, safe_text
from nemo_gym.errors import ConfigError

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_TRIES = 4
CONNECT_TIMEOUT_S = 30.0
IDLE_TIMEOUT_S = 120.0
"""Time limit for a transfer without progress."""
BLOCK_BYTES = 2**20
VERSION_TAG = "gitlab.version"
ERRORS_FROM, NOT_FOUND, PARTIAL_CONTENT = 400, 404, 206
UNAUTHORIZED = (401, 403)


class MLFlowConfig(CommandConfig):
    """Address and token of the registry."""

    mlflow_tracking_uri: str
    """MLflow address of the GitLab project. Set it in env.yaml."""

    mlflow_tracking_token: str
    """Your GitLab token. Set it in env.yaml."""


class UploadJsonlDatasetGitlabConfig(MLFlowConfig):
    """Upload a JSONL dataset to a GitLab model registry.

    Examples:

    ```bash
    ng_upload_dataset_to_gitlab \\
        +dataset_name=example_multi_step \\
        +version=0.0.1 \\
        +input_jsonl_fpath=data/train.jsonl
    ```
    """

    dataset_name: str
    """Name of the dataset, case-sensitive."""

    version: str
    """Version of the dataset, such as 0.0.1."""

    input_jsonl_fpath: str
    """The file to upload."""


class DownloadJsonlDatasetGitlabConfig(MLFlowConfig):
    """Download a JSONL dataset from a GitLab model registry.

    Examples:

    ```bash
    ng_download_dataset_from_gitlab \\
        +dataset_name=example_multi_step \\
        +version=0.0.1 \\
        +artifact_fpath=train.jsonl \\
        +output_fpath=data/train.jsonl
    ```
    """

    dataset_name: str
    """Name of the dataset, case-sensitive."""

    version: str
    """Version of the dataset, such as 0.0.1."""

    artifact_fpath: str
    """The file in the registry."""

    output_fpath: str
    """The file to write."""


class DeleteJsonlDatasetGitlabConfig(MLFlowConfig):
    """Delete a dataset and all of its files from a GitLab model registry, once you have confirmed it.

    Examples:

    ```bash
    ng_delete_dataset_from_gitlab +dataset_name=example_multi_step
    ```
    """

    dataset_name: str
    """Name of the dataset, case-sensitive."""


class _Interrupted(Exception):  # noqa: N818 - no error yet: the transfer goes on
    """A download ended before it was complete."""


@dataclass(slots=True)
class _PartialFile:
    """A download in progress. After an interruption the next reply must continue the same file."""

    file: IO[bytes]
    etag: str | None = None
    size: int | None = None

    def request_headers(self) -> dict[str, str]:
        headers = {"Accept-Encoding": "identity"}
        if self.etag and self.size and self.file.tell():
            headers |= {"Range": f"bytes={self.file.tell()}-", "If-Range": self.etag}
        return headers

    def begin(self, response: aiohttp.ClientResponse) -> None:
        """Seek to where the body of a reply belongs: the end of the file if it continues the file, else the start."""
        if response.status == PARTIAL_CONTENT:
            self._check_continues(response)
            return
        self.file.seek(0)
        self.file.truncate()
        is_encoded = "Content-Encoding" in response.headers
        self.size = None if is_encoded else response.content_length
        etag = response.headers.get("ETag", "")
        self.etag = etag if etag.startswith('"') and not is_encoded else None  # others do not promise the same bytes
        if response.content_length is None and "chunked" not in response.headers.get("Transfer-Encoding", ""):
            raise HubError("GitLab sent the file without its length, so it is unknown if it is complete.")

    def _check_continues(self, response: aiohttp.ClientResponse) -> None:
        expected = f"bytes {self.file.tell()}-{(self.size or 0) - 1}/{self.size}"
        found = response.headers.get("Content-Range")
        if found != expected or response.headers.get("ETag", self.etag) != self.etag:
            self.etag = None
            raise _Interrupted(f"found Content-Range {safe_text(found)}, expected {expected} of the same file")

    def check_complete(self) -> None:
        if self.size is not None and self.file.tell() != self.size:
            raise _Interrupted(f"{self.file.tell()} of {self.size} bytes")


class GitlabRegistry:
    """Client of the registry of one project, as an async context manager."""

    def __init__(self, config: MLFlowConfig) -> None:
        self._uri, self._token = config.mlflow_tracking_uri.rstrip("/"), config.mlflow_tracking_token
        if urlsplit(self._uri).scheme not in ("http", "https"):
            raise ConfigError(f"mlflow_tracking_uri is '{safe_text(self._uri)}', expected an http or https address.")
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> "GitlabRegistry":
        timeout = aiohttp.ClientTimeout(total=None, connect=CONNECT_TIMEOUT_S, sock_read=IDLE_TIMEOUT_S)
        headers = {"Authorization": f"Bearer {self._token}"}
        self._session = aiohttp.ClientSession(timeout=timeout, headers=headers, trust_env=True)
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._session.close()

    async def has_dataset(self, name: str) -> bool:
        """True if there is a dataset of exactly this name."""
        try:
            found = await self._call("GET", "registered-models/get", params={"name": name})
        except HubError as error:
            if error.status == NOT_FOUND:
                return False
            raise
        return bool(found.get("registered_model", {}).get("name", name) == name)

    async def delete_dataset(self, name: str) -> None:
        await self._call("DELETE", "registered-models/delete", json={"name": name})

    async def upload(self, name: str, version: str, path: Path) -> None:
        """Upload a file to a version of a dataset. Both are created if they do not exist."""
        if not await self.has_dataset(name):
            await self._call("POST", "registered-models/create", json={"name": name})
        found = await self._version(name, version)
        if found is None:
            tags = [{"key": VERSION_TAG, "value": version}]
            made = await self._call("POST", "model-versions/create", json={"name": name, "tags": tags})
            found = made["model_version"]
        address = f"{await self._artifacts(found)}/{quote(path.name)}"
        await self._retried(lambda: self._put(address, path), f"upload of {path.name}")

    async def download(self, name: str, version: str, artifact: str, output: Path) -> None:
        """Download a file of a version, atomically. An interrupted transfer is resumed."""
        found = await self._version(name, version)
        if found is None:
            raise HubError(f"GitLab has no version {version} of '{name}'. Names are case-sensitive.", status=NOT_FOUND)
        address = f"{await self._artifacts(found)}/{quote(artifact)}"
        with atomic_write(output) as file:
            part = _PartialFile(file)
            await self._retried(lambda: self._get_into(part, address), f"download of {artifact}")

    async def _version(self, name: str, version: str) -> "dict[str, Any] | None":
        try:
            found = await self._call("GET", "model-versions/get", params={"name": name, "version": version})
        except HubError as error:
            if error.status == NOT_FOUND:
                return None
            raise
        made: dict[str, Any] = found["model_version"]
        return made

    async def _artifacts(self, version: dict[str, Any]) -> str:
        """Return the URI of the files of a version."""
        run = await self._call("GET", "runs/get", params={"run_id": version["run_id"]})
        address: str = run["run"]["info"]["artifact_uri"]
        if _origin(address) != _origin(self._uri):
            raise HubError(
                f"The files are on another host, {safe_text(address)}, which does not get the GitLab token."
            )
        return address.rstrip("/")

    async def _call(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        """Call the MLflow API and return its JSON reply."""
        address = f"{self._uri}/api/2.0/mlflow/{path}"

        async def attempt() -> dict[str, Any]:
            async with self._session.request(method, address, **options) as response:
                await self._check(response)
                try:
                    answer = await response.json(content_type=None)
                except ValueError as error:
                    text = safe_text(await response.text(), [self._token])
                    raise HubError(f"GitLab answered {path} with something other than JSON: {text}") from error
                return answer if isinstance(answer, dict) else {}

        return await self._retried(attempt, path)

    async def _put(self, address: str, path: Path) -> None:
        with path.open("rb") as file:
            async with self._session.put(address, data=file) as response:
                await self._check(response)

    async def _get_into(self, part: _PartialFile, address: str) -> None:
        """Continue a download, or restart it if GitLab cannot continue the same file."""
        async with self._session.get(address, headers=part.request_headers()) as response:
            await self._check(response)
            if response.content_type == "text/html":
                raise HubError("GitLab answered with a web page instead of the file. Check mlflow_tracking_token.")
            part.begin(response)
            async for block in response.content.iter_chunked(BLOCK_BYTES):
                if not part.file.tell():
                    refuse_page(block, "GitLab")
                part.file.write(block)
            part.check_complete()

    async def _check(self, response: aiohttp.ClientResponse) -> None:
        if response.status < ERRORS_FROM:
            return
        text = safe_text(await response.text(errors="replace"), [self._token])
        remedy = " Check mlflow_tracking_token." if response.status in UNAUTHORIZED else ""
        raise HubError(f"GitLab answered {response.status}: {text}{remedy}", status=response.status)

    async def _retried(self, attempt: Callable[[], Awaitable[T]], what: str) -> T:
        for number in range(1, MAX_TRIES + 1):
            try:
                return await attempt()
            except HubError as error:
                if error.status not in RETRIED_STATUSES or number == MAX_TRIES:
                    raise
                reason = f"status {error.status}"
            except (aiohttp.ClientError, TimeoutError, ConnectionError, _Interrupted) as error:
                reason = safe_text(error, [self._token]) or type(error).__name__
                if number == MAX_TRIES:
                    raise HubError(f"GitLab could not be reached, or the transfer was interrupted: {reason}") from None
            pause_s = backoff_s(number)
            logger.warning("GitLab: %s failed (%s); trying again in %.1f s", what, reason, pause_s)
            await asyncio.sleep(pause_s)
        raise AssertionError("unreachable")


def _origin(address: str) -> tuple[str, str]:
    parts = urlsplit(address)
    return parts.scheme, parts.netloc


class Uploaded(NamedTuple):
    """An uploaded file."""

    dataset_name: str
    version: str
    artifact_fpath: str

    @property
    def download_command(self) -> str:
        return (
            f"ng_download_dataset_from_gitlab +dataset_name={self.dataset_name} +version={self.version} "
            f"+artifact_fpath={self.artifact_fpath} +output_fpath={self.artifact_fpath}"
        )


def upload(config: UploadJsonlDatasetGitlabConfig) -> Uploaded:
    """Upload a file."""
    path = find(config.input_jsonl_fpath, what="dataset")
    _run(config, lambda registry: registry.upload(config.dataset_name, config.version, path))
    return Uploaded(config.dataset_name, config.version, path.name)


def download(config: DownloadJsonlDatasetGitlabConfig) -> Path:
    """Download a file."""
    output = Path(config.output_fpath)
    name, version, artifact = config.dataset_name, config.version, config.artifact_fpath
    _run(config, lambda registry: registry.download(name, version, artifact, output))
    return output


def has_dataset(config: MLFlowConfig, name: str) -> bool:
    return _run(config, lambda registry: registry.has_dataset(name))


def delete_dataset(config: MLFlowConfig, name: str) -> None:
    _run(config, lambda registry: registry.delete_dataset(name))


def _run(config: MLFlowConfig, ask: Callable[[GitlabRegistry], Awaitable[T]]) -> T:
    async def main() -> T:
        async with GitlabRegistry(config) as registry:
            return await ask(registry)

    return event_loop.run_embedded(main())
