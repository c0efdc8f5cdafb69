"""Let processes that a server starts itself, such as Ray workers and process pools, import the server's modules."""

import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from nemo_gym.common.folder_imports import package_of
from nemo_gym.config.server_spec import ServerSpec

PYTHONPATH = "PYTHONPATH"


@contextmanager
def children_can_import(servers: Sequence[ServerSpec]) -> Iterator[None]:
    """Put the roots of the folders, and the folders themselves, on the path of child processes.

    A folder is left out if a module in it has the name of one of the standard library or of another folder: a child
    would import the wrong one. Such a server needs `isolation: process`, and a name of its own for the module.
    """
    before, paths = os.environ.get(PYTHONPATH), _paths(servers)
    os.environ[PYTHONPATH] = os.pathsep.join([*paths, *([before] if before else [])])
    own = {str(server.folder) for server in servers}
    added = [path for path in paths if path in own and path not in sys.path]
    sys.path += added  # children of multiprocessing get this list, and not the variable
    try:
        yield
    finally:
        sys.path[:] = [path for path in sys.path if path not in added]
        if before is None:
            os.environ.pop(PYTHONPATH, None)
        else:
            os.environ[PYTHONPATH] = before


def _paths(servers: Sequence[ServerSpec]) -> list[str]:
    modules = {folder: _modules(folder) for folder in dict.fromkeys(server.folder for server in servers)}
    times = Counter(name for names in modules.values() for name in names)
    alone = [folder for folder, names in modules.items() if all(_is_free(name, times[name]) for name in names)]
    folders = [(server.server_type, server.folder) for server in servers]
    roots = [folder.parents[package_of(kind, folder).count(".")] for kind, folder in folders]
    return list(dict.fromkeys(map(str, (*roots, *alone))))


def _is_free(name: str, times: int) -> bool:
    return name not in sys.stdlib_module_names and (times == 1 or name in ("app", "client"))


def _modules(folder: Path) -> set[str]:
    packages = {place.parent.name for place in folder.glob("*/__init__.py")}
    return {file.stem for file in folder.glob("*.py")} | packages
