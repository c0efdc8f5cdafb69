"""The shape of the package: one ordered list of modules, each importing only from those above it."""

import ast
from pathlib import Path

import pytest

from nemo_gym.paths import PACKAGE_DIR, PARENT_DIR, SERVER_FOLDERS

MAX_LINES = 400

LAYERS = [
    *("errors", "paths", "files", "log", "lazy", "loops", "published", "folder_imports"),
    *("wire", "openai_types", "chat_types", "answers", "config_keys", "rollout_types"),
    *("codec", "convert", "convert_messages", "completions", "endings"),
    *("masking", "validation", "overrides", "config_sources", "config_values", "command_config", "config_types"),
    *("config_checks", "config_ports", "server_instances", "global_config"),
    *("deadline", "tally", "event_stream", "streaming", "connection", "http", "peer_response", "client"),
    *("openai_client", "endpoint_pool", "openai_utils", "legacy"),
    *("judge", "compute_worker", "compute_process", "compute"),
    *(
        "session",
        "tools",
        "endpoints",
        "failures",
        "disconnect",
        "loop_watch",
        "asgi",
        "serving",
        "server",
        "model_endpoints",
    ),
    *("base_resources_server", "base_responses_api_agent", "base_responses_api_model", "head_server", "server_utils"),
    *("loader", "venvs", "worker", "process", "launcher", "peers"),
    *("estimators", "metrics", "gate", "stragglers", "manifest", "rollout_store", "rollout_rows", "rollout_stream"),
    *(
        "traffic",
        "rollout_collection",
        "stored_rollouts",
        "profile",
        "chat_messages",
        "export",
        "verification",
        "reverify",
    ),
    *("token_check", "testing", "verifier_probes", "verifier_check"),
    *("command", "cli", "templates"),
]

LAZY_UPWARD = {("rollout_collection", "cli"), ("profile", "cli")}
"""Public names that must resolve where outside code looks for them, given as text to `lazily`, never imported."""

ALIASES = {"example_single_tool_call", "example_session_state_mgmt", "multineedle"}
"""Folders that are another folder under a second name."""


def modules() -> list[Path]:
    return sorted(path for path in PACKAGE_DIR.rglob("*.py") if "templates" not in path.parts)


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


def test_every_module_has_its_place() -> None:
    assert {layer_of(path) for path in modules()} - {"__init__"} <= set(LAYERS)
    assert len(LAYERS) == len(set(LAYERS))


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE_DIR)))
def test_a_module_imports_only_from_above(path: Path) -> None:
    own = layer_of(path)
    imported = {name.split(".")[1] for name in imports_of(path) if name.startswith("nemo_gym.")}
    if own == "__init__":
        assert imported <= {"paths", "lazy"}
        return
    above = set(LAYERS[: LAYERS.index(own) + 1])
    below = {name for name in imported & set(LAYERS) if name not in above and (own, name) not in LAZY_UPWARD}
    assert not below, f"nemo_gym.{own} imports {sorted(below)}, which stand below it"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE_DIR)))
def test_no_module_is_long(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MAX_LINES


def server_modules() -> list[Path]:
    folders = [PARENT_DIR / kind for kind in SERVER_FOLDERS]
    return sorted(path for folder in folders for path in folder.glob("*/*.py"))


@pytest.mark.parametrize("path", server_modules(), ids=lambda path: str(path.relative_to(PARENT_DIR)))
def test_a_server_imports_the_package_and_itself_alone(path: Path) -> None:
    kind, folder = path.relative_to(PARENT_DIR).parts[:2]
    others = {name for name in imports_of(path) if name.split(".")[0] in SERVER_FOLDERS}
    foreign = {name for name in others if not f"{name}.".startswith(f"{kind}.{folder}.")}
    assert folder in ALIASES or not foreign


def test_importing_the_package_does_nothing() -> None:
    source = ast.parse((PACKAGE_DIR / "__init__.py").read_text())
    allowed = (ast.Expr, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign)
    assert all(isinstance(node, allowed) for node in source.body)
