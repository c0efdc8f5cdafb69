"""Hugging Face datasets, under the path that outside code imports them from."""

from nemo_gym.common.lazy_exports import lazy_attributes
from nemo_gym.data.hubs.hugging_face import (
    DownloadJsonlDatasetHuggingFaceConfig as DownloadJsonlDatasetHuggingFaceConfig,
)
from nemo_gym.data.hubs.hugging_face import (
    UploadJsonlDatasetHuggingFaceConfig as UploadJsonlDatasetHuggingFaceConfig,
)
from nemo_gym.data.hubs.hugging_face import (
    UploadJsonlDatasetHuggingFaceMaybeDeleteConfig as UploadJsonlDatasetHuggingFaceMaybeDeleteConfig,
)

__getattr__ = lazy_attributes(
    __name__,
    {
        "HfApi": "huggingface_hub:HfApi",
        "upload_jsonl_dataset": "nemo_gym.data.hubs.hugging_face:upload",
        "download_jsonl_dataset": "nemo_gym.data.hubs.hugging_face:download",
        "create_huggingface_client": "nemo_gym.data.hubs.hugging_face:client",
    },
)
