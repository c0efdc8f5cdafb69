"""`ng eval`: collect rollouts of an environment by its name. Config, agent and dataset are found.

What is found becomes keys of the configuration, which is then read once, as `ng_collect_rollouts` reads it.
"""

import contextlib
import shlex
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from omegaconf import DictConfig
from pydantic import Field, field_validator

from nemo_gym.cli.collect import collect_with_progress
from nemo_gym.cli.command import config_command, print_result, wants_json
from nemo_gym.config.command_line import process_command_line, shown_arguments
from nemo_gym.config.keys import CONFIG_PATHS_KEY_NAME, POLICY_BASE_URL_KEY_NAME, POLICY_MODEL_NAME_KEY_NAME
from nemo_gym.config.loading import load_config
from nemo_gym.config.types import CommandConfig
from nemo_gym.errors import ConfigError
from nemo_gym.evaluation.models import Scripted, Setup, merged, model_setup
from nemo_gym.evaluation.rows import write_dataset
from nemo_gym.evaluation.run import check_all_rows
from nemo_gym.evaluation.setup import Target, dataset_entry, dataset_of, find_target, with_judge
from nemo_gym.rollouts.collection import Collection
from nemo_gym.rollouts.config import RolloutCollectionConfig
from nemo_gym.rollouts.metrics import RunningMetrics
from nemo_gym.rollouts.store import collated_inputs_path


class EvalConfig(CommandConfig):
    """Evaluate a model in one environment or several: collect scored rollouts and show the metrics.

    The config, the agent and the dataset are found by the name of the environment. All other settings of
    `ng_collect_rollouts` and of the servers can be given, too.

    Examples:

    ```bash
    ng eval mcqa --model local -n 4
    ng eval resources_servers/my_env --model gpt-4.1 --limit 20 --repeats 4
    ng eval my_env --agent my_module:MyAgent --script replies.jsonl
    ng eval mcqa calendar workplace_assistant --model gpt-4.1
    ng eval human_eval --model gpt-4.1
    ```
    """

    POSITIONAL: ClassVar[tuple[str, ...]] = ("environment",)
    SHORT_OPTIONS: ClassVar[dict[str, str]] = {"m": "model", "n": "limit", "o": "output"}

    environment: list[str]
    """Name or folder of the environment, or one of its config files; or several of them. `ng list environments` lists
    them."""

    model: str | None = None
    """`local` for the model on this machine's CPU, the name of a model at your endpoint, the URL of an endpoint, or a
    folder or config of responses_api_models. By default the endpoint of env.yaml or of OPENAI_BASE_URL or, without
    one, `local`."""

    script: str | None = None
    """A model that says what this file has: JSON Lines as for `scripted_model`, such as {"say": "Paris."}."""

    agent: str | None = None
    """Name of an agent in the config, of a folder in responses_api_agents, or a class as `module:Class`. By default
    the only agent of the config."""

    judge: list[str] | None = None
    """The model that judges, or several, in the same words as `model`. By default that of the config."""

    config: list[str] = Field(default_factory=list)
    """More YAML files, such as those of a judge or of settings. They win over the config of the environment."""

    dataset: str | None = None
    """Name or type of a dataset in the config, or a file. By default its benchmark, which is downloaded once, its
    validation data or, if not on disk, its examples."""

    category: str | None = None
    """Use only the rows of this category of a benchmark, or of all categories that begin with it."""

    limit: int | None = Field(default=None, ge=0)
    """Use only the first N rows of the dataset. 0 means all."""

    repeats: int = Field(default=1, ge=1)
    """Number of rollouts per row."""

    output: str | None = None
    """File for the scored rollouts. By default results/<environment>/<time>.jsonl. With several environments, a
    folder."""

    resume: Literal["ask", "continue", "restart"] = "ask"
    """What to do with rollouts in `output` that were made another way."""

    @field_validator("judge", mode="before")
    @classmethod
    def _is_no_server(cls, value: Any) -> Any:
        """A server of the configuration may be called `judge`."""
        return None if isinstance(value, Mapping) else value


def find_by_name(given: DictConfig, environment: str | None = None) -> dict[str, Any]:
    """The keys of `ng_collect_rollouts` for what `env.yaml` and the command line ask for, by default for the first
    environment."""
    options = EvalConfig.read(given)
    name = environment or options.environment[0]
    target = find_target(name, options.agent)
    setup = _setup(options, target, given)
    rows = str(options.dataset) if _is_file(options.dataset) else _rows(options, target)
    output = _output(options, target)
    return {
        **setup.settings,
        CONFIG_PATHS_KEY_NAME: [*setup.config_paths, *options.config],
        "agent_name": target.agent,
        "input_jsonl_fpath": str(write_dataset(rows, collated_inputs_path(Path(output)))),
        "output_jsonl_fpath": output,
        "num_repeats": options.repeats,
    }


@config_command(EvalConfig, initial=find_by_name)
def evaluate_model(options: EvalConfig, config: DictConfig) -> int:
    """Evaluate a model in an environment."""
    code, results = 0, list[dict[str, Any]]()
    for index, name in enumerate(options.environment):
        if index:
            config = load_config(
                process_command_line(), initial=partial(find_by_name, environment=name), fill_ports=False
            )
        collection = RolloutCollectionConfig.read(config)
        metrics = _evaluate(options, name, config, collection)
        code |= metrics.failed.total() > collection.tolerated_failures
        results.append({"environment": name, "output": collection.output_jsonl_fpath, "metrics": metrics.summary()})
    if len(results) > 1:
        print_result({"environments": results}, "" if wants_json() else "\n".join(map(_line, results)))
    return code


def _evaluate(
    options: EvalConfig, name: str, config: DictConfig, collection: RolloutCollectionConfig
) -> RunningMetrics:
    target = find_target(name, options.agent)
    own = target.setup  # the classes of an agent are in no configuration
    model = options.script or options.model or _default_model(config)
    rows = Path(collection.input_jsonl_fpath)
    shown = rows.relative_to(Path.cwd()) if rows.is_relative_to(Path.cwd()) else rows
    print(f"{collection.agent_name} on {shown}, model: {model}", file=sys.stderr)
    try:
        metrics = collect_with_progress(Collection(config, collection, own.classes, own.code, check_all_rows))
        _show_baseline(options, target)
        return metrics
    except KeyboardInterrupt:
        _say_how_to_resume(collection.output_jsonl_fpath)
        raise


def _show_baseline(options: EvalConfig, target: Target) -> None:
    """Say what to compare the score with, if the config knows: doing nothing, and how published scores are made."""
    entry = None if _is_file(options.dataset) else dataset_entry(target, options.dataset)
    packaged = entry.packaged if entry else None
    if packaged is None:
        return
    if packaged.do_nothing_reward is not None:
        score = f"{packaged.do_nothing_reward:.3g}"
        print(f"On all rows of {packaged.name}, a policy that does nothing scores {score}.", file=sys.stderr)
    if packaged.published_scores is not None:
        print(f"Published scores: {packaged.published_scores}", file=sys.stderr)


def _setup(options: EvalConfig, target: Target, given: DictConfig) -> Setup:
    if options.script is not None and options.model is not None:
        raise ConfigError("Give --model or --script: a script is a model of its own.")
    model = options.model if options.script is None else Scripted(options.script)
    return merged(with_judge(target, options.judge, given).setup, model_setup(model, given))


def _rows(options: EvalConfig, target: Target) -> str:
    return dataset_of(target, options.dataset, options.category, say=partial(print, file=sys.stderr, flush=True))


def _is_file(dataset: str | None) -> bool:
    return dataset is not None and (dataset.endswith(".jsonl") or Path(dataset).is_file())


def _output(options: EvalConfig, target: Target) -> str:
    if options.output is None:
        return new_output(target.name)
    if len(options.environment) == 1:
        return options.output
    if options.output.endswith(".jsonl"):
        raise ConfigError(f"'{options.output}' is one file; for several environments, --output names a folder.")
    return str(Path(options.output) / f"{target.name}.jsonl")


def new_output(name: str) -> str:
    """A file named by the time, which did not exist: another `ng eval` of the same second gets another one."""
    base = Path(f"results/{name}/{time.strftime('%Y%m%d-%H%M%S')}")
    base.parent.mkdir(parents=True, exist_ok=True)
    for suffix in ("", *(f"-{number}" for number in range(2, 1000))):
        with contextlib.suppress(FileExistsError):
            path = f"{base}{suffix}.jsonl"
            Path(path).touch(exist_ok=False)
            return path
    raise ConfigError(f"There are a thousand outputs like {base}.jsonl. Name one with --output.")


def _line(result: dict[str, Any]) -> str:
    metrics = result["metrics"]
    reward, failed = metrics["reward"], metrics["failed"]
    shown = f"reward {reward['mean']:.4g}" if reward else "no reward"
    return f"{result['environment']}: {shown}, {metrics['scored']} scored{f', {failed} failed' if failed else ''}"


def _default_model(given: DictConfig) -> str:
    is_configured = bool(given.get(POLICY_BASE_URL_KEY_NAME))
    return str(given.get(POLICY_MODEL_NAME_KEY_NAME, "policy_model")) if is_configured else "local"


def _say_how_to_resume(output: str) -> None:
    typed = sys.argv[1:]
    added = [] if any(part in ("-o", "--output") or "output=" in part for part in typed) else ["--output", output]
    shown = " ".join(shlex.quote(part) for part in shown_arguments([*typed, *added]))
    print(f"To make the missing rollouts: ng eval {shown}", file=sys.stderr)
