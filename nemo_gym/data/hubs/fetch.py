"""Download the datasets of a configuration that are not on disk."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from nemo_gym.config.keys import HF_TOKEN_KEY_NAME
from nemo_gym.config.types import DatasetConfig
from nemo_gym.data.hubs import gitlab, hugging_face
from nemo_gym.data.hubs.gitlab import DownloadJsonlDatasetGitlabConfig
from nemo_gym.data.hubs.hugging_face import DownloadJsonlDatasetHuggingFaceConfig
from nemo_gym.data.scope import AgentDataset
from nemo_gym.errors import ConfigError, GymError

DataSource = Literal["huggingface", "gitlab"]
GITLAB_KEYS = ("mlflow_tracking_uri", "mlflow_tracking_token")


class DownloadError(GymError):
    """Datasets could not be downloaded."""


def validate_backend_credentials(source: DataSource, config: Mapping[str, Any]) -> tuple[bool, str]:
    """Whether a configuration has what a hub asks for, and if not, what is missing. Public datasets need no token."""
    missing = [key for key in GITLAB_KEYS if not config.get(key)] if source == "gitlab" else []
    return not missing, f"GitLab needs {' and '.join(missing)}; best set in env.yaml." if missing else ""


def fetch_missing(
    datasets: Sequence[AgentDataset], source: DataSource, config: Mapping[str, Any], say: Callable[[str], None]
) -> None:
    """Download what is missing. All datasets are tried; the failures are raised as one error."""
    missing = [each.dataset for each in datasets if not each.is_on_disk]
    failures = []
    for dataset in {each.jsonl_fpath: each for each in missing}.values():
        try:
            say(f"Downloading {dataset.jsonl_fpath}")
            _fetch(dataset, source, config)
        except GymError as error:
            failures.append(f"- {dataset.jsonl_fpath}: {error}")
    if failures:
        raise DownloadError("\n".join(["Datasets could not be downloaded:", *failures]))


def _fetch(dataset: DatasetConfig, source: DataSource, config: Mapping[str, Any]) -> None:
    """From the hub that is asked for or, if the dataset is not there, from the other one."""
    hugging_face_id, gitlab_id = dataset.huggingface_identifier, dataset.gitlab_identifier
    if hugging_face_id is not None and (source == "huggingface" or gitlab_id is None):
        has_file = hugging_face_id.artifact_fpath is not None
        hugging_face.download(
            DownloadJsonlDatasetHuggingFaceConfig(
                repo_id=hugging_face_id.repo_id,
                artifact_fpath=hugging_face_id.artifact_fpath,
                split=None if has_file or dataset.type == "example" else dataset.type,
                output_fpath=dataset.jsonl_fpath,
                hf_token=config.get(HF_TOKEN_KEY_NAME),
            )
        )
    elif gitlab_id is not None:
        has_credentials, message = validate_backend_credentials("gitlab", config)
        if not has_credentials:
            raise ConfigError(message)
        keys = {key: config[key] for key in GITLAB_KEYS}
        wanted = {**gitlab_id.model_dump(), **keys, "output_fpath": dataset.jsonl_fpath}
        gitlab.download(DownloadJsonlDatasetGitlabConfig(**wanted))
    else:
        raise ConfigError(f"no {source}_identifier in the configuration, so it cannot be downloaded")
