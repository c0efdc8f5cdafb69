"""The shape of the code: packages in one order and two rings. Core never imports an outer package."""

import ast
import re
from pathlib import Path

import pytest

from nemo_gym.common.paths import PACKAGE_DIR, PARENT_DIR, SERVER_FOLDERS

CORE = (
    *("errors", "common", "llm_api", "answers", "config", "client", "verdicts", "judge", "compute", "server"),
    *(
        "base_resources_server",
        "judged_environment",
        "episodes",
        "base_responses_api_agent",
        "participants",
        "base_responses_api_model",
    ),
    *("runtime", "rollouts", "testing"),
)
"""Packages, and the root modules that have code of their own. Each imports only from itself and those before it."""
OUTER = (
    *("sandbox", "browser"),
    *(
        "cluster",
        "training",
        "gateway",
        "analysis",
        "data",
        "evaluation",
        "trust",
        "interop",
        "compat",
        "viewer",
        "bench",
    ),
    "cli",
)
LAYERS = CORE + OUTER
PUBLIC_PATHS = (
    *("config_types", "dataset_orchestrator", "dataset_viewer", "gitlab_utils", "global_config", "hf_utils"),
    *("openai_utils", "profile", "profiling", "prompt", "responses_converter", "reward_profile", "rollout_collection"),
    *("rollout_correlation", "rollout_observability", "row_generators", "server_utils", "skills", "train_data_utils"),
    *("base_environment_server", "benchmarks", "deliverables", "episode_types", "failure_kinds", "mcp_auto_exposure"),
    *("path_utils", "responses_streaming", "rollout_health", "single_agent_turn_types", "task_data"),
    *("task_materialization", "telemetry", "token_id_capture", "tool_access", "verifier_fixture", "vision_input"),
)
"""Root modules that only re-export, under the import paths of the public NeMo Gym. No code of ours imports them."""
FOR_SERVERS = {*CORE, "sandbox", "browser", "gateway", "data", "interop"} - {"server", "runtime", "rollouts"}
"""What servers may import from, beside the package itself."""


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


def packages_in(names: set[str]) -> set[str]:
    """The packages and root modules of `nemo_gym` among dotted names."""
    return {name.split(".")[1] for name in names if name.startswith("nemo_gym.")}


def is_module(name: str) -> bool:
    """False for a name such as `nemo_gym.__version__`."""
    return name in LAYERS or name in PUBLIC_PATHS


@pytest.mark.parametrize("path", [path for path in modules() if layer_of(path) in LAYERS], ids=shown)
def test_a_module_imports_only_from_its_own_package_and_those_before(path: Path) -> None:
    own = layer_of(path)
    imported = {name for name in packages_in(imports_of(path)) if is_module(name)}
    allowed = set(LAYERS[: LAYERS.index(own) + 1])
    assert imported <= allowed, f"{shown(path)} imports {sorted(imported - allowed)}"


@pytest.mark.parametrize("path", [path for path in modules() if layer_of(path) in CORE], ids=shown)
def test_core_names_no_outer_package_in_a_string(path: Path) -> None:
    """`importlib.import_module("nemo_gym.viewer")` is an import, too. Register a plugin (`common/plugins.py`)."""
    texts = [node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)]
    named = {text for text in texts if isinstance(text, str) and re.fullmatch(r"nemo_gym(\.\w+)+(:\w+)?", text)}
    assert packages_in(named).isdisjoint((*OUTER, *PUBLIC_PATHS))


def own_code() -> list[Path]:
    """All code but tests, and the public import paths themselves."""
    scripts = [path for folder in ("bench", "examples") for path in (PARENT_DIR / folder).glob("*.py")]
    ours = [path for path in modules() if layer_of(path) not in PUBLIC_PATHS]
    return [*ours, *server_modules(), *scripts]


def test_no_code_of_ours_uses_a_public_import_path_or_compat() -> None:
    """`compat` is loaded by its plugins, and by the commands that it is for."""
    unwanted = {*PUBLIC_PATHS, "compat"}
    users = {shown(path): packages_in(imports_of(path)) & unwanted for path in own_code()}
    allowed = ("nemo_gym/compat/", "nemo_gym/cli/")
    assert {path: names for path, names in users.items() if names and not path.startswith(allowed)} == {}


def test_any_other_module_at_the_root_only_re_exports() -> None:
    others = [path for path in modules() if layer_of(path) not in LAYERS]
    assert {layer_of(path) for path in others} == {*PUBLIC_PATHS, "__init__", "__main__"}
    defined = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    assert not [path for path in others for node in ast.parse(path.read_text()).body if isinstance(node, defined)]


def test_no_module_imports_another_in_a_cycle() -> None:
    names = {".".join(path.relative_to(PARENT_DIR).with_suffix("").parts): path for path in modules()}
    graph = {name: {found for found in top_level_imports(path) if found in names} for name, path in names.items()}
    while leaves := {name for name, imported in graph.items() if not imported}:
        graph = {name: imported - leaves for name, imported in graph.items() if name not in leaves}
    assert graph == {}


def test_a_collector_that_finds_its_servers_running_imports_none() -> None:
    names = {".".join(path.relative_to(PARENT_DIR).with_suffix("").parts): path for path in modules()}
    found, to_read = set[str](), {"nemo_gym.cli.collect"}
    while to_read:
        found |= to_read
        to_read = {name for each in to_read for name in top_level_imports(names[each]) if name in names} - found
    assert "nemo_gym.rollouts.collector" in found
    assert packages_in(found).isdisjoint({"server", "compute", *OUTER} - {"cli"})


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
def test_a_server_imports_what_is_meant_for_authors(path: Path) -> None:
    imported = {name for name in packages_in(imports_of(path)) if is_module(name)}
    assert imported <= FOR_SERVERS


def test_importing_the_package_does_nothing() -> None:
    source = ast.parse((PACKAGE_DIR / "__init__.py").read_text())
    allowed = (ast.Expr, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign)
    body = [
        node for node in source.body if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    ]
    assert all(isinstance(node, allowed) for node in body)
