"""Imports of server folders, kept apart: `import helpers` in one folder finds that folder's `helpers.py`, under a name
of its own, and never another's."""

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
    """Import the modules of `package` from `folder`, each with imports that look into that folder first."""
    if not any(isinstance(finder, _FolderFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _FolderFinder())
    _FolderFinder.folders[package] = folder


class _FolderFinder:
    """Finds the modules of loaded folders, and gives them imports that look into their own folder first."""

    folders: ClassVar[dict[str, Path]] = {}

    @classmethod
    def package(cls, module: str) -> str:
        """The loaded package that a module is in, or what would be its package."""
        parts = module.split(".")
        deep = ".".join(parts[:3])
        return deep if deep in cls.folders else ".".join(parts[:2])

    @staticmethod
    def _alias(name: str) -> ModuleSpec | None:
        """`resources_servers.<second name>` is the folder that has the first name."""
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
