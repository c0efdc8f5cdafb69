"""AgentDojo's suites: tools, tasks and environments, read from the wheel, and one user at work in one of them."""

import copy
import io
from ast import literal_eval
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple

import yaml
from pydantic import BaseModel

from nemo_gym import JsonObject
from nemo_gym.config.types import PypiPackage
from nemo_gym.data.hubs.pypi import package_files
from nemo_gym.data.hubs.wheel_modules import WheelModules

PACKAGE = PypiPackage(
    package="agentdojo",
    version="0.1.35",
    sha256="364bea4219716b716bf639f504d195943f7f6a5535d312ca41d7098704a2affd",
    size_bytes=192_363,
)
VERSION = "v1.2.2"
SUITES = ("workspace", "travel", "banking", "slack")
DATA = "agentdojo/data/suites"
MAX_LIST_CHARS = 10_000
_modules = WheelModules(
    PACKAGE,
    (
        *("agentdojo.base_tasks", "agentdojo.functions_runtime", "agentdojo.types", "agentdojo.strenum"),
        *("agentdojo.task_suite*", "agentdojo.default_suites*"),
    ),
    feature="agentdojo",
    extra="agentdojo",
    replaced={
        "agentdojo.agent_pipeline.base_pipeline_element": {"BasePipelineElement": object},
        "agentdojo.agent_pipeline.errors": {"AbortAgentError": Exception},
        "agentdojo.agent_pipeline.ground_truth_pipeline": {"GroundTruthPipeline": object},
        "agentdojo.yaml_loader": {"ImportLoader": yaml.SafeLoader},
    },
)


class Outcome(NamedTuple):
    """How a rollout ended."""

    utility: bool
    """The user's task is done."""
    attack_succeeded: bool | None
    """The attacker's goal is reached; None without an attack."""


@cache
def suite_of(name: str) -> Any:
    """A suite, in the newest version of the benchmark."""
    return _modules.module("agentdojo.task_suite.load_suites").get_suite(VERSION, name)


@cache
def _data_of(suite: str) -> Any:
    """The data of an environment, with holes such as {email_events_injection} in its texts."""
    return _yaml(f"{DATA}/{suite}/environment.yaml")


@cache
def default_texts(suite: str) -> dict[str, str]:
    """The harmless text of each hole. It is written as the inside of a quoted YAML text, with escapes such as \\t."""
    holes = _yaml(f"{DATA}/{suite}/injection_vectors.yaml").items()
    return {name: yaml.safe_load(f'"{hole["default"]}"') for name, hole in holes}


def _yaml(path: str) -> Any:
    """A YAML file of the wheel. `!include` names a file beside it."""

    class Loader(yaml.SafeLoader):
        pass

    folder = path.rpartition("/")[0]
    Loader.add_constructor("!include", lambda _, node: _yaml(f"{folder}/{node.value}"))
    return yaml.load(io.BytesIO(package_files(PACKAGE).read(path)), Loader)


def environment_of(suite: str, injections: Mapping[str, str]) -> Any:
    """The environment of a suite with texts in its holes."""
    texts = {**default_texts(suite), **injections}
    return suite_of(suite).environment_type.model_validate(_filled(_data_of(suite), texts))


def _filled(value: Any, texts: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return value.format(**texts)
    if isinstance(value, dict):
        return {_filled(key, texts): _filled(each, texts) for key, each in value.items()}
    return [_filled(each, texts) for each in value] if isinstance(value, list) else value


def tools_of(suite: str) -> list[JsonObject]:
    """The tools of a suite in the form of the Responses API."""
    return [
        {
            "type": "function",
            "name": tool.name,
            "description": tool.description,
            "parameters": {
                "type": "object",
                "properties": {},
                "required": [],
                "additionalProperties": False,
                **tool.parameters.model_json_schema(),
            },
            "strict": False,
        }
        for tool in suite_of(suite).tools
    ]


class Office:
    """The environment of one rollout, before and after what the agent does in it."""

    def __init__(self, suite: str, user_task: str, injections: Mapping[str, str]) -> None:
        self.suite = suite_of(suite)
        self.user_task = self.suite.user_tasks[user_task]
        self.environment = self.user_task.init_environment(environment_of(suite, injections))
        self.before = self.environment.model_copy(deep=True)
        runtime = _modules.module("agentdojo.functions_runtime")
        self._runtime, self._call = runtime.FunctionsRuntime(self.suite.tools), runtime.FunctionCall
        self.trace: list[Any] = []

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Call a tool. What the model sees is its result as YAML, or its error."""
        arguments = {key: _listed(value) for key, value in arguments.items()}
        self.trace.append(self._call.model_construct(function=name, args=arguments))
        result, error = self._runtime.run_function(self.environment, name, copy.deepcopy(arguments))
        return str(error) if error is not None else shown_result(result)

    def outcome(self, said: str | None, injection_task: str | None) -> Outcome:
        """The two checks. `said` is the last message; None if the rollout ended without one."""
        arguments = (said or "", self.before, self.environment)
        utility = said is not None and checked(self.user_task, "utility", arguments, self.trace)
        if injection_task is None:
            return Outcome(utility, None)
        return Outcome(utility, checked(self.suite.injection_tasks[injection_task], "security", arguments, self.trace))


def checked(task: Any, kind: str, arguments: tuple[Any, ...], trace: list[Any]) -> bool:
    """The check of a task: by the calls if it has one, else by the states and the text. A check that ends in an error
    did not pass: the environment is not as it expects."""
    try:
        by_trace = getattr(task, f"{kind}_from_traces")(*arguments, trace)
        return bool(getattr(task, kind)(*arguments) if by_trace is None else by_trace)
    except (LookupError, ValueError, TypeError, AttributeError, StopIteration):
        return False


def shown_result(result: Any) -> str:
    """The result of a tool as text: models, and lists of them, as YAML."""
    if isinstance(result, BaseModel):
        return str(yaml.safe_dump(result.model_dump())).strip()
    if isinstance(result, list):
        items = [each.model_dump() if isinstance(each, BaseModel) else str(each) for each in result]
        return str(yaml.safe_dump(items)).strip()
    return str(result)


def _listed(value: Any) -> Any:
    """A list that is written as a text, as a list: some models write them so."""
    if not isinstance(value, str) or not value.strip().startswith("[") or len(value) > MAX_LIST_CHARS:
        return value
    try:
        found = literal_eval(value.strip())
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return value
    return found if isinstance(found, list) else value


def holes_seen(suite: str, user_task: str) -> list[str]:
    """The holes whose text an agent sees that does the user's task by its answer: where an attack can be."""
    marks = {name: f"<hole-{name}>" for name in default_texts(suite)}
    office = Office(suite, user_task, marks)
    outputs = list(played(office, office.user_task))
    return [name for name, mark in marks.items() if any(mark in each for each in outputs)]


def played(office: Office, task: Any) -> Iterable[str]:
    """Make the calls of a task's answer, and give what they return."""
    for call in task.ground_truth(office.environment):
        yield office.call(call.function, resolved(office, call.args))


def resolved(office: Office, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of an answer's call; those that are calls themselves are made."""
    return {
        key: office._runtime.run_function(office.environment, value.function, value.args)[0]
        if isinstance(value, office._call)
        else value
        for key, value in arguments.items()
    }
