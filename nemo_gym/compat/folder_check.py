"""Check whether the imports and configs of a folder of environments resolve here, with remedies. Nothing is run."""

import ast
import importlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from nemo_gym.common.paths import PARENT_DIR, SERVER_FOLDERS, nearest
from nemo_gym.compat.global_config import GlobalConfigDictParserConfig
from nemo_gym.config.loading import load_config
from nemo_gym.errors import ConfigError
from nemo_gym.runtime.requirements import missing_requirements

PACKAGE = "nemo_gym"
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


def check_folder(root: Path) -> list[FolderReport]:
    """Return a report for each server folder, environment or benchmark below a folder, or for the folder itself."""
    folders = list(_folders(root))
    if not folders:
        listed = ", ".join((*SERVER_FOLDERS, "environments", "benchmarks"))
        raise ConfigError(
            f"{root} has no folder of code or configs. Expected one of {listed} in it, or such a folder."
        )
    return [_check(folder) for folder in folders]


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


def _check(folder: Path) -> FolderReport:
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
    for config in (*sorted(folder.glob("*.yaml")), *sorted(folder.glob("configs/*.yaml"))):
        _check_config(config, report)
    return report


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
            found = report.remarks if _is_test(place) else report.problems
            found.append(f"{place}, line {line}: {problem}")


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


def _nearest_module(module: str) -> str:
    public = [f"{PACKAGE}.{file.stem}" for file in (PARENT_DIR / PACKAGE).glob("*.py")]
    return nearest(module, public)


def _check_config(config: Path, report: FolderReport) -> None:
    report.configs += 1
    without_model = GlobalConfigDictParserConfig.NO_MODEL_GLOBAL_CONFIG_DICT
    try:
        load_config([f"+config_paths=['{config}']"], initial=without_model, use_dotenv=False, fill_ports=False)
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
