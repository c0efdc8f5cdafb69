"""Sandbox providers in configuration: an inline mapping, or the name of a top-level block."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from nemo_gym.sandbox.local import LocalProvider
from nemo_gym.sandbox.registry import local_provider

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
