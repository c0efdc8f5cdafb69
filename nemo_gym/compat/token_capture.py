"""The part of token capture that model servers of the public NeMo Gym call.

Here, a model server returns its token ids and the call log keeps them, so nothing is ever captured on the way."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Protocol

from nemo_gym.config.keys import TOKEN_ID_CAPTURE_BLOCK
from nemo_gym.errors import ConfigError


@dataclass
class CaptureContext:
    """The call that a model server is answering."""

    parent_tokens: list[int] = field(default_factory=list)
    prefix_requested: bool = False
    prefix_supplied: bool = False
    external_staging: bool = False


def current_capture_context() -> CaptureContext | None:
    """None: no call is being captured."""
    return None


def token_id_capture_config(config: Mapping[str, Any]) -> Any:
    """Return the block of a configuration, with defaults."""
    block = config.get(TOKEN_ID_CAPTURE_BLOCK) if isinstance(config, Mapping) else None
    given = dict(block) if isinstance(block, Mapping) else {}
    defaults = {"enabled": False, "all_agents": False, "external_staging": False, "external_staging_backend": None}
    return SimpleNamespace(**{TOKEN_ID_CAPTURE_BLOCK: SimpleNamespace(**{**defaults, **given})})


class ExternalCaptureHandler(Protocol):
    """Has the workers of an engine keep the tokens."""

    def prepare_request(self, body: dict[str, Any]) -> dict[str, Any]: ...

    def prepare_response(self, completion: dict[str, Any]) -> None: ...

    async def finalize_response(self, response: Any) -> None: ...


def make_external_capture_handler(backend: str) -> ExternalCaptureHandler:
    """Raise: engines do not keep tokens for us."""
    raise ConfigError(
        f"{TOKEN_ID_CAPTURE_BLOCK}.external_staging ({backend}) is not supported. Set return_token_id_information of "
        "the model server, and the tokens are in the records."
    )


def unsupported(name: str) -> type[Any]:
    """Return a class that stands for a part of token capture that there is not here."""

    def refuse(_self: Any, attribute: str) -> Any:
        raise NotImplementedError(f"{name}.{attribute}: not supported. The tokens of model calls are in the call log.")

    return type(name, (), {"__getattr__": refuse, "__init__": lambda _self, *_args, **_options: None})


FileLineageStore, InMemoryLineageStore = unsupported("FileLineageStore"), unsupported("InMemoryLineageStore")
LineageResolver, TokenSink, TokenSource = (
    unsupported("LineageResolver"),
    unsupported("TokenSink"),
    unsupported("TokenSource"),
)
TokenCaptureStore, VLLMWorkerCaptureHandler = unsupported("TokenCaptureStore"), unsupported("VLLMWorkerCaptureHandler")
CaptureAdmission = unsupported("CaptureAdmission")


def set_token_sink(sink: Any) -> None:
    """Raise: nothing would be sent there."""
    raise NotImplementedError("Token sinks are not supported. The tokens of model calls are in the call log.")


def reset_token_sink(token: Any = None) -> None:
    """Do nothing: there is no sink."""


def resolve_parent(*_args: Any, **_options: Any) -> None:
    """None: calls are not captured on the way."""
