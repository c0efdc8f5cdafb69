"""Names that a module exports but imports at first use, so that start-up stays cheap."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy_attributes(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """A module's `__getattr__` for `names`, each given as the 'module:attribute' it stands for."""

    def load(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        source, _, attribute = names[name].partition(":")
        found = importlib.import_module(source)
        return getattr(found, attribute) if attribute else found

    return load
