"""Check whether the imports, calls and configs of a folder of environments fit this package, with remedies.

Nothing of a folder is run, unless its servers are to be loaded: then each is imported in a process of its own."""

import ast
import importlib
import inspect
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from nemo_gym.common.paths import PARENT_DIR, SERVER_FOLDERS, nearest
from nemo_gym.compat.global_config import GlobalConfigDictParserConfig
from nemo_gym.config.keys import blocks_in
from nemo_gym.config.loading import load_config
from nemo_gym.config.validation import drop_unknown_keys, error_lines
from nemo_gym.errors import ConfigError, GymError
from nemo_gym.runtime.class_loader import load_server_class
from nemo_gym.runtime.requirements import missing_requirements

PACKAGE = "nemo_gym"
ENTRYPOINT = "app.py"
LOADING_TIMEOUT_S = 120.0
_SKIPPED = frozenset((".venv", "node_modules", "__pycache__", "data"))


@dataclass
class FolderReport:
    """The result for one folder."""

    folder: Path
    problems: list[str] = field(default_factory=list)
    """Names and configs that do not resolve, each with a remedy."""
    remarks: list[str] = field(default_factory=list)
    """Notes about the first start."""
    names: int = 0
    """Number of names imported from this package."""
    configs: int = 0


def check_folder(root: Path, *, load: bool = False) -> list[FolderReport]:
    """Return a report for each server folder, environment or benchmark below a folder, or for the folder itself. With
    `load`, servers are imported and their blocks read, if this interpreter meets their requirements."""
    folders = list(_folders(root))
    if not folders:
        listed = ", ".join((*SERVER_FOLDERS, "environments", "benchmarks"))
        raise ConfigError(
            f"{root} has no folder of code or configs. Expected one of {listed} in it, or such a folder."
        )
    return [_check(folder, load=load) for folder in folders]


def _folders(root: Path) -> Iterator[Path]:
    kinds = (*SERVER_FOLDERS, "environments", "benchmarks")
    found = [folder for kind in kinds for folder in _used_below(root / kind)]
    if found:
        yield from found
    elif _is_used(root):
        yield root


def _used_below(parent: Path) -> Iterator[Path]:
    """Yield the folders of servers, including those whose name has a slash."""
    for folder in sorted(parent.glob("*/")):
        if _is_used(folder):
            yield folder
        elif folder.name not in _SKIPPED:
            yield from _used_below(folder)


def _is_used(folder: Path) -> bool:
    return folder.is_dir() and (
        any(folder.glob("*.py")) or any(folder.glob("*.yaml")) or (folder / "configs").is_dir()
    )


def _check(folder: Path, *, load: bool) -> FolderReport:
    report = FolderReport(folder)
    for file in sorted(folder.rglob("*.py")):
        if _SKIPPED.isdisjoint(file.relative_to(folder).parts):
            _check_module(file, report)
    try:
        missing = missing_requirements(folder)
    except ConfigError as error:
        report.problems.append(str(error))
    else:
        if missing:
            report.remarks.append(f"installs into its own virtualenv: {', '.join(missing)}")
        elif load and (folder / ENTRYPOINT).is_file():
            report.problems += _problems_of_loading(folder)
    for config in _configs(folder):
        _check_config(config, report)
    return report


def _configs(folder: Path) -> list[Path]:
    return [*sorted(folder.glob("*.yaml")), *sorted(folder.glob("configs/*.yaml"))]


def _check_module(file: Path, report: FolderReport) -> None:
    place = file.relative_to(report.folder)
    try:
        tree = ast.parse(file.read_text())
    except (SyntaxError, UnicodeDecodeError) as error:
        report.problems.append(f"{place}: cannot be read as Python: {error}")
        return
    for module, name, line in _imports(tree):
        report.names += 1
        problem = _problem_with(module, name)
        if problem is not None:
            _found_at(report, place).append(f"{place}, line {line}: {problem}")
    for problem, line in _wrong_calls(tree):
        _found_at(report, place).append(f"{place}, line {line}: {problem}")


def _found_at(report: FolderReport, place: Path) -> list[str]:
    """What is wrong in tests stops no server."""
    return report.remarks if _is_test(place) else report.problems


def _is_test(place: Path) -> bool:
    """True for a file that no server needs."""
    return "tests" in place.parts or place.name.startswith(("test_", "conftest"))


def _imports(tree: ast.AST) -> Iterator[tuple[str, str | None, int]]:
    """Yield the names that a module imports from this package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] == PACKAGE:
            yield from ((node.module or "", alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.Import):
            names = (alias.name for alias in node.names if alias.name.split(".")[0] == PACKAGE)
            yield from ((name, None, node.lineno) for name in names)


def _problem_with(module: str, name: str | None) -> str | None:
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        if error.name == module or error.name == PACKAGE or (error.name or "").startswith(f"{PACKAGE}."):
            return f"there is no module '{module}'.{_nearest_module(module)} Remove the import, or open an issue."
        return f"'{module}' needs the package '{error.name}'. Install it, or the extra that brings it."
    if name in (None, "*") or hasattr(found, name or ""):
        return None
    try:
        importlib.import_module(f"{module}.{name}")
    except ImportError:
        hint = nearest(name or "", dir(found))
        return f"'{module}' has no '{name}'.{hint} Remove its use, or open an issue."
    return None


def _wrong_calls(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the calls of functions of this package with arguments that they do not take."""
    functions = dict(_imported_functions(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in functions:
            function = functions[node.func.id]
            problem = _problem_with_call(node, inspect.signature(function))
            if problem is not None:
                yield f"'{node.func.id}' is called with other arguments than it takes: {problem}", node.lineno


def _imported_functions(tree: ast.AST) -> Iterator[tuple[str, Any]]:
    """Yield the functions of this package that a module calls by their name, and defines nothing else under."""
    own = {
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    own |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    own |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == PACKAGE and not node.level:
            for alias in node.names:
                found = getattr(sys.modules.get(node.module or ""), alias.name, None)
                if inspect.isfunction(found) and (alias.asname or alias.name) not in own:
                    yield alias.asname or alias.name, found


def _names_defined_in(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name


def _problem_with_call(call: ast.Call, signature: inspect.Signature) -> str | None:
    """Return why a call fails, if its arguments are all known."""
    if any(isinstance(each, ast.Starred) for each in call.args) or any(each.arg is None for each in call.keywords):
        return None
    try:
        signature.bind(*call.args, **{str(each.arg): each for each in call.keywords})
    except TypeError as error:
        return f"{error}; its arguments are {signature}"
    return None


def _nearest_module(module: str) -> str:
    public = [f"{PACKAGE}.{file.stem}" for file in (PARENT_DIR / PACKAGE).glob("*.py")]
    return nearest(module, public)


def _loaded(config: Path) -> DictConfig:
    without_model = GlobalConfigDictParserConfig.NO_MODEL_GLOBAL_CONFIG_DICT
    return load_config([f"+config_paths=['{config}']"], initial=without_model, use_dotenv=False, fill_ports=False)


def _check_config(config: Path, report: FolderReport) -> None:
    report.configs += 1
    try:
        _loaded(config)
    except ConfigError as error:
        text = str(error)
        needs_more = any(
            word in text
            for word in ("Could not find", "which does not exist", "???", "is required", "Interpolation key", "oc.env")
        )
        first = " ".join(text.split())[:400]
        place = config.relative_to(report.folder)
        if needs_more:
            report.remarks.append(f"{place} needs another file or value beside it: {first}")
        else:
            report.problems.append(f"{place}: {first}")


# Loading


def _problems_of_loading(folder: Path) -> list[str]:
    """Load the server of a folder in a process of its own, and return what is wrong with it or with its blocks."""
    command = (sys.executable, "-P", "-m", __name__, str(folder))
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LOADING_TIMEOUT_S, check=False)
        problems: list[str] = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return [f"{ENTRYPOINT} is not imported after {LOADING_TIMEOUT_S:g} s"]
    except (IndexError, ValueError):
        last = (done.stderr.strip().splitlines() or ["without an error"])[-1]
        return [f"{ENTRYPOINT} ends the process that imports it: {last}"]
    return problems


def load_problems(folder: Path) -> Iterator[str]:
    """Import the server of a folder, and yield what is wrong with it or with its blocks in its configs."""
    kind = next((parent for parent in folder.parents if parent.name in SERVER_FOLDERS), folder.parent)
    try:
        server_class = load_server_class(kind.name, folder, ENTRYPOINT)
    except GymError as error:
        yield str(error)
        return
    for config in _configs(folder):
        for name, block in _blocks_of(config, str(folder.relative_to(kind))):
            try:
                values = drop_unknown_keys(server_class.config_class(), block, path=(name,))
                server_class.config_class().model_validate({**values, "name": name, "host": "127.0.0.1", "port": 0})
            except ConfigError as error:
                yield f"{config.name}: {error}"
            except ValidationError as error:
                if all(each["type"] == "missing" for each in error.errors()):
                    continue  # a config to be merged with another one
                lines = "; ".join(error_lines(error, prefix=(name,)))
                yield f"{config.name}: {name} does not fit {error.title}: {lines}"


def _blocks_of(config: Path, implementation: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the blocks of a folder's server in a config that resolves."""
    try:
        settings: Any = OmegaConf.to_container(_loaded(config), resolve=True)
    except (ConfigError, OmegaConfBaseException):
        return
    for block in blocks_in(settings):
        if block.implementation == implementation and isinstance(block.config, Mapping):
            yield block.name, block.config


if __name__ == "__main__":
    sys.stdout.write(f"{json.dumps(list(load_problems(Path(sys.argv[1]))))}\n")
