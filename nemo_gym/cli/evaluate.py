"""`ng eval`: collect rollouts of an environment by its name. Config, agent and dataset are found.

What is found becomes keys of the configuration, which is then read once, as `ng_collect_rollouts` reads it.
"""

import os
import shlex
import sys
import time
from pathlib import Path
from typing import Any, ClassVar, Literal

from omegaconf import DictConfig
from pydantic import Field

from nemo_gym.cli.catalog import DatasetEntry, Entry, EnvironmentAgent, agents_in, config_of, entries, find_environment
from nemo_gym.cli.collect import collect_with_progress
from nemo_gym.cli.command import config_command
from nemo_gym.common.paths import nearest
from nemo_gym.config.command_line import shown_arguments
from nemo_gym.config.keys import POLICY_API_KEY_KEY_NAME, POLICY_BASE_URL_KEY_NAME, POLICY_MODEL_NAME_KEY_NAME
from nemo_gym.config.types import CommandConfig
from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.config import RolloutCollectionConfig

OPENAI_URL = "https://api.openai.com/v1"
OPENAI_KEY_ENV_VAR = "OPENAI_API_KEY"
PREFERRED = ("validation", "example", "train")
"""Types of datasets, the one to evaluate on first."""


class EvalConfig(CommandConfig):
    """Evaluate a model in an environment: collect scored rollouts and show the metrics.

    The config, the agent and the dataset are found by the name of the environment. All other settings of
    `ng_collect_rollouts` and of the servers can be given, too.

    Examples:

    ```bash
    ng eval mcqa --model local -n 4
    ng eval resources_servers/my_env --model gpt-4.1 --limit 20 --repeats 4
    ```
    """

    POSITIONAL: ClassVar[tuple[str, ...]] = ("environment",)
    SHORT_OPTIONS: ClassVar[dict[str, str]] = {"m": "model", "n": "limit", "o": "output"}

    environment: str
    """Name or folder of the environment, or one of its config files. `ng list environments` lists them."""

    model: str | None = None
    """`local` for the model on this machine's CPU, the name of a model at your endpoint, or a folder or config of
    responses_api_models. By default the endpoint of env.yaml or, without one, `local`."""

    agent: str | None = None
    """Name of the agent in the config. By default its only agent."""

    dataset: str | None = None
    """Name or type of a dataset in the config, or a file. By default its validation data or, if not on disk, its
    examples."""

    limit: int | None = Field(default=None, ge=0)
    """Use only the first N rows of the dataset. 0 means all."""

    repeats: int = Field(default=1, ge=1)
    """Number of rollouts per row."""

    output: str | None = None
    """File for the scored rollouts. By default results/<environment>/<time>.jsonl."""

    resume: Literal["ask", "continue", "restart"] = "ask"
    """What to do with rollouts in `output` that were made another way."""


def find_by_name(given: DictConfig) -> dict[str, Any]:
    """The keys of `ng_collect_rollouts` for what `env.yaml` and the command line ask for."""
    options = EvalConfig.read(given)
    config_path = _environment_config(options.environment)
    agent = _agent(config_path, options.agent)
    return {
        "config_paths": [str(config_path), *_model_configs(options.model, given)],
        "agent_name": agent.name,
        "input_jsonl_fpath": _dataset(agent, options.dataset),
        "output_jsonl_fpath": options.output or _new_output(Path(options.environment.rstrip("/")).stem),
        "num_repeats": options.repeats,
        **_policy(options.model, given),
    }


@config_command(EvalConfig, initial=find_by_name)
def evaluate_model(options: EvalConfig, config: DictConfig) -> int:
    """Evaluate a model in an environment."""
    collection = RolloutCollectionConfig.read(config)
    model = options.model or _default_model(config)
    print(f"{collection.agent_name} on {collection.input_jsonl_fpath}, model: {model}", file=sys.stderr)
    try:
        metrics = collect_with_progress(config, collection)
    except KeyboardInterrupt:
        _say_how_to_resume(collection.output_jsonl_fpath)
        raise
    return int(metrics.failed.total() > collection.tolerated_failures)


def _new_output(name: str) -> str:
    """A file that does not exist yet, named by the time."""
    base = f"results/{name}/{time.strftime('%Y%m%d-%H%M%S')}"
    candidates = (f"{base}{suffix}.jsonl" for suffix in ("", *(f"-{number}" for number in range(2, 1000))))
    return next(path for path in candidates if not Path(path).exists())


def _environment_config(name: str) -> Path:
    if name.endswith((".yaml", ".yml")):
        return Path(name)
    return config_of(find_environment(name), name.rstrip("/").rpartition("/")[2])


def _agent(config: Path, name: str | None) -> EnvironmentAgent:
    agents = {agent.name: agent for agent in agents_in(config)}
    if not agents:
        raise ConfigError(f"{config} defines no agent, so there is nothing to evaluate.")
    if name is None and len(agents) == 1:
        return next(iter(agents.values()))
    listed = ", ".join(agents)
    if name is None:
        raise ConfigError(f"{config} defines several agents. Choose one with --agent: {listed}.")
    if name not in agents:
        raise ConfigError(f"{config} defines no agent '{name}'. Its agents: {listed}.{nearest(name, agents)}")
    return agents[name]


def _dataset(agent: EnvironmentAgent, wanted: str | None) -> str:
    if wanted is not None and (wanted.endswith(".jsonl") or Path(wanted).is_file()):
        return wanted
    chosen = [each for each in agent.datasets if wanted in (None, each.name, each.type)]
    if not chosen:
        names = sorted({each.name for each in agent.datasets})
        listed = ", ".join(names) or "none"
        hint = nearest(wanted or "", names)
        raise ConfigError(f"{agent.name} has no dataset '{wanted}'. Its datasets: {listed}.{hint} Or give a file.")
    on_disk = sorted((each for each in chosen if each.is_on_disk), key=_preference)
    if not on_disk:
        missing = ", ".join(each.path for each in chosen)
        raise ConfigError(f"No dataset of {agent.name} is on disk: {missing}. Download it, or give a file.")
    return on_disk[0].path


def _preference(dataset: DatasetEntry) -> int:
    return PREFERRED.index(dataset.type) if dataset.type in PREFERRED else len(PREFERRED)


def _model_entry(name: str) -> Entry | None:
    folder = name.rstrip("/").removeprefix("responses_api_models/")
    return next((each for each in entries("responses_api_models") if each.name in (folder, f"{folder}_model")), None)


def _model_configs(name: str | None, given: DictConfig) -> list[str]:
    """The config of the model. None for the default, which the configuration itself chooses."""
    if name is not None and name.endswith((".yaml", ".yml")):
        return [name]
    entry = None if name is None else _model_entry(name)
    if entry is not None:
        return [str(config_of(entry))]
    if name is None and not _has_endpoint(given):
        return []
    return ["responses_api_models/openai_model/configs/openai_model.yaml"]


def _policy(name: str | None, given: DictConfig) -> dict[str, Any]:
    """Where the model is, if a name says which."""
    if name is None or name.endswith((".yaml", ".yml")) or _model_entry(name) is not None:
        return {}
    key = given.get(POLICY_API_KEY_KEY_NAME) or os.environ.get(OPENAI_KEY_ENV_VAR)
    if not key:
        models = [each.name for each in entries("responses_api_models")]
        hint = nearest(name, ["local", *models])
        raise ConfigError(
            f"'{name}' is a model at an endpoint, which needs a key: set {OPENAI_KEY_ENV_VAR}, or policy_api_key and "
            f"policy_base_url in env.yaml. `--model local` needs none.{hint}"
        )
    url = given.get(POLICY_BASE_URL_KEY_NAME) or OPENAI_URL
    return {
        POLICY_BASE_URL_KEY_NAME: url,
        POLICY_API_KEY_KEY_NAME: key,
        POLICY_MODEL_NAME_KEY_NAME: name,
    }


def _has_endpoint(given: DictConfig) -> bool:
    return bool(given.get(POLICY_BASE_URL_KEY_NAME))


def _default_model(given: DictConfig) -> str:
    return str(given.get(POLICY_MODEL_NAME_KEY_NAME, "policy_model")) if _has_endpoint(given) else "local"


def _say_how_to_resume(output: str) -> None:
    typed = sys.argv[1:]
    added = [] if any(part in ("-o", "--output") or "output=" in part for part in typed) else ["--output", output]
    shown = " ".join(shlex.quote(part) for part in shown_arguments([*typed, *added]))
    print(f"To make the missing rollouts: ng eval {shown}", file=sys.stderr)
