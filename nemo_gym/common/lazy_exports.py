"""Names that a module exports but imports at first use, so that start-up stays cheap."""

import ast
import importlib
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from nemo_gym.common.plugins import plugin


def lazy_attributes(module: str, names: Mapping[str, str] | None = None) -> Callable[[str], Any]:
    """A module's `__getattr__` for `names`, each given as the 'module:attribute' it stands for. By default they are
    the names that the module imports under `if TYPE_CHECKING:`, so that type checkers and programs see the same, and
    those that only code written for the public NeMo Gym asks for."""

    def load(name: str) -> Any:
        known = _type_checking_imports(module) if names is None and not name.startswith("__") else names or {}
        if name not in known:
            if names is not None or name.startswith("__"):
                raise AttributeError(f"module {module!r} has no attribute {name!r}")
            return plugin("public_names")(module, name)
        source, _, attribute = known[name].partition(":")
        found = importlib.import_module(source)
        return getattr(found, attribute) if attribute else found

    return load


@cache
def _type_checking_imports(module: str) -> dict[str, str]:
    source = ast.parse(Path(sys.modules[module].__file__ or "").read_text())
    blocks = [node for node in source.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: f"{node.module}:{alias.name}" for node in imports for alias in node.names}
