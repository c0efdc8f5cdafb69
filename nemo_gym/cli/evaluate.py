"""`ng eval`: collect rollouts of an environment by its name. Config, agent and dataset are found.

What is found becomes keys of the configuration, which is then read once, as `ng_collect_rollouts` reads it.
"""

import atexit
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
from nemo_gym.evaluation.models import Scripted, Setup, merged, model_setup, names_in_messages
from nemo_gym.evaluation.rows import write_dataset
from nemo_gym.evaluation.run import check_all_rows
from nemo_gym.evaluation.setup import Target, dataset_entry, dataset_of, find_target, with_judge, with_user
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

    user: str | None = None
    """The model that plays the user, in the same words as `model`. By default that of the config."""

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
    folder, by default results/<time>."""

    resume: Literal["ask", "continue", "restart"] = "ask"
    """What to do with rollouts in `output` that were made another way."""

    @field_validator("judge", "user", mode="before")
    @classmethod
    def _is_no_server(cls, value: Any) -> Any:
        """A server of the configuration may be called `judge` or `user`."""
        return None if isinstance(value, Mapping) else value


def find_by_name(given: DictConfig, environment: str | None = None, folder: Path | None = None) -> dict[str, Any]:
    """The keys of `ng_collect_rollouts` for what `env.yaml` and the command line ask for, by default for the first
    environment. `folder` is for the outputs of several."""
    options = EvalConfig.read(given)
    name = environment or options.environment[0]
    target = find_target(name, options.agent)
    setup = _setup(options, target, given)
    rows = str(options.dataset) if _is_file(options.dataset) else _rows(options, target)
    output = _output(options, target, folder)
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
    folder = Path(str(config["output_jsonl_fpath"])).parent
    configs = {options.environment[0]: config}
    for name in options.environment[1:]:  # all are found before the first one costs anything
        initial = partial(find_by_name, environment=name, folder=folder)
        configs[name] = load_config(process_command_line(), initial=initial, fill_ports=False)
    code, results = 0, list[dict[str, Any]]()
    for name, each in configs.items():
        collection = RolloutCollectionConfig.read(each)
        metrics = _evaluate(options, name, each, collection)
        code |= metrics.failed.total() > collection.tolerated_failures
        results.append({"environment": name, "output": collection.output_jsonl_fpath, "metrics": metrics.summary()})
    if len(results) > 1:
        lines = [*map(_line, results), f"Look at all of them: ng view {shlex.quote(str(folder))}"]
        print_result({"environments": results}, "" if wants_json() else "\n".join(lines))
    return code


def _evaluate(
    options: EvalConfig, name: str, config: DictConfig, collection: RolloutCollectionConfig
) -> RunningMetrics:
    target = find_target(name, options.agent)
    own = target.setup  # the classes of an agent are in no configuration
    model = options.script or options.model or _default_model(config)
    names = names_in_messages(config, options.model)
    rows = Path(collection.input_jsonl_fpath)
    shown = rows.relative_to(Path.cwd()) if rows.is_relative_to(Path.cwd()) else rows
    print(f"{collection.agent_name} on {shown}, model: {model}", file=sys.stderr)
    try:
        metrics = collect_with_progress(Collection(config, collection, own.classes, own.code, check_all_rows, names))
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
    found = with_user(with_judge(target, options.judge, given), options.user, given)
    return merged(found.setup, model_setup(model, given))


def _rows(options: EvalConfig, target: Target) -> str:
    return dataset_of(target, options.dataset, options.category, say=partial(print, file=sys.stderr, flush=True))


def _is_file(dataset: str | None) -> bool:
    return dataset is not None and (dataset.endswith(".jsonl") or Path(dataset).is_file())


def _output(options: EvalConfig, target: Target, folder: Path | None) -> str:
    if len(options.environment) == 1:
        return options.output or str(new_output(Path("results", target.name), ".jsonl"))
    if options.output is not None and options.output.endswith(".jsonl"):
        raise ConfigError(f"'{options.output}' is one file; for several environments, --output names a folder.")
    folder = folder or Path(options.output or new_output(Path("results"), ""))
    return str(folder / f"{target.name}.jsonl")


def new_output(folder: Path, ending: str) -> Path:
    """A file or folder named by the time, which did not exist: another `ng eval` of the same second gets another one.
    It is removed when this process ends if nothing was written."""
    base = time.strftime("%Y%m%d-%H%M%S")
    folder.mkdir(parents=True, exist_ok=True)
    for suffix in ("", *(f"-{number}" for number in range(2, 1000))):
        path = folder / f"{base}{suffix}{ending}"
        with contextlib.suppress(FileExistsError):
            path.touch(exist_ok=False) if ending else path.mkdir()
            atexit.register(_remove_unused, path)
            return path
    raise ConfigError(f"There are a thousand outputs like {folder / base}{ending}. Name one with --output.")


def _remove_unused(path: Path) -> None:
    """Remove an output without rollouts and failures, with the rows that were prepared for it."""
    prepared = collated_inputs_path(path)
    with contextlib.suppress(OSError):  # a folder with something in it
        if path.is_dir():
            path.rmdir()
        elif path.stat().st_size == 0 and {path, prepared} >= set(path.parent.glob(f"{path.stem}*")):
            path.unlink()
            prepared.unlink(missing_ok=True)
        path.parent.rmdir()


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
