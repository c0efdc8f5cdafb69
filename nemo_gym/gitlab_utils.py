"""GitLab datasets, under the path that outside code imports them from."""

from nemo_gym.common.lazy_exports import lazy_attributes

__getattr__ = lazy_attributes(
    __name__,
    {
        "MLFlowConfig": "nemo_gym.data.hubs.gitlab:MLFlowConfig",
        "UploadJsonlDatasetGitlabConfig": "nemo_gym.data.hubs.gitlab:UploadJsonlDatasetGitlabConfig",
        "DownloadJsonlDatasetGitlabConfig": "nemo_gym.data.hubs.gitlab:DownloadJsonlDatasetGitlabConfig",
        "DeleteJsonlDatasetGitlabConfig": "nemo_gym.data.hubs.gitlab:DeleteJsonlDatasetGitlabConfig",
        "upload_jsonl_dataset": "nemo_gym.data.hubs.gitlab:upload",
        "download_jsonl_dataset": "nemo_gym.data.hubs.gitlab:download",
        "upload_jsonl_dataset_cli": "nemo_gym.cli.data:upload_dataset_to_gitlab",
        "download_jsonl_dataset_cli": "nemo_gym.cli.data:download_dataset_from_gitlab",
    },
)
