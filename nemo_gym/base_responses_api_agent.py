"""An agent: lets a model act in an environment, one rollout a call of `/run`."""

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from nemo_gym.common.lazy_exports import lazy_attributes
from nemo_gym.config.types import BaseRunServerInstanceConfig
from nemo_gym.server.base import BaseServer, SimpleServer
from nemo_gym.server.endpoint import Endpoint

if TYPE_CHECKING:
    from fastapi import Body as Body

__getattr__ = lazy_attributes(__name__, {"Body": "fastapi:Body"})


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
