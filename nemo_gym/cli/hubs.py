"""Commands on published datasets: upload, download, delete."""

from omegaconf import DictConfig

from nemo_gym.cli.command import command, config_command, merged_config
from nemo_gym.data.hubs import gitlab, hugging_face
from nemo_gym.data.hubs.gitlab import (
    DeleteJsonlDatasetGitlabConfig,
    DownloadJsonlDatasetGitlabConfig,
    MLFlowConfig,
    UploadJsonlDatasetGitlabConfig,
)
from nemo_gym.data.hubs.hugging_face import (
    DownloadJsonlDatasetHuggingFaceConfig,
    UploadJsonlDatasetHuggingFaceConfig,
    UploadJsonlDatasetHuggingFaceMaybeDeleteConfig,
    folder_in,
)
from nemo_gym.errors import ConfigError

DELETE_KEY = "delete_from_gitlab"


@config_command(UploadJsonlDatasetHuggingFaceMaybeDeleteConfig, checked=False)
def upload_dataset_to_hf(options: UploadJsonlDatasetHuggingFaceMaybeDeleteConfig, config: DictConfig) -> None:
    """Upload a JSONL dataset to Hugging Face."""
    _upload_to_hf(options, MLFlowConfig.read(config) if options.delete_from_gitlab else None)


@config_command(UploadJsonlDatasetHuggingFaceConfig, checked=False)
def gitlab_to_hf_dataset(options: UploadJsonlDatasetHuggingFaceConfig, config: DictConfig) -> None:
    """Upload a JSONL dataset to Hugging Face, then delete it from GitLab."""
    if DELETE_KEY in config:
        raise ConfigError(f"Forbidden fields present: {DELETE_KEY}. This command always deletes, once you confirm it.")
    _upload_to_hf(options, MLFlowConfig.read(config))


def upload_jsonl_dataset_to_hf_maybe_delete(
    config: UploadJsonlDatasetHuggingFaceConfig, delete_from_gitlab: bool = False
) -> None:
    """Upload, and if that succeeds ask whether to delete the dataset from GitLab."""
    _upload_to_hf(config, MLFlowConfig.read(merged_config()) if delete_from_gitlab else None)


def _upload_to_hf(config: UploadJsonlDatasetHuggingFaceConfig, registry: MLFlowConfig | None) -> None:
    """Upload, and if a registry is given ask whether to delete the dataset from it."""
    done = hugging_face.upload(config)
    for note in done.notes:
        _say(note)
    _say(f"Pull Request created: {done.pull_request_url}" if done.pull_request_url else "Dataset upload successful")
    if registry is not None:
        _delete_if_confirmed(registry, config.dataset_name or folder_in(config.resource_config_path))


@command(DownloadJsonlDatasetHuggingFaceConfig)
def download_dataset_from_hf(options: DownloadJsonlDatasetHuggingFaceConfig) -> None:
    """Download a dataset from Hugging Face."""
    for path in hugging_face.download(options):
        _say(f"Downloaded {path}")


@command(UploadJsonlDatasetGitlabConfig)
def upload_dataset_to_gitlab(options: UploadJsonlDatasetGitlabConfig) -> None:
    """Upload a JSONL dataset to a GitLab model registry."""
    done = gitlab.upload(options)
    _say(f"Dataset upload successful. Download it with:\n{done.download_command}")


@command(DownloadJsonlDatasetGitlabConfig)
def download_dataset_from_gitlab(options: DownloadJsonlDatasetGitlabConfig) -> None:
    """Download a JSONL dataset from a GitLab model registry."""
    _say(f"Downloaded {gitlab.download(options)}")


@command(DeleteJsonlDatasetGitlabConfig)
def delete_dataset_from_gitlab(options: DeleteJsonlDatasetGitlabConfig) -> None:
    """Delete a dataset from a GitLab model registry, once you have confirmed it."""
    _delete_if_confirmed(options, options.dataset_name)


def delete_jsonl_dataset_from_gitlab(dataset_name: str) -> None:
    """Ask whether to delete a dataset from the registry of the configuration, and do so."""
    _delete_if_confirmed(MLFlowConfig.read(merged_config()), dataset_name)


def _delete_if_confirmed(registry: MLFlowConfig, name: str) -> None:
    if not gitlab.has_dataset(registry, name):
        _say(f"No model '{name}' in the registry; nothing to delete. Names are case-sensitive.")
        return
    question = f"Found model '{name}' in the registry. Are you sure you want to delete it from Gitlab? [y/N]: "
    try:
        answer = input(f"[Nemo-Gym] - {question}")
    except EOFError:
        answer = ""
        print()
    if answer.strip().lower() not in ("y", "yes"):
        _say("Skipped deletion")
        return
    gitlab.delete_dataset(registry, name)
    _say(f"Deleted '{name}' from Gitlab")


def _say(message: str) -> None:
    print(f"[Nemo-Gym] - {message}", flush=True)
