"""A model: an OpenAI-shaped server in front of whatever makes the text."""

from abc import abstractmethod
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_gym.client.server_client import ServerReply
from nemo_gym.common.lazy_exports import lazy_attributes
from nemo_gym.config.types import BaseRunServerInstanceConfig
from nemo_gym.llm_api.responses import NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.server.base import BaseServer, SimpleServer
from nemo_gym.server.endpoint import Endpoint
from nemo_gym.server.model_call_capture import CaptureStore as CaptureStore
from nemo_gym.server.model_call_capture import ModelCallRecord as ModelCallRecord
from nemo_gym.server.model_call_capture import aggregate_model_call_metrics as aggregate_model_call_metrics
from nemo_gym.server.model_call_capture import capture_calls
from nemo_gym.server.model_call_capture import read_model_call_records as read_model_call_records
from nemo_gym.server.model_endpoints import answer_about_models, estimate_tokens, model_endpoints, refused_path

if TYPE_CHECKING:
    from fastapi import Body as Body

__getattr__ = lazy_attributes(__name__)


class BaseResponsesAPIModelConfig(BaseRunServerInstanceConfig):
    """The configuration of a model server. Subclass it for its endpoint, key and so on."""


class BaseResponsesAPIModel(BaseServer):
    config: BaseResponsesAPIModelConfig


class SimpleResponsesAPIModel(BaseResponsesAPIModel, SimpleServer):
    """Subclass and write `responses` and `chat_completions`. Streams, `/v1/messages` and `/v1/models` come with them.
    A method `completions` is served at `/v1/completions`. A `responses` that takes a `FrozenRequest` shares the
    request of a caller in the same worker; any other body is copied for it."""

    def endpoints(self) -> list[Endpoint]:
        store, completions = CaptureStore.of(self.server_client), getattr(self, "completions", None)
        captured = partial(capture_calls, store=store, server=self.config.name)
        return model_endpoints(
            captured(self.chat_completions, path="/v1/chat/completions"),
            captured(self.responses, path="/v1/responses"),
            count_tokens=self.count_tokens,
            completions=completions and captured(completions, path="/v1/completions"),
        )

    def served_model(self) -> str:
        """The name that `/v1/models` lists: the endpoint's, if the config has it, else that of the server."""
        names = (getattr(self.config, field, None) for field in ("model", "openai_model"))
        return next((name for name in names if isinstance(name, str) and name), self.config.name)

    @classmethod
    def tokenizer_file(cls, config: Mapping[str, Any]) -> Path | None:
        """The `tokenizer.json` or GGUF file of a model with this configuration, if it is on this machine. The viewer
        shows the text of tokens with it."""
        return None

    def answer_get(self, path: str) -> Any:
        found = answer_about_models(path, self.served_model(), server=self.config.name)
        return super().answer_get(path) if found is None else found

    def shape_refusal(self, path: str, reply: ServerReply) -> ServerReply:
        return refused_path(reply, path, (endpoint.path for endpoint in self.endpoints()))

    async def count_tokens(self, params: NeMoGymResponseCreateParamsNonStreaming) -> int:
        """Count the tokens of a request. By default an estimate."""
        return await estimate_tokens(params)

    @abstractmethod
    async def chat_completions(self, *args: Any, **kwargs: Any) -> Any:
        """Answer in the Chat Completions dialect."""

    @abstractmethod
    async def responses(self, *args: Any, **kwargs: Any) -> Any:
        """Answer in the Responses dialect."""


Model = SimpleResponsesAPIModel
"""Its name in scripts and notebooks, as `nemo_gym.Model`."""
