"""Load a server's folder into this interpreter. Folders do not share module names: `import helpers` in one folder
finds that folder's `helpers.py`, under a name of its own, and never another's."""

import ast
import builtins
import importlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from nemo_gym.errors import ConfigError
from nemo_gym.paths import search_roots
from nemo_gym.server import SimpleServer


def load_server_class(server_type: str, implementation: str, folder: Path, entrypoint: str) -> type[SimpleServer]:
    """The class that a folder's entry point runs."""
    _make_importable(server_type, folder)
    file = folder / entrypoint
    if not file.is_file():
        raise ConfigError(f"{folder} has no '{entrypoint}', which its config names as the entry point.")
    parts = [server_type, implementation, *Path(entrypoint).with_suffix("").parts]
    module = importlib.import_module(".".join(parts))
    if Path(module.__file__ or "").resolve() != file.resolve():
        raise ConfigError(f"'{'.'.join(parts)}' is imported from {module.__file__}, but the config means {file}.")
    return _served_class(module, file)


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
            "SimpleResponsesAPIModel, and at the end: if __name__ == '__main__': <class>.run_webserver()"
        )
    return own[-1]


def _make_importable(server_type: str, folder: Path) -> None:
    """Let `<server_type>.<implementation>.<module>` be imported from the folder's root, with imports kept apart."""
    root = str(folder.parent.parent.resolve())
    for known in (root, *(str(path) for path in search_roots())):
        if known not in sys.path:
            sys.path.append(known)
    if not any(isinstance(finder, _FolderFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _FolderFinder())
    importlib.invalidate_caches()
    _FolderFinder.folders[f"{server_type}.{folder.name}"] = folder.resolve()


class _FolderFinder:
    """Finds the modules of loaded folders, and gives them imports that look into their own folder first."""

    folders: ClassVar[dict[str, Path]] = {}

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package = ".".join(name.split(".")[:2])
        folder = cls.folders.get(package)
        if folder is None or name == package:
            return None
        place = folder.joinpath(*name.split(".")[2:])
        for file, locations in ((place.with_suffix(".py"), None), (place / "__init__.py", [str(place)])):
            if file.is_file():
                loader = _FolderLoader(name, str(file), folder, package)
                return importlib.util.spec_from_file_location(
                    name, file, loader=loader, submodule_search_locations=locations
                )
        return None


class _FolderLoader(SourceFileLoader):
    """Runs a module with builtins whose `__import__` knows the module's folder."""

    def __init__(self, name: str, file: str, folder: Path, package: str) -> None:
        super().__init__(name, file)
        self._folder, self._package = folder, package

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": self._import}
        super().exec_module(module)

    def _import(
        self,
        name: str,
        importer: Mapping[str, Any] | None = None,
        local: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        first = name.partition(".")[0]
        if level or not self._is_sibling(first):
            return builtins.__import__(name, importer, local, fromlist or (), level)
        if fromlist:
            return builtins.__import__(f"{self._package}.{name}", importer, local, fromlist, 0)
        importlib.import_module(f"{self._package}.{name}")
        return sys.modules[f"{self._package}.{first}"]

    def _is_sibling(self, name: str) -> bool:
        return (self._folder / f"{name}.py").is_file() or (self._folder / name / "__init__.py").is_file()
