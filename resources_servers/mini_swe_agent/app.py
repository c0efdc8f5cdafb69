"""A placeholder: the agent of the same name runs the tests and scores its rollouts itself."""

from nemo_gym.base_resources_server import BaseVerifyRequest, SimpleResourcesServer


class MiniSWEResourcesServer(SimpleResourcesServer):
    async def verify(self, body: BaseVerifyRequest) -> float:
        return 1.0
