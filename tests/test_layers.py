"""The shape of the code: packages in one order, each importing only from those above it."""

import ast
from pathlib import Path

import pytest

from nemo_gym.common.paths import PACKAGE_DIR, PARENT_DIR, SERVER_FOLDERS

LAYERS = (
    *("errors", "common", "llm_api", "answers", "config"),
    *("client", "judge", "compute", "sandbox", "server", "gateway"),
    *("base_resources_server", "episodes", "base_responses_api_agent", "participants", "base_responses_api_model"),
    *("runtime", "rollouts", "training", "analysis", "data", "interop", "viewer", "testing", "bench", "compat", "cli"),
)
"""Packages, and the root modules that have code of their own. Every other root module only re-exports."""
PUBLIC_PACKAGES = {"sandbox", "data", "interop"}
"""Those that servers may import from."""


def modules() -> list[Path]:
    return sorted(path for path in PACKAGE_DIR.rglob("*.py") if "templates" not in path.parts)


def shown(path: Path) -> str:
    return str(path.relative_to(PARENT_DIR))


def layer_of(path: Path) -> str:
    return path.relative_to(PACKAGE_DIR).with_suffix("").parts[0]


def imports_of(path: Path) -> set[str]:
    """Every module imported anywhere in a file, also inside functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            found.add(node.module or "")
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


@pytest.mark.parametrize("path", [path for path in modules() if layer_of(path) in LAYERS], ids=shown)
def test_a_module_imports_only_from_its_own_package_and_those_above(path: Path) -> None:
    own = layer_of(path)
    imported = {name.split(".")[1] for name in imports_of(path) if name.startswith("nemo_gym.")} - {"__version__"}
    allowed = set(LAYERS[: LAYERS.index(own) + 1])
    assert imported <= allowed, f"{shown(path)} imports {sorted(imported - allowed)}"


@pytest.mark.parametrize("path", [path for path in modules() if layer_of(path) not in LAYERS], ids=shown)
def test_any_other_module_at_the_root_only_re_exports(path: Path) -> None:
    assert path.parent == PACKAGE_DIR, f"{layer_of(path)} is no package of LAYERS"
    defined = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    names = [node.name for node in ast.parse(path.read_text()).body if isinstance(node, defined)]
    assert path.name == "__init__.py" or not names


def test_no_module_imports_another_in_a_cycle() -> None:
    names = {".".join(path.relative_to(PARENT_DIR).with_suffix("").parts): path for path in modules()}
    graph = {name: {found for found in top_level_imports(path) if found in names} for name, path in names.items()}
    while leaves := {name for name, imported in graph.items() if not imported}:
        graph = {name: imported - leaves for name, imported in graph.items() if name not in leaves}
    assert graph == {}


def top_level_imports(path: Path) -> set[str]:
    """The modules that must be there before this one: imports inside functions and for type checkers do not count."""
    body = ast.parse(path.read_text()).body
    nodes = [node for node in body if isinstance(node, ast.ImportFrom)]
    return {node.module or "" for node in nodes} | {f"{node.module}.{a.name}" for node in nodes for a in node.names}


def server_modules() -> list[Path]:
    folders = [PARENT_DIR / kind for kind in SERVER_FOLDERS]
    return sorted(path for folder in folders for path in folder.glob("*/*.py"))


@pytest.mark.parametrize("path", server_modules(), ids=shown)
def test_a_server_imports_the_package_and_itself_alone(path: Path) -> None:
    kind, folder = path.relative_to(PARENT_DIR).parts[:2]
    others = {name for name in imports_of(path) if name.split(".")[0] in SERVER_FOLDERS}
    outside = {name for name in others if not f"{name}.".startswith(f"{kind}.{folder}.")}
    assert not outside


@pytest.mark.parametrize("path", [path for path in server_modules() if path.parent.name != "tests"], ids=shown)
def test_a_server_imports_public_modules_only(path: Path) -> None:
    """`server_utils`, `openai_utils` and the other modules at the root. Add there what is missing."""
    packages = {name.split(".")[1] for name in imports_of(path) if name.startswith("nemo_gym.")}
    internal = {name for name in packages if (PACKAGE_DIR / name / "__init__.py").is_file()} - {
        "sandbox",
        "data",
        "interop",
    }
    assert not internal, f"{shown(path)} imports from nemo_gym.{sorted(internal)}"


def test_importing_the_package_does_nothing() -> None:
    source = ast.parse((PACKAGE_DIR / "__init__.py").read_text())
    allowed = (ast.Expr, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign)
    assert all(isinstance(node, allowed) for node in source.body)
