"""Which datasets of a configuration a command is about."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from nemo_gym.common.paths import find
from nemo_gym.config.checks import valid_servers
from nemo_gym.config.loading import read_settings, server_folder
from nemo_gym.config.types import DatasetConfig, DatasetType, ServerInstanceConfig
from nemo_gym.data.prompts import materialize_prompts
from nemo_gym.data.row_check import EnvironmentCode
from nemo_gym.errors import ConfigError, MissingPathError

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
