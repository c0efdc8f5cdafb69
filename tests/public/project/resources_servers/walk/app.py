from fastapi import FastAPI

from nemo_gym.base_resources_server import BaseResourcesServerConfig, SimpleResourcesServer
from nemo_gym.rollout_correlation import RolloutContextMiddleware, current_rollout_id


class Walk(SimpleResourcesServer):
    config: BaseResourcesServerConfig

    def setup_webserver(self) -> FastAPI:
        app = FastAPI()
        self.setup_session_middleware(app)
        self.setup_session_middleware(app)
        app.add_middleware(RolloutContextMiddleware)
        app.post("/reset")(self.reset)
        return app

    async def reset(self) -> dict:
        return {"rollout": current_rollout_id()}


if __name__ == "__main__":
    Walk.run_webserver()
