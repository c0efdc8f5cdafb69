"""Separate imports of server folders: `import helpers` in one folder finds that folder's `helpers.py`, under its own
module name, and never another folder's."""

import builtins
import importlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from nemo_gym.common.paths import FOLDER_ALIASES, search_roots


def keep_imports_apart(package: str, folder: Path) -> None:
    """Import the modules of `package` from `folder`. Their own imports search that folder first."""
    if not any(isinstance(finder, _FolderFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _FolderFinder())
    _FolderFinder.folders[package] = folder


class _FolderFinder:
    """Finds the modules of loaded folders. Their own imports search their folder first."""

    folders: ClassVar[dict[str, Path]] = {}

    @classmethod
    def package(cls, module: str) -> str:
        """Return the loaded package of a module, or the package it would have."""
        parts = module.split(".")
        deep = ".".join(parts[:3])
        return deep if deep in cls.folders else ".".join(parts[:2])

    @staticmethod
    def _alias(name: str) -> ModuleSpec | None:
        """Find the folder of an alias such as `resources_servers.<second name>`."""
        target = FOLDER_ALIASES.get(name.replace(".", "/"))
        for root in search_roots() if target else ():
            if target and not root.joinpath(*name.split(".")).is_dir() and (root / target).is_dir():
                spec = ModuleSpec(name, None, is_package=True)
                spec.submodule_search_locations = [str(root / target)]
                return spec
        return None

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package = cls.package(name)
        if name == package or package not in cls.folders:
            return cls._alias(name)
        folder = cls.folders[package]
        place = folder.joinpath(*name.removeprefix(f"{package}.").split("."))
        for file, locations in ((place.with_suffix(".py"), None), (place / "__init__.py", [str(place)])):
            if file.is_file():
                loader = _FolderLoader(name, str(file), folder, package)
                return importlib.util.spec_from_file_location(
                    name, file, loader=loader, submodule_search_locations=locations
                )
        return None


class _FolderLoader(SourceFileLoader):
    """Runs a module with an `__import__` that knows the module's folder."""

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
