"""Parameters of the Hugging Face commands."""

from pathlib import PurePath
from typing import Literal, Self

from pydantic import model_validator

from nemo_gym.common.paths import find
from nemo_gym.config.command_options import CommandConfig
from nemo_gym.config.sources import load_file
from nemo_gym.errors import ConfigError

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
    """Your Hugging Face token; best set in env.yaml."""

    hf_organization: str
    """The organization that the dataset belongs to."""

    hf_collection_name: str
    """The name of the collection that the dataset is added to."""

    hf_collection_slug: str
    """The letters and digits at the end of the collection's address."""

    input_jsonl_fpath: str
    """The file to upload."""

    resource_config_path: str
    """The configuration of the environment. Its domain is a part of the dataset's name."""

    dataset_name: str | None = None
    """The last part of the dataset's name. By default the name of the environment's folder."""

    hf_dataset_prefix: str = "Nemotron-RL"
    """The first part of the dataset's name."""

    split: Split = "train"
    """What the rows are for. Rows for training must have `responses_create_params`."""

    create_pr: bool = False
    """Open a pull request instead of pushing."""

    revision: str | None = None
    """The branch: an existing one, or with create_pr a new one."""

    commit_message: str | None = None
    """The title of the commit or of the pull request."""

    commit_description: str | None = None
    """More about the commit or the pull request."""

    @property
    def repo_id(self) -> str:
        """Such as nvidia/Nemotron-RL-math-OpenMathReasoning."""
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
    """Afterwards delete the dataset of the same name from GitLab, once you have confirmed it."""


class DownloadJsonlDatasetHuggingFaceConfig(CommandConfig):
    """Download a dataset from Hugging Face: one of its files, one split, or every split as a JSONL file of its own.

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
    """The file to write. It needs a split or an artifact_fpath."""

    artifact_fpath: str | None = None
    """A file of the dataset, to be downloaded as it is."""

    split: Split | None = None
    """The split to download. By default all, each into a file of its own."""

    revision: str | None = None
    """A branch, tag, commit or pull request (refs/pr/1). By default the main branch."""

    hf_token: str | None = None
    """Your Hugging Face token. Public datasets need none."""

    @model_validator(mode="after")
    def _says_what_goes_where(self) -> Self:
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
