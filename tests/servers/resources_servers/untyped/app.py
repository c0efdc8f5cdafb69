"""Scores what it reads as JSON in fields that take anything and in undeclared ones."""

from typing import Any

from nemo_gym.base_resources_server import (
    BaseSeedSessionRequest,
    SessionState,
    SimpleResourcesServer,
)


class UntypedSession(SessionState):
    inputs: list[Any] = []


class UntypedSeedRequest(BaseSeedSessionRequest):
    responses_create_params: Any


class UntypedVerifyRequest(BaseSeedSessionRequest, extra="allow"):
    response: Any


class UntypedResourcesServer(SimpleResourcesServer):
    async def seed_session(self, body: UntypedSeedRequest, session: UntypedSession) -> None:
        session.inputs = body.responses_create_params["input"]

    async def verify(self, body: UntypedVerifyRequest, session: UntypedSession) -> float:  # type: ignore[override]
        params = (body.model_extra or {})["responses_create_params"]
        said = body.response["output"][-1]["content"][0]["text"]
        return float(said == "done" and params["input"] == session.inputs)

    async def aggregate_metrics(self, body: dict) -> dict:  # type: ignore[override,type-arg]
        types = {name: type(value).__name__ for name, value in body.items()}
        return {"types": types, "seed": UntypedSeedRequest(responses_create_params=None)}


if __name__ == "__main__":
    UntypedResourcesServer.run_webserver()
