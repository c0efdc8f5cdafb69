"""Load a server's folder into this interpreter, and find the class that it serves. Processes that the server starts
itself, such as Ray workers and process pools, can import its modules, too."""

import ast
import hmac
import importlib
import logging
import os
import secrets
import shutil
import sys
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from nemo_gym.common.paths import PARENT_DIR, SERVER_FOLDERS, UV_FOLDER, make_importable, modules_in, package_of
from nemo_gym.compute.pool import available_cores
from nemo_gym.config.keys import RAY_HEAD_NODE_ADDRESS_KEY_NAME
from nemo_gym.config.types import ServerSpec, check_num_workers
from nemo_gym.errors import ConfigError, StartupError
from nemo_gym.runtime.requirements import VenvSettings, python_for
from nemo_gym.server.base import SimpleServer

logger = logging.getLogger(__name__)

PYTHONPATH = "PYTHONPATH"
PACKAGE = "nemo_gym"
_OWN_PACKAGES = (PACKAGE, *SERVER_FOLDERS)


def load_server_class(server_type: str, folder: Path, entrypoint: str) -> type[SimpleServer]:
    """The class that a folder's entry point runs."""
    make_importable(server_type, folder)
    file = folder / entrypoint
    if not file.is_file():
        raise ConfigError(f"{folder} has no '{entrypoint}', which its config names as the entry point.")
    parts = [package_of(server_type, folder), *Path(entrypoint).with_suffix("").parts]
    try:
        module = importlib.import_module(".".join(parts))
    except Exception as error:
        raise StartupError(_why_not_importable(error, folder, file)) from error
    if Path(module.__file__ or "").resolve() != file.resolve():
        raise ConfigError(f"'{'.'.join(parts)}' is imported from {module.__file__}, but the config means {file}.")
    return _served_class(module, file)


def _why_not_importable(error: Exception, folder: Path, file: Path) -> str:
    """The author's own line that failed and why, without the frames of the import system."""
    if isinstance(error, SyntaxError):
        place, line, text = f"{error.filename or file}:{error.lineno}", (error.text or "").strip(), error.msg
    else:
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if Path(frame.filename).is_relative_to(folder.resolve())]
        place, line = (f"{own[-1].filename}:{own[-1].lineno}", own[-1].line or "") if own else (str(file), "")
        text = str(error)
    shown = f"{place}: {f'`{line}` failed. ' if line else ''}{type(error).__name__}: {text}."
    is_missing = isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith(_OWN_PACKAGES)
    return shown + (f" List the package that provides it in {folder / 'requirements.txt'}." if is_missing else "")


def _served_class(module: ModuleType, file: Path) -> type[SimpleServer]:
    """The class on which the entry point calls `run_webserver()`, else the last server class it defines."""
    for node in ast.walk(ast.parse(file.read_text())):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="run_webserver")):
                return getattr(module, name)  # type: ignore[no-any-return]
    own = [
        item
        for item in vars(module).values()
        if isinstance(item, type) and issubclass(item, SimpleServer) and item.__module__ == module.__name__
    ]
    if not own:
        raise ConfigError(
            f"{file} defines no server. Expected a subclass of SimpleResourcesServer, SimpleResponsesAPIAgent or "
            "SimpleResponsesAPIModel."
        )
    return own[-1]


@contextmanager
def children_can_import(servers: Sequence[ServerSpec]) -> Iterator[None]:
    """Put the roots of the folders, and the folders themselves, on the path of child processes, and `uv` on PATH.

    A folder is left out if a module in it has the name of one of the standard library or of another folder: a child
    would import the wrong one. Such a server needs `isolation: process`, and a name of its own for the module.
    """
    before, paths = {name: os.environ.get(name) for name in (PYTHONPATH, "PATH")}, _paths(servers)
    shadows = [path for path in paths if _has_other_package(Path(path))]
    if shadows:
        logger.warning("%s has a `nemo_gym` of its own; the one that runs is %s", shadows[0], PARENT_DIR / PACKAGE)
    ours = [str(PARENT_DIR)] if shadows else []
    os.environ[PYTHONPATH] = os.pathsep.join([*ours, *paths, *filter(None, [before[PYTHONPATH]])])
    os.environ["PATH"] = os.pathsep.join([*filter(None, [before["PATH"]]), *_folders_of_uv()])
    own = {str(server.folder) for server in servers}
    added = [path for path in paths if path in own and path not in sys.path]
    sys.path += added  # children of multiprocessing get this list, and not the variable
    try:
        yield
    finally:
        sys.path[:] = [path for path in sys.path if path not in added]
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _folders_of_uv() -> list[str]:
    """The folder of `uv`, if it is installed with this interpreter or by `make`, but is not on the PATH."""
    if shutil.which("uv") is not None:
        return []
    return [str(folder) for folder in (Path(sys.executable).parent, UV_FOLDER) if (folder / "uv").is_file()]


def _has_other_package(root: Path) -> bool:
    """True for a folder from which `import nemo_gym` imports another one, such as a public clone."""
    return (root / PACKAGE / "__init__.py").is_file() and root.resolve() != PARENT_DIR


def _paths(servers: Sequence[ServerSpec]) -> list[str]:
    modules = {folder: modules_in(folder) for folder in dict.fromkeys(server.folder for server in servers)}
    times = Counter(name for names in modules.values() for name in names)
    alone = [folder for folder, names in modules.items() if all(_is_free(name, times[name]) for name in names)]
    folders = [(server.server_type, server.folder) for server in servers]
    roots = [folder.parents[package_of(kind, folder).count(".")] for kind, folder in folders]
    return list(dict.fromkeys(map(str, (*roots, *alone))))


def _is_free(name: str, times: int) -> bool:
    return name not in sys.stdlib_module_names and (times == 1 or name in ("app", "client"))


NUM_WORKERS_KEY_NAME = "num_workers"
RAY_KEY_NAME = "ray"


def wants_ray(config: Mapping[str, Any]) -> bool:
    """True if the servers that share a process are to run as Ray actors."""
    return bool(config.get(RAY_KEY_NAME) or config.get(RAY_HEAD_NODE_ADDRESS_KEY_NAME))


def session_secret(token: str | None) -> str:
    """Return the key that signs session tokens: made for each run, the same in all its workers."""
    if token is None:
        return secrets.token_hex(32)
    return hmac.digest(token.encode(), b"nemo-gym session tokens", "sha256").hex()


class Group(NamedTuple):
    """Servers that share a process."""

    python: str
    """The interpreter that they run in."""
    servers: list[ServerSpec]
    is_shared: bool = False
    """True for the group of all servers that need no process and no interpreter of their own."""


def grouped(instances: Sequence[ServerSpec], venvs: VenvSettings | None = None) -> list[Group]:
    """The servers by process, the shared one first. Slow if a virtualenv has to be made."""
    shared: list[ServerSpec] = []
    groups: list[Group] = []
    for instance in instances:
        python = None if instance.served_class else python_for(instance.folder, venvs)
        if python is None and instance.isolation == "shared":
            shared.append(instance)
        else:
            groups.append(Group(python or sys.executable, [replace(instance, isolation="process")]))
    return [Group(sys.executable, shared, is_shared=True), *groups] if shared else groups


def shared_servers(groups: Sequence[Group]) -> list[ServerSpec]:
    """Return the servers that a worker from outside holds."""
    if not groups or not groups[0].is_shared:
        raise ConfigError("No server of this configuration can share a process, so a worker that joins has none.")
    return groups[0].servers


def worker_count(config: Mapping[str, Any], servers: Sequence[ServerSpec]) -> int:
    """The largest number that one of the servers asks for, else the run's `num_workers`, else 1."""
    own = [
        _count(server.config[NUM_WORKERS_KEY_NAME], f"{server.config_path}.{NUM_WORKERS_KEY_NAME}")
        for server in servers
        if server.config.get(NUM_WORKERS_KEY_NAME) is not None
    ]
    wanted = config.get(NUM_WORKERS_KEY_NAME)
    return max(own) if own else 1 if wanted is None else _count(wanted, NUM_WORKERS_KEY_NAME)


def _count(value: Any, key: str) -> int:
    try:
        return available_cores() if check_num_workers(value) == "auto" else int(value)
    except ValueError as error:
        raise ConfigError(f"{key} is {value!r}; {error}.") from error
