"""GitLab datasets, under the path that outside code imports them from."""

from nemo_gym.common.lazy_exports import lazy_attributes

__getattr__ = lazy_attributes(
    __name__,
    {
        **{
            name: f"nemo_gym.data.hubs.gitlab:{name}"
            for name in (
                "MLFlowConfig",
                "UploadJsonlDatasetGitlabConfig",
                "DownloadJsonlDatasetGitlabConfig",
                "DeleteJsonlDatasetGitlabConfig",
            )
        },
        "upload_jsonl_dataset": "nemo_gym.data.hubs.gitlab:upload",
        "download_jsonl_dataset": "nemo_gym.data.hubs.gitlab:download",
        "upload_jsonl_dataset_cli": "nemo_gym.cli.hubs:upload_dataset_to_gitlab",
        "download_jsonl_dataset_cli": "nemo_gym.cli.hubs:download_dataset_from_gitlab",
    },
)
