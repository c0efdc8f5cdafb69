"""Providers by name: those built in, those registered, and those of installed packages."""

import importlib
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from nemo_gym.sandbox.contract import SandboxProvider, SandboxUnavailableError
from nemo_gym.sandbox.local import LocalProvider

if TYPE_CHECKING:
    from nemo_gym.sandbox.local import LocalProvider

ENTRY_POINTS = "nemo_gym.sandbox_providers"

BUILT_IN = {
    "bubblewrap": "nemo_gym.sandbox.bubblewrap:BubblewrapProvider",
    "landlock": "nemo_gym.sandbox.landlock:LandlockProvider",
    "docker": "nemo_gym.sandbox.containers:DockerProvider",
    "apptainer": "nemo_gym.sandbox.containers:ApptainerProvider",
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


METADATA_KEY = "default_metadata"


class SandboxConfig(BaseModel):
    """The fields of a server that runs model-written code."""

    sandbox_provider: str | dict[str, Any] = {"auto": {}}
    """Where the code runs: `{provider: options}`, or the name of a top-level block with that. See docs/sandbox.md."""

    def local_provider(self, named_configs: Mapping[str, Any], **defaults: Any) -> LocalProvider:
        """The provider, with options that hold unless the configuration says otherwise."""
        ((name, options),) = resolve_provider_config(self.sandbox_provider, named_configs).items()
        limits = {**defaults.get("limits", {}), **(options.get("limits") or {})}
        return local_provider({name: {**defaults, **options, "limits": limits}})


def resolve_provider_config(ref: Any, named_configs: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """`{provider: options}` for a server's `sandbox_provider`."""
    block = _block(ref, named_configs)
    providers = {name: dict(options or {}) for name, options in block.items() if name != METADATA_KEY}
    if len(providers) != 1:
        found = ", ".join(providers) or "none"
        raise ValueError(f"A sandbox block names exactly one provider; this one names {found}.")
    return providers


def resolve_provider_metadata(ref: Any, named_configs: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The metadata that sandboxes of this block have unless their spec says otherwise."""
    return dict(_block(ref, named_configs).get(METADATA_KEY) or {})


def _block(ref: Any, named_configs: Mapping[str, Any] | None) -> Mapping[str, Any]:
    if isinstance(ref, str):
        named = named_configs or {}
        block = named.get(ref)
        if not isinstance(block, Mapping):
            candidates = ", ".join(str(name) for name, value in named.items() if isinstance(value, Mapping)) or "none"
            raise ValueError(f"There is no sandbox block '{ref}' in the configuration. Blocks: {candidates}.")
        return block
    if isinstance(ref, Mapping):
        return ref
    raise TypeError(f"sandbox_provider is a {type(ref).__name__}; expected a block's name or a mapping.")
