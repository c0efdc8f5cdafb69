"""The environments to check, each with its rows, its judge, and its code."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import orjson
import yaml
from omegaconf import DictConfig

from nemo_gym.analysis.gold import Gold, gold_finder
from nemo_gym.base_resources_server import BaseRunRequest
from nemo_gym.common.paths import find, nearest
from nemo_gym.config.keys import blocks_in
from nemo_gym.config.loading import ServerSpec, server_instances
from nemo_gym.data.generate import EASIEST, GENERATOR, HARDEST, JUDGE_CONFIG, load_generator
from nemo_gym.errors import ConfigError, GymError
from nemo_gym.evaluation.catalog import Entry, config_of, entries, find_environment
from nemo_gym.llm_api.base import JsonObject
from nemo_gym.llm_api.builders import message
from nemo_gym.runtime.requirements import missing_requirements
from nemo_gym.trust.check import Checked, CheckVerifierConfig
from nemo_gym.trust.judge_probes import JudgeScript, judges_of, played_judge

ALL = "all"
EXAMPLES = Path("data/example.jsonl")
ANSWERS = ("expected_answer", "answer", "outputs", "target", "ground_truth", "label", "reference", "expected_values")
"""Fields in which rows may have their answer."""
FORMS = ("{}", "\\boxed{{{}}}", "Answer: {}", "Final Answer: {}", "<answer>{}</answer>", "The answer is {}")


@dataclass(frozen=True)
class CheckedEnvironment:
    """An environment, its rows, and the servers that take the place of its judges."""

    spec: ServerSpec
    checked: Checked
    judge: JudgeScript | None
    classes: Mapping[str, type[Any]]


def configs_to_check(name: str) -> list[Path]:
    """The config files of a name, a folder, a file, or of all environments."""
    if name == ALL:
        return [_config_of(entry) for entry in entries("resources_servers") if entry.configs]
    if name.endswith((".yaml", ".yml")):
        return [find(name, what="config file")]
    return [_config_of(find_environment(name), name)]


def _config_of(entry: Entry, name: str = "") -> Path:
    """The config that is asked for, or named like the folder, or else the first."""
    try:
        return config_of(entry, name)
    except ConfigError:
        if not entry.configs:
            raise
        return entry.configs[0]


def config_files(config: Path) -> list[str]:
    """The files to load for an environment: its own and, if it needs one, a model that says nothing."""
    try:
        known = {block.name for block in blocks_in(yaml.safe_load(config.read_text()) or {})}
    except (OSError, yaml.YAMLError, AttributeError) as error:
        raise ConfigError(f"{config} is no configuration: {error}") from error
    return [str(config), *([] if "policy_model" in known else [str(find(JUDGE_CONFIG))])]


def environments_to_check(config: CheckVerifierConfig, settings: DictConfig) -> Iterator[CheckedEnvironment]:
    """The environments of a configuration that were asked for."""
    instances = server_instances(settings)
    environments = {one.name: one for one in instances if one.server_type == "resources_servers"}
    chosen = [config.resources_server] if config.resources_server else list(environments)
    for name in chosen:
        if name not in environments:
            known = f"There are: {', '.join(environments) or 'none'}."
            raise ConfigError(f"No environment is called '{name}'. {known}{nearest(name, environments)}")
    if config.input_jsonl_fpath and len(chosen) != 1:
        raise ConfigError(f"Which environment are the rows for? Give +resources_server, one of: {', '.join(chosen)}.")
    return (_checked(config, environments[name], instances) for name in chosen)


def _checked(config: CheckVerifierConfig, environment: ServerSpec, instances: list[ServerSpec]) -> CheckedEnvironment:
    rows = list(islice(_rows_of(config, environment, instances), config.limit))
    if not rows:
        raise ConfigError(f"There are no rows to check '{environment.name}' with. Give +input_jsonl_fpath.")
    judges = [name for name in judges_of(environment.config) if name in {one.name for one in instances}]
    can_play = judges and environment.isolation == "shared" and not missing_requirements(environment.folder)
    script = JudgeScript() if can_play else None
    classes = {} if script is None else dict.fromkeys(judges, played_judge(script))
    known = gold_finder(environment)

    def golds_of(row: JsonObject) -> list[Gold]:
        return known(row) or list(_wide_guesses(row))

    return CheckedEnvironment(environment, Checked(environment.name, rows, golds_of), script, classes)


def _wide_guesses(row: JsonObject) -> Iterator[Gold]:
    """Right answers by the fields that rows of others have, in a few formats."""
    for name in ANSWERS:
        found = row.get(name)
        values = found if isinstance(found, list) else [found]
        if values and all(isinstance(each, str | int | float) and not isinstance(each, bool) for each in values):
            listed = ", ".join(map(str, values))
            for bare in dict.fromkeys([listed, *([f"[{listed}]"] if isinstance(found, list) else [])]):
                for form in FORMS:
                    yield Gold([message(form.format(bare))], bare)


def _rows_of(
    config: CheckVerifierConfig, environment: ServerSpec, instances: list[ServerSpec]
) -> Iterator[JsonObject]:
    files = [config.input_jsonl_fpath] if config.input_jsonl_fpath else _example_files(environment, instances)
    for file in files:
        yield from _read(file)
    if config.generated_rows and (environment.folder / GENERATOR).is_file():
        yield from _generated(environment, config)


def _generated(environment: ServerSpec, config: CheckVerifierConfig) -> Iterator[JsonObject]:
    """Rows of all difficulties."""
    generate, levels = load_generator(environment.folder), range(EASIEST, HARDEST + 1)
    for level in levels:
        count = config.generated_rows // len(levels) + (level <= config.generated_rows % len(levels))
        try:
            yield from generate(config.seed, count, level)
        except GymError:  # there are not as many different rows of this difficulty
            continue


def _read(file: str) -> Iterator[JsonObject]:
    for number, line in enumerate(find(file).read_bytes().splitlines(), start=1):
        try:
            row = orjson.loads(line)
            BaseRunRequest.model_validate(row)
        except ValueError as error:
            raise ConfigError(f"{file}:{number} is not a row: {error}") from error
        yield _row_of_rollout(row) if "response" in row and "reward" in row else row


def _row_of_rollout(record: JsonObject) -> JsonObject:
    """The row of a stored rollout. What got the full reward there is a right answer."""
    row = {name: value for name, value in record.items() if name not in ("response", "reward")}
    output = [item for item in record["response"].get("output") or () if item.get("type") != "function_call_output"]
    is_right = record["reward"] >= 1.0 and any(item.get("type") in ("message", "function_call") for item in output)
    return {**row, "gold_response": output} if is_right else row


def _example_files(environment: ServerSpec, instances: list[ServerSpec]) -> Iterable[str]:
    """The example datasets of the agents that use an environment, or those in its folder."""
    agents = [one.config for one in instances if one.server_type == "responses_api_agents"]
    users = [agent for agent in agents if (agent.get("resources_server") or {}).get("name") == environment.name]
    datasets = [dataset for agent in users for dataset in agent.get("datasets") or ()]
    named = list(dict.fromkeys(each["jsonl_fpath"] for each in datasets if each["type"] == "example"))
    own = environment.folder / EXAMPLES
    return named or ([str(own)] if own.is_file() else [])
