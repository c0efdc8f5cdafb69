"""Create environments and agents from templates; test server folders, their example data, and NeMo Gym itself."""

import importlib.util
import keyword
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any, ClassVar, NamedTuple

import orjson

from nemo_gym.cli.command import FAILED, command
from nemo_gym.common.paths import (
    EXTRA_ROOTS_ENV_VAR,
    PACKAGE_DIR,
    PARENT_DIR,
    PUBLIC_FOLDERS,
    SERVER_FOLDERS,
    find,
    nearest,
    search_roots,
)
from nemo_gym.common.words import json_type
from nemo_gym.config.types import CommandConfig
from nemo_gym.config.validation import validate
from nemo_gym.errors import ConfigError, MissingExtraError
from nemo_gym.runtime.requirements import python_for

TEMPLATES = PACKAGE_DIR / "templates"
MAX_PARTS = 4
"""Maximum number of parts in the path of an existing folder: the name of a server may have slashes."""


class Kind(NamedTuple):
    """A kind of folder that can be created."""

    folder: str
    templates: str
    files: dict[str, str]
    """Each template, without its suffix, and its path in the new folder."""
    next_steps: Template


_FILES = {
    "app.py": "app.py",
    "config.yaml": "configs/{name}.yaml",
    "test_app.py": "tests/test_app.py",
    "README.md": "README.md",
}
_DATA = {"example.jsonl": "data/example.jsonl", "gitignore": "data/.gitignore"}

ENVIRONMENT = Kind(
    "resources_servers",
    "resources_server",
    {**_FILES, **_DATA, "trust.json": "configs/trust.json"},
    Template("""\
Next:
  Run its tests:
    ng_test +entrypoint=$folder +should_validate_data=true
  Let the small model on your CPU play it, or the model of your env.yaml without --model:
    ng eval $folder --model local
  The same in full, with policy_base_url, policy_api_key and policy_model_name in env.yaml:
    config_paths="$folder/configs/$name.yaml,responses_api_models/openai_model/configs/openai_model.yaml"
    ng_collect_rollouts "+config_paths=[$${config_paths}]" +agent_name=${name}_simple_agent \\
        +input_jsonl_fpath=$folder/data/example.jsonl +output_jsonl_fpath=results/${name}_rollouts.jsonl
  Or only start its servers:
    ng_run "+config_paths=[$${config_paths}]\""""),
)
AGENT = Kind(
    "responses_api_agents",
    "agent",
    _FILES,
    Template("""\
Next:
  Run its tests:
    ng_test +entrypoint=$folder
  Let it play an environment, with the small model on your CPU, or the model of your env.yaml without --model:
    ng eval example_stateful_counter --agent $name --model local"""),
)


class InitResourcesServerConfig(CommandConfig):
    """Create a new environment in the working directory: a tool, a verifier, a configuration, example rows and tests.

    An existing folder is not changed.

    Examples:

    ```bash
    ng_init_resources_server +entrypoint=resources_servers/my_server
    ```
    """

    POSITIONAL: ClassVar[tuple[str, ...]] = ("entrypoint",)

    entrypoint: str
    """Folder to create: resources_servers/<name>. The name consists of lower-case letters, digits and underscores."""


class InitAgentConfig(CommandConfig):
    """Create a new agent in the working directory: a few lines on the base class, a configuration and a test.

    An existing folder is not changed.

    Examples:

    ```bash
    ng_init_agent +entrypoint=responses_api_agents/my_agent
    ```
    """

    POSITIONAL: ClassVar[tuple[str, ...]] = ("entrypoint",)

    entrypoint: str
    """Folder to create: responses_api_agents/<name>. The name has lower-case letters, digits and underscores."""


@command(InitResourcesServerConfig)
def init_resources_server(options: InitResourcesServerConfig) -> None:
    """Create a new environment and print the next steps."""
    _init(ENVIRONMENT, options.entrypoint)


@command(InitAgentConfig)
def init_agent(options: InitAgentConfig) -> None:
    """Create a new agent and print the next steps."""
    _init(AGENT, options.entrypoint)


def _init(kind: Kind, entrypoint: str) -> None:
    name = _name_in(entrypoint, kind)
    folder = Path(kind.folder) / name
    if folder.exists():
        print(f"{folder} already exists. Nothing was written; choose another name.")
        return
    write_folder(folder, kind)
    print(f"Wrote {folder}:", *sorted(str(file) for file in folder.rglob("*") if file.is_file()), sep="\n  ")
    print(kind.next_steps.substitute(folder=folder, name=name))


def write_folder(folder: Path, kind: Kind = ENVIRONMENT) -> None:
    """Create the folder from the templates, completely or not at all."""
    name = folder.name
    words = {"name": name, "class_name": "".join(word.capitalize() for word in name.split("_"))}
    making = folder.with_name(f".{name}.{os.getpid()}")
    try:
        for template, place in kind.files.items():
            file = making / place.format(name=name)
            file.parent.mkdir(parents=True, exist_ok=True)
            text = (TEMPLATES / kind.templates / f"{template}.template").read_text()
            file.write_text(Template(text).substitute(words))
        making.rename(folder)
    except OSError as error:
        raise ConfigError(f"Cannot write {folder.absolute()}: {error}.") from error
    finally:
        shutil.rmtree(making, ignore_errors=True)


def _name_in(text: str, wanted: Kind) -> str:
    kind, name = parse_entrypoint(text).parts
    if kind != wanted.folder:
        raise ConfigError(f"The entrypoint is '{text}', expected {wanted.folder}/<name>.")
    if not _is_module_name(name):
        spelled = re.sub(r"\W+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)).strip("_").lower()
        hint = f" How about '{wanted.folder}/{spelled}'?" if _is_module_name(spelled) else ""
        raise ConfigError(
            f"The name is '{name}', expected a module name: lower-case letters, digits and underscores, "
            f"starting with a letter, and not a Python keyword.{hint}"
        )
    return name


def _is_module_name(name: str) -> bool:
    return bool(re.fullmatch(r"[a-z][a-z0-9_]*", name)) and not keyword.iskeyword(name)


def parse_entrypoint(text: str, *, max_parts: int = 2) -> Path:
    """Parse `<kind>/<name>`. The folder need not exist."""
    path = Path(text)
    if path.is_absolute() or not 2 <= len(path.parts) <= max_parts or ".." in path.parts:
        raise ConfigError(
            f"The entrypoint is '{text}', expected a relative path of two parts, such as resources_servers/my_server."
        )
    kind = path.parts[0]
    if kind not in SERVER_FOLDERS:
        listed = ", ".join(SERVER_FOLDERS)
        raise ConfigError(
            f"The entrypoint is '{text}', expected a folder in one of {listed}.{nearest(kind, SERVER_FOLDERS)}"
        )
    return path


def find_folder(entrypoint: str) -> Path:
    """The existing folder, in the working directory or beside the package. The name of a server may have a slash."""
    folder = find(parse_entrypoint(entrypoint, max_parts=MAX_PARTS), what="server folder")
    if not folder.is_dir():
        raise ConfigError(f"{folder} is a file, expected the folder of a server.")
    return folder


def project_of(folder: Path) -> Path:
    """The folder that has `resources_servers/` and its siblings, of one of the servers in it."""
    return next((above.parent for above in folder.parents if above.name in PUBLIC_FOLDERS), folder.parent.parent)


NO_TESTS = 5
"""Exit code of pytest if it collects no tests."""

WITH_DATA = "resources_servers"
"""The server type that has example data."""

MIN_EXAMPLES = 5
"""Enough to see what the data is like, few enough to read."""

_OUTCOMES = {0: "passed", 1: "failed", NO_TESTS: "no tests"}

_PYTEST = (
    *("-m", "pytest", "--import-mode=importlib"),
    *("-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function"),
)
"""Makes a folder's tests behave the same in a clone of this project and in a directory without pytest settings."""


class TestConfig(CommandConfig):
    """Run the tests of one server folder, with the Python interpreter that the folder needs.

    The exit code is that of pytest: 1 if a test fails, 5 if there are no tests.

    Example data is valid if data/example.jsonl has at least five rows, each with valid `responses_create_params`;
    data/example_metrics.json, if present, has the same number of examples; data/example_rollouts.jsonl, if present,
    has at least five rollouts; and no file is named `*conflict*`.

    Examples:

    ```bash
    ng_test +entrypoint=resources_servers/example_simple_weather
    ng_test +entrypoint=resources_servers/example_simple_weather +should_validate_data=true
    ```
    """

    __test__ = False

    POSITIONAL: ClassVar[tuple[str, ...]] = ("entrypoint",)

    entrypoint: str
    """The folder: resources_servers/<name>, responses_api_agents/<name> or responses_api_models/<name>."""

    should_validate_data: bool = False
    """Also check the example data of a resources server."""


@command(TestConfig)
def test(parameters: TestConfig) -> int:
    """Run the tests of one server folder."""
    folder = find_folder(parameters.entrypoint)
    code = run_tests(folder)
    if code:
        print(f"The tests of {_name(folder)} failed. To run them yourself:", file=sys.stderr)
        print(f"  {_shell_command(folder)}", file=sys.stderr)
        return code
    problems = _problems(folder) if parameters.should_validate_data else []
    print("".join(f"{problem}\n" for problem in problems), end="", file=sys.stderr)
    return FAILED if problems else 0


def run_tests(folder: Path) -> int:
    """Run pytest on a server folder, in that folder. Returns its exit code."""
    roots = os.pathsep.join(filter(None, (str(project_of(folder)), os.environ.get(EXTRA_ROOTS_ENV_VAR))))
    environment = {**os.environ, "PYTHONPATH": _python_path(folder), EXTRA_ROOTS_ENV_VAR: roots}
    return subprocess.run(_command(folder), cwd=folder, env=environment, check=False).returncode


def _command(folder: Path) -> list[str]:
    _need_pytest()
    return [python_for(folder) or sys.executable, *_PYTEST, "."]


def _python_path(folder: Path) -> str:
    """Allows tests to import `resources_servers.<name>.app` wherever the folder is."""
    return os.pathsep.join(filter(None, (str(project_of(folder)), os.environ.get("PYTHONPATH"))))


def _shell_command(folder: Path) -> str:
    place, path = shlex.quote(str(folder)), shlex.quote(_python_path(folder))
    return f"cd {place} && PYTHONPATH={path} {shlex.join(_command(folder))}"


def _need_pytest() -> None:
    if importlib.util.find_spec("pytest") is None:
        raise MissingExtraError("Running tests", "dev")


def _name(folder: Path) -> str:
    """A server folder as a parameter `entrypoint` names it."""
    return f"{folder.parent.name}/{folder.name}"


def _problems(folder: Path) -> list[str]:
    if folder.parent.name != WITH_DATA:
        return []
    return data_problems(folder)


class TestAllConfig(CommandConfig):
    """Run the tests of all server folders that have a README.md, one after the other, and check their example data.

    Server folders are searched for in the working directory, then beside the package. The exit code is 1 if tests fail
    or are missing, or if example data is not valid.

    Examples:

    ```bash
    ng_test_all
    ```
    """

    __test__ = False

    fail_on_total_and_test_mismatch: bool = False
    """Also fail if a folder was skipped because it has no README.md."""


@dataclass(frozen=True)
class FolderResult:
    """The result for one folder."""

    folder: Path
    tests: str
    problems: list[str]
    duration_s: float

    @property
    def is_good(self) -> bool:
        return self.tests == _OUTCOMES[0] and not self.problems


@command(TestAllConfig)
def test_all(parameters: TestAllConfig) -> int:
    """Run the tests of all server folders and print a table of the results."""
    found = _server_folders()
    checked = [_check(folder) for folder in found if (folder / "README.md").is_file()]
    skipped = [folder for folder in found if not (folder / "README.md").is_file()]
    print("\n".join(_report(checked, skipped)))
    is_short = bool(skipped) and parameters.fail_on_total_and_test_mismatch
    return 0 if all(each.is_good for each in checked) and not is_short else FAILED


def _server_folders() -> list[Path]:
    """The server folders in the working directory or, if there are none, beside the package."""
    for root in search_roots():
        folders = [folder for kind in SERVER_FOLDERS for folder in sorted((root / kind).glob("*/"))]
        servers = [folder for folder in folders if any(folder.glob("*.py"))]
        if servers:
            return servers
    raise ConfigError(f"No server folder in {' nor in '.join(map(str, search_roots()))}.")


def _check(folder: Path) -> FolderResult:
    print(f"Testing {_name(folder)}", flush=True)
    started = time.monotonic()
    code = run_tests(folder)
    outcome = _OUTCOMES.get(code, f"exit code {code}")
    return FolderResult(folder, outcome, _problems(folder), time.monotonic() - started)


def _report(checked: list[FolderResult], skipped: list[Path]) -> list[str]:
    width = max(len(_name(folder)) for folder in (*(each.folder for each in checked), *skipped))
    lines = ["", f"{'Server':<{width}}   {'Tests':<12} {'Data':<12} Time"]
    for each in checked:
        data = "invalid" if each.problems else "valid" if each.folder.parent.name == WITH_DATA else "-"
        lines.append(f"{_name(each.folder):<{width}}   {each.tests:<12} {data:<12} {each.duration_s:.1f} s")
    lines += [f"{_name(folder):<{width}}   skipped: no README.md" for folder in skipped]
    bad = [each for each in checked if not each.is_good]
    good = len(checked) - len(bad)
    percent = 100 * good / len(checked) if checked else 100.0
    lines += ["", f"Passed: {good} / {len(checked)} ({percent:.2f}%)"]
    for each in bad:
        lines += [f"Rerun: ng_test +entrypoint={_name(each.folder)} +should_validate_data=true", *each.problems]
    return lines


class DevTestConfig(CommandConfig):
    """Run the tests of NeMo Gym itself, with coverage. Needs a clone of the repository.

    Examples:

    ```bash
    ng_dev_test
    ```
    """


@command(DevTestConfig)
def dev_test(_options: DevTestConfig) -> int:
    """Run the tests of NeMo Gym itself."""
    if not (PARENT_DIR / "tests").is_dir():
        raise ConfigError(
            f"There are no tests in {PARENT_DIR}. Expected a clone of NeMo Gym, not an installed package."
        )
    _need_pytest()
    return subprocess.run(
        [sys.executable, "-m", "pytest", "--cov=.", "--durations=10"], cwd=PARENT_DIR, check=False
    ).returncode


# Example data


def data_problems(folder: Path) -> list[str]:
    """The problems of the folder's `data`, one message each."""
    data = folder / "data"
    problems = _example_problems(data / "example.jsonl")
    problems += _metrics_problems(data / "example_metrics.json", data / "example.jsonl")
    problems += _rollouts_problems(data / "example_rollouts.jsonl")
    return problems + [
        f"Found {file}, expected no conflict: the metrics of the data changed since they were written. "
        "Compare it with the file it conflicts with, keep the correct one, and delete this file."
        for file in sorted(data.glob("*conflict*"))
    ]


def _example_problems(file: Path) -> list[str]:
    remedy = "Copy the first rows of the training data into it."
    if not file.is_file():
        return [f"No {file}, expected at least {MIN_EXAMPLES} example rows. {remedy}"]
    lines = _lines(file)
    problems = [problem for number, line in lines if (problem := _row_problem(line, f"{file}, line {number}"))]
    if len(lines) < MIN_EXAMPLES:
        problems.append(f"Found {len(lines)} rows in {file}, expected at least {MIN_EXAMPLES}. {remedy}")
    return problems


def _row_problem(line: bytes, place: str) -> str | None:
    from nemo_gym.base_resources_server import BaseRunRequest  # takes long to import

    try:
        row = _json_object(line, place)
        validate(BaseRunRequest, row, what=place)
    except ConfigError as error:
        return str(error)
    return None


def _metrics_problems(file: Path, examples: Path) -> list[str]:
    if not file.is_file() or not examples.is_file():
        return []
    try:
        found = _json_object(file.read_bytes(), str(file)).get("Number of examples")
    except ConfigError as error:
        return [str(error)]
    expected = len(_lines(examples))
    if found == expected:
        return []
    return [
        f"Found {found!r} as 'Number of examples' in {file}, expected {expected}, the rows of {examples.name}. "
        "Delete the file and generate it again."
    ]


def _rollouts_problems(file: Path) -> list[str]:
    if not file.is_file():
        return []
    rollouts = len(_lines(file))
    if rollouts >= MIN_EXAMPLES:
        return []
    return [
        f"Found {rollouts} rollouts in {file}, expected at least {MIN_EXAMPLES}. "
        "Collect them again from example.jsonl with ng_collect_rollouts."
    ]


def _lines(file: Path) -> list[tuple[int, bytes]]:
    """The lines that are not blank, with their numbers."""
    return [(number, line) for number, line in enumerate(file.read_bytes().splitlines(), 1) if line.strip()]


def _json_object(text: bytes, place: str) -> dict[str, Any]:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"{place}: not valid JSON: {error}.") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{place}: found {json_type(value)}, expected a JSON object.")
    return value


# Folders of the public package


class CheckCompatConfig(CommandConfig):
    """Show what in a folder of environments, agents, models or benchmarks resolves here, what does not, and why.

    Nothing is started: names are looked up, requirements compared, configurations read. The exit code is 1 if
    something does not resolve.

    Examples:

    ```bash
    ng_check_compat path/to/folder
    ```
    """

    POSITIONAL: ClassVar[tuple[str, ...]] = ("folder",)

    folder: str
    """A folder with `resources_servers/` and its siblings in it, or one server folder."""

    load: bool = False
    """Also import each server whose requirements are met here, and read its blocks as at a start. Runs its code."""


@command(CheckCompatConfig)
def check_compat(options: CheckCompatConfig) -> int:
    """Check a folder of environments."""
    root = Path(options.folder)
    if not root.is_dir():
        raise ConfigError(f"{root} is not a folder.")
    os.environ[EXTRA_ROOTS_ENV_VAR] = str(_root_of(root.resolve()))
    from nemo_gym.compat.folder_check import check_folder

    reports = check_folder(root, load=options.load)
    for report in reports:
        state = "does not resolve" if report.problems else "resolves"
        print(f"{report.folder}: {state} ({report.names} names, {report.configs} configs)")
        for line in (*report.problems, *report.remarks):
            print(f"  {line}")
    bad = sum(bool(report.problems) for report in reports)
    print(f"{len(reports) - bad} of {len(reports)} folders resolve.")
    return FAILED if bad else 0


def _root_of(folder: Path) -> Path:
    """The folder that paths in configurations are relative to."""
    kinds = ("resources_servers", "responses_api_agents", "responses_api_models", "environments", "benchmarks")
    return next((parent.parent for parent in (folder, *folder.parents) if parent.name in kinds), folder)
