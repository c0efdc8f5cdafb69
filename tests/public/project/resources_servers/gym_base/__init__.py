from typing import Any, Dict, Optional, Tuple

from fastapi import FastAPI, Request
from pydantic import BaseModel, ConfigDict

from nemo_gym.base_resources_server import BaseResourcesServerConfig, SimpleResourcesServer
from nemo_gym.openai_utils import NeMoGymResponse
from nemo_gym.rollout_correlation import RolloutContextMiddleware
from nemo_gym.server_utils import SESSION_ID_KEY


class ResetRequest(BaseModel):
    model_config = ConfigDict(extra="allow")


class ResetResponse(BaseModel):
    observation: Optional[str]
    info: Dict[str, Any] = {}


class StepRequest(BaseModel):
    model_config = ConfigDict(extra="allow")
    response: NeMoGymResponse


class StepResponse(BaseModel):
    observation: Optional[str]
    reward: float
    terminated: bool
    truncated: bool = False
    info: Dict[str, Any] = {}


class GymServer(SimpleResourcesServer):
    """No /verify: an agent calls /reset and /step."""

    config: BaseResourcesServerConfig

    def setup_webserver(self) -> FastAPI:
        app = FastAPI()
        self.setup_session_middleware(app)
        app.add_middleware(RolloutContextMiddleware)
        app.post("/reset")(self._reset)
        app.post("/step")(self._step)
        app.post("/aggregate_metrics")(self.aggregate_metrics)
        return app

    async def _reset(self, body: ResetRequest, request: Request) -> ResetResponse:
        observation, info = await self.reset(body.model_dump(), request.session[SESSION_ID_KEY])
        return ResetResponse(observation=observation, info=info)

    async def _step(self, body: StepRequest, request: Request) -> StepResponse:
        observation, reward, terminated, truncated, info = await self.step(
            body.response, body.model_dump(exclude={"response"}), request.session[SESSION_ID_KEY]
        )
        return StepResponse(
            observation=observation, reward=reward, terminated=terminated, truncated=truncated, info=info
        )

    async def reset(self, metadata: dict, session_id: str) -> Tuple[Optional[str], dict]:
        return None, {}

    async def step(self, action: NeMoGymResponse, metadata: dict, session_id: str):
        raise NotImplementedError

    async def verify(self, body):
        raise NotImplementedError
