"""Plugins: features of outer packages that the core finds by name.

Core packages import no outer package. They ask here for what one of them registered as an entry point of the group
`nemo_gym.plugins` in `pyproject.toml`. That table is part of the installed package, so every process finds it: a
command, a worker, a compute process, a Ray actor, a notebook. Nothing is imported before it is asked for.
"""

from functools import cache
from typing import Any

from nemo_gym.errors import StartupError

GROUP = "nemo_gym.plugins"


@cache
def plugin(name: str) -> Any:
    """Import and return what is registered under `name`: a module, a class or a function."""
    from importlib.metadata import entry_points  # slow to import, and most processes need no plugin

    found = list(entry_points(group=GROUP, name=name))
    if not found:
        raise StartupError(
            f"No installed package registers '{name}' in the entry points '{GROUP}'. Install nemo-gym again; in a "
            "clone: pip install -e ."
        )
    return found[0].load()
