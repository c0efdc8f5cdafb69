"""Moving datasets between hubs, under the path that outside code imports it from."""

from nemo_gym.common.lazy_exports import lazy_attributes

__getattr__ = lazy_attributes(
    __name__,
    {
        "upload_jsonl_dataset_to_hf": "nemo_gym.data.hubs.hugging_face:upload",
        "upload_jsonl_dataset_to_hf_maybe_delete": "nemo_gym.cli.data:upload_jsonl_dataset_to_hf_maybe_delete",
        "delete_jsonl_dataset_from_gitlab": "nemo_gym.cli.data:delete_jsonl_dataset_from_gitlab",
        "upload_jsonl_dataset_to_hf_cli": "nemo_gym.cli.data:upload_dataset_to_hf",
        "upload_jsonl_dataset_to_hf_and_delete_gitlab_cli": "nemo_gym.cli.data:gitlab_to_hf_dataset",
        "download_jsonl_dataset_from_hf_cli": "nemo_gym.cli.data:download_dataset_from_hf",
        "delete_jsonl_dataset_from_gitlab_cli": "nemo_gym.cli.data:delete_dataset_from_gitlab",
    },
)
