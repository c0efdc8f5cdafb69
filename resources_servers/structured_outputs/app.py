"""Does the reply fit the JSON schema that the prompt asks for? Its content is not judged."""

from typing import Literal

from pydantic import Field

from nemo_gym import JsonObject
from nemo_gym.answers import joined_text, strict_json
from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.compute import Compute, LimitExceededError
from resources_servers.structured_outputs.keywords import says_nothing
from resources_servers.structured_outputs.schemas import fits


class StructuredOutputsResourcesServerConfig(BaseResourcesServerConfig, extra="forbid"):
    check_timeout_s: float = Field(default=10.0, gt=0)
    """CPU time limit for checking a reply. A pattern in a schema may never finish."""


class StructuredOutputsVerifyRequest(BaseVerifyRequest):
    schema_str: str
    """The schema as JSON text."""
    schema_type: Literal["json"]


class StructuredOutputsVerifyResponse(BaseVerifyResponse):
    timed_out: bool
    """Whether checking the reply took more time, or memory, than it may; the reward is 0 then."""


class StructuredOutputsResourcesServer(SimpleResourcesServer):
    config: StructuredOutputsResourcesServerConfig

    @classmethod
    def check_row(cls, row: JsonObject) -> None:
        """Raise ValueError if the schema is not JSON, or one that nothing or everything fits. Whether all its keywords
        are valid is not checked: that takes 20 ms."""
        text = row.get("schema_str")
        try:
            schema = strict_json(text) if isinstance(text, str) else None
        except ValueError as error:
            raise ValueError(f"schema_str is not JSON: {error}") from error
        if not isinstance(schema, dict):
            raise ValueError(f"schema_str is {text!r:.100}; expected the text of a JSON object.")
        if says_nothing(schema):
            raise ValueError(
                f"schema_str is {text!r:.100}, which asks for no content. Expected properties, items, ..."
            )

    async def verify(self, body: StructuredOutputsVerifyRequest, compute: Compute) -> StructuredOutputsVerifyResponse:
        fitting, timed_out = False, False
        try:
            fitting = await compute.run(
                fits, joined_text(body.response), body.schema_str, timeout_s=self.config.check_timeout_s
            )
        except LimitExceededError:
            timed_out = True
        return StructuredOutputsVerifyResponse(
            responses_create_params=body.responses_create_params,
            response=body.response,
            reward=float(fitting),
            timed_out=timed_out,
        )
