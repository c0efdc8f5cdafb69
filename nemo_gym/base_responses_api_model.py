"""A model: an OpenAI-shaped server in front of whatever makes the text."""

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from nemo_gym.common.lazy_exports import lazy_attributes
from nemo_gym.config.types import BaseRunServerInstanceConfig
from nemo_gym.server.base import BaseServer, SimpleServer
from nemo_gym.server.endpoint import Endpoint
from nemo_gym.server.model_endpoints import model_endpoints

if TYPE_CHECKING:
    from fastapi import Body as Body

__getattr__ = lazy_attributes(__name__, {"Body": "fastapi:Body"})


class BaseResponsesAPIModelConfig(BaseRunServerInstanceConfig):
    """The configuration of a model server. Subclass it for its endpoint, key and so on."""


class BaseResponsesAPIModel(BaseServer):
    config: BaseResponsesAPIModelConfig


class SimpleResponsesAPIModel(BaseResponsesAPIModel, SimpleServer):
    """Subclass and write `responses` and `chat_completions`. Streams and `/v1/messages` come with them."""

    READS_ONLY: ClassVar[bool] = False
    """Set it to promise that no handler changes its body. Then a caller's objects are not copied for them."""

    def endpoints(self) -> list[Endpoint]:
        return model_endpoints(self.chat_completions, self.responses, reads_only=self.READS_ONLY)

    @abstractmethod
    async def chat_completions(self, *args: Any, **kwargs: Any) -> Any:
        """Answer in the Chat Completions dialect."""

    @abstractmethod
    async def responses(self, *args: Any, **kwargs: Any) -> Any:
        """Answer in the Responses dialect."""
