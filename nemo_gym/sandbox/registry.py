"""Providers by name: those built in, those registered, and those of installed packages."""

import importlib
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from nemo_gym.sandbox.contract import SandboxProvider
from nemo_gym.sandbox.errors import SandboxUnavailableError

if TYPE_CHECKING:
    from nemo_gym.sandbox.local import LocalProvider

ENTRY_POINTS = "nemo_gym.sandbox_providers"

BUILT_IN = {
    "bubblewrap": "nemo_gym.sandbox.bubblewrap:BubblewrapProvider",
    "landlock": "nemo_gym.sandbox.landlock:LandlockProvider",
    "docker": "nemo_gym.sandbox.docker:DockerProvider",
    "apptainer": "nemo_gym.sandbox.apptainer:ApptainerProvider",
    "unconfined": "nemo_gym.sandbox.unconfined:UnconfinedProvider",
}
NOT_INCLUDED = ("daytona", "ecs_fargate", "enroot", "opensandbox", "openshell")
"""Providers that public folders may name and that are not part of this package."""

_registered: dict[str, type[Any]] = {}


def list_providers() -> list[str]:
    return sorted({*BUILT_IN, *_registered, *(point.name for point in entry_points(group=ENTRY_POINTS))})


def register_provider(name: str, provider_class: type[Any], override: bool = False) -> None:
    if not override and name in list_providers():
        raise ValueError(f"There is a sandbox provider '{name}' already; pass override=True to replace it.")
    _registered[name] = provider_class


def get_provider_class(name: str) -> type[Any]:
    """The class of a provider. Raises ValueError for an unknown name."""
    if name in _registered:
        return _registered[name]
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        found: type[Any] = getattr(importlib.import_module(module), attribute)
        return found
    for point in entry_points(group=ENTRY_POINTS):
        if point.name == name:
            loaded: type[Any] = point.load()
            return loaded
    hint = " It is not part of this package; register one under this name." if name in NOT_INCLUDED else ""
    raise ValueError(f"There is no sandbox provider '{name}'.{hint} Providers: {', '.join(list_providers())}, auto.")


def create_provider(config: Mapping[str, Any]) -> SandboxProvider:
    """The provider that a single-key mapping `{name: options}` describes. `auto` is the best that works here."""
    if len(config) != 1:
        raise ValueError(f"Expected one sandbox provider, found {len(config)}: {', '.join(config) or 'none'}.")
    (name, options), *_ = config.items()
    if name == "auto":
        from nemo_gym.sandbox.assessment import best_provider

        name = best_provider().name
    provider: SandboxProvider = get_provider_class(name)(**(options or {}))
    return provider


def local_provider(config: Mapping[str, Any]) -> "LocalProvider":
    """A provider that has Python programs and sessions. `auto` is the best of these that works here."""
    from nemo_gym.sandbox.assessment import best_provider
    from nemo_gym.sandbox.local import LocalProvider

    if "auto" in config:
        config = {best_provider(local=True).name: config["auto"]}
    provider = create_provider(config)
    if not isinstance(provider, LocalProvider):
        raise SandboxUnavailableError(
            f"The sandbox provider '{provider.name}' has no Python sessions. Use auto, bubblewrap or landlock."
        )
    return provider
