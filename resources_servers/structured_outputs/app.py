"""Does the reply fit the JSON schema that the prompt asks for? Its content is not judged."""

from typing import Literal

from pydantic import Field

from nemo_gym import JsonObject
from nemo_gym.answers import joined_text, strict_json
from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    Score,
    SimpleResourcesServer,
)
from nemo_gym.compute import TIMED_OUT, Compute
from nemo_gym.errors import RolloutError
from resources_servers.structured_outputs.keywords import says_nothing
from resources_servers.structured_outputs.schemas import verdict


class StructuredOutputsResourcesServerConfig(BaseResourcesServerConfig, extra="forbid"):
    check_timeout_s: float = Field(default=10.0, gt=0)
    """CPU time limit for checking a reply. A pattern in a schema may never finish."""


class StructuredOutputsVerifyRequest(BaseVerifyRequest):
    schema_str: str
    """The schema as JSON text."""
    schema_type: Literal["json"]


class StructuredOutputsResourcesServer(SimpleResourcesServer):
    config: StructuredOutputsResourcesServerConfig

    @classmethod
    def check_row(cls, row: JsonObject) -> None:
        """Raise ValueError if the schema is not JSON, or one that nothing or everything fits. Whether all its keywords
        are valid takes 20 ms to find out: the verifier does."""
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

    async def verify(self, body: StructuredOutputsVerifyRequest, compute: Compute) -> Score:
        text, timeout_s = joined_text(body.response), self.config.check_timeout_s
        fitting = await compute.run(verdict, text, body.schema_str, timeout_s=timeout_s, on_limit=TIMED_OUT)
        if fitting is None:
            raise RolloutError("input", "schema_str is no valid JSON Schema.", retryable=False)
        return Score(float(fitting is True), timed_out=fitting is TIMED_OUT)
