"""The datasets of a configuration that a command uses, and the download of those that are missing."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from nemo_gym.common.paths import find
from nemo_gym.config.checks import valid_servers
from nemo_gym.config.keys import HF_TOKEN_KEY_NAME
from nemo_gym.config.loading import read_settings, server_folder
from nemo_gym.config.types import DatasetConfig, DatasetType, ServerInstanceConfig
from nemo_gym.data.hubs import gitlab, hugging_face
from nemo_gym.data.hubs.gitlab import DownloadJsonlDatasetGitlabConfig
from nemo_gym.data.hubs.hugging_face import DownloadJsonlDatasetHuggingFaceConfig
from nemo_gym.data.prompts import materialize_prompts
from nemo_gym.data.row_check import EnvironmentCode
from nemo_gym.errors import ConfigError, GymError, MissingPathError

if TYPE_CHECKING:
    from omegaconf import DictConfig


def file_beside(path: Path, ending: str) -> Path:
    """The file beside `path` whose name goes on with `ending` in place of the suffix."""
    return path.with_name(path.stem + ending)


@dataclass(frozen=True, slots=True)
class AgentDataset:
    """A dataset in scope, and the agent that it is for."""

    agent: str
    dataset: DatasetConfig
    stem: str = ""
    """What the files beside the data are named after, if not after the data itself."""
    environment: EnvironmentCode | None = None
    """Where the agent acts, if the configuration says so."""

    @property
    def type(self) -> DatasetType:
        return self.dataset.type

    @property
    def given_path(self) -> Path:
        """Where it is, or is to be put."""
        try:
            return find(self.dataset.jsonl_fpath, what="dataset")
        except MissingPathError:
            return Path(self.dataset.jsonl_fpath)

    @property
    def path(self) -> Path:
        """Where its rows are as agents get them: with a prompt, in a file beside it."""
        return self.beside("_prompted.jsonl") if self.dataset.prompt_config else self.given_path

    @property
    def is_on_disk(self) -> bool:
        return self.given_path.is_file()

    def beside(self, ending: str) -> Path:
        given = self.given_path
        return file_beside(given.with_stem(self.stem) if self.stem else given, ending)

    def fill_in_prompt(self) -> None:
        """Write the rows with the dataset's prompt, if it has one."""
        if self.dataset.prompt_config is None:
            return
        try:
            materialize_prompts(str(self.given_path), self.dataset.prompt_config, str(self.path))
        except (KeyError, ValueError) as error:
            reason = error.args[0] if error.args else error
            raise ConfigError(f"The prompt of '{self.dataset.name}' does not fit its rows: {reason}") from error


class DatasetScope(NamedTuple):
    """What a configuration holds, as the first step finds it."""

    servers: list[ServerInstanceConfig]
    agents_without_datasets: list[str]
    datasets: list[AgentDataset]


def datasets_in_scope(config: "DictConfig", types: Collection[DatasetType]) -> DatasetScope:
    """The datasets of these types, by agent in the order of the configuration."""
    servers = valid_servers(config, error_on_almost_servers=read_settings(config).error_on_almost_servers)
    agents = [server for server in servers if server.SERVER_TYPE == "responses_api_agents"]
    places = {agent.name: _environment_of(agent, servers, config) for agent in agents if agent.datasets}
    found = [
        AgentDataset(agent.name, each, environment=places[agent.name])
        for agent in agents
        for each in agent.datasets or ()
    ]
    in_scope = [each for each in found if each.type in types]
    if not in_scope:
        wanted = " or ".join(types)
        raise ConfigError(
            f"No agent of the configuration has a dataset of type {wanted}. Give its files with +config_paths."
        )
    without = [agent.name for agent in agents if not agent.datasets]
    return DatasetScope(servers, without, _with_distinct_names(in_scope))


def _environment_of(
    agent: ServerInstanceConfig, servers: Sequence[ServerInstanceConfig], config: "DictConfig"
) -> EnvironmentCode | None:
    """The environment that an agent refers to, if the configuration has it."""
    reference = config[agent.name][agent.SERVER_TYPE][agent.implementation].get("resources_server") or {}
    environments = [each for each in servers if each.SERVER_TYPE == "resources_servers"]
    found = next((each for each in environments if each.name == reference.get("name")), None)
    if found is None:
        return None
    settings = found.get_inner_run_server_config()
    folder = server_folder(found, settings.entrypoint)
    return EnvironmentCode(found.name, folder, settings.entrypoint, settings.model_dump_json())


def _with_distinct_names(datasets: Sequence[AgentDataset]) -> list[AgentDataset]:
    """The second dataset on the same file has files of its own beside it."""
    named: list[AgentDataset] = []
    for each in datasets:
        is_second = any(other.dataset.jsonl_fpath == each.dataset.jsonl_fpath for other in named)
        stem = f"{Path(each.dataset.jsonl_fpath).stem}_{each.agent}_{each.dataset.name}" if is_second else ""
        named.append(replace(each, stem=stem))
    return named


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
