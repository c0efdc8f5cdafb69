"""An agent: lets a model act in an environment, one rollout a call of `/run`."""

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Self

from nemo_gym.common.lazy_exports import lazy_attributes
from nemo_gym.config.types import BaseRunServerInstanceConfig
from nemo_gym.errors import RolloutError
from nemo_gym.server.base import BaseServer, SimpleServer
from nemo_gym.server.endpoint import Endpoint

if TYPE_CHECKING:
    from fastapi import Body as Body

__getattr__ = lazy_attributes(__name__, {"Body": "fastapi:Body"})


class keep_response:  # noqa: N801 - a context manager
    """Attach `response` to an error raised after the model has replied, so that `ng_reverify` can complete the rollout
    without calling the model again. Enter it before any timeout."""

    def __init__(self) -> None:
        self.response: Any = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, RolloutError):
            error.response = self.response


class BaseResponsesAPIAgentConfig(BaseRunServerInstanceConfig):
    """The configuration of an agent. Subclass it for the servers it works with."""


class BaseResponsesAPIAgent(BaseServer):
    config: BaseResponsesAPIAgentConfig


class SimpleResponsesAPIAgent(BaseResponsesAPIAgent, SimpleServer):
    """Subclass and write `responses` (one conversation) and `run` (a whole rollout, scored)."""

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint("/v1/responses", self.responses, cause="internal"),
            Endpoint("/run", self.run, cause="internal"),
        ]

    @abstractmethod
    async def responses(self, *args: Any, **kwargs: Any) -> Any:
        """Answer a conversation, calling tools on the way."""

    @abstractmethod
    async def run(self, *args: Any, **kwargs: Any) -> Any:
        """Play a row: seed, converse, verify."""
