"""Modules of a wheel, for benchmarks whose tools or checks are code.

They are read from the wheel, whose hash is checked, and run without the rest of the package: importing packages of
benchmarks as such would start the software kits of many vendors and make folders. They have names of their own in
`sys.modules`, so that the installed package, if there is one, is not touched."""

import builtins
import sys
import types
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from importlib.abc import InspectLoader
from threading import RLock
from typing import Any

from nemo_gym.config.types import PypiPackage
from nemo_gym.data.hubs.pypi import PackageFiles, package_files
from nemo_gym.errors import MissingExtraError


class WheelModules:
    """The modules of a package that may be run. All others of it are empty."""

    def __init__(
        self,
        package: PypiPackage,
        allowed: Iterable[str],
        *,
        feature: str,
        extra: str,
        replaced: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """`allowed` has patterns of dotted names. `replaced` has the content of modules to use in place of the
        package's own. `feature` and `extra` are for the error if something else that they import is not installed."""
        self._package, self._allowed = package, tuple(allowed)
        self._feature, self._extra, self._replaced = feature, extra, dict(replaced or {})
        self._root = self._allowed[0].partition(".")[0]
        self._modules: dict[str, types.ModuleType] = {}
        self._lock = RLock()

    def module(self, name: str) -> types.ModuleType:
        """A module by its dotted name in the package."""
        with self._lock:
            return self._module(name, package_files(self._package))

    def _module(self, name: str, files: PackageFiles) -> types.ModuleType:
        if name in self._modules:
            return self._modules[name]
        parent, _, own = name.rpartition(".")
        container = self._module(parent, files) if parent else None
        if name in self._modules:  # the parent has imported it
            return self._modules[name]
        module = types.ModuleType(f"_wheel_{name}")
        self._modules[name] = sys.modules[module.__name__] = module
        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": self._import}
        try:
            self._fill(module, name, files)
        except BaseException:
            del self._modules[name], sys.modules[module.__name__]
            raise
        if container is not None:
            setattr(container, own, module)
        return module

    def _fill(self, module: types.ModuleType, name: str, files: PackageFiles) -> None:
        if name in self._replaced:
            vars(module).update(self._replaced[name])
        elif any(fnmatchcase(name, pattern) for pattern in self._allowed):
            path = name.replace(".", "/")
            found = [each for each in files.names() if each == f"{path}.py" or each.startswith(f"{path}/")]
            if not found:
                raise ModuleNotFoundError(f"{files.origin} has no module {name}", name=name)
            if source := next((each for each in found if each in (f"{path}.py", f"{path}/__init__.py")), None):
                _Loader(files.read(source).decode()).exec_module(module)

    def _import(
        self,
        name: str,
        scope: Mapping[str, Any] | None = None,
        local: Mapping[str, Any] | None = None,
        fromlist: Iterable[str] = (),
        level: int = 0,
    ) -> Any:
        """Import for these modules."""
        if level or name.partition(".")[0] != self._root:
            try:
                return __import__(name, scope, local, tuple(fromlist or ()), level)
            except ModuleNotFoundError as error:
                raise MissingExtraError(self._feature, self._extra) from error
        files = package_files(self._package)
        module = self._module(name, files)
        for each in fromlist or ():
            if not hasattr(module, each):
                self._module(f"{name}.{each}", files)
        return module if fromlist else self._modules[self._root]


class _Loader(InspectLoader):
    def __init__(self, source: str) -> None:
        self._source = source

    def get_source(self, fullname: str) -> str:
        return self._source
