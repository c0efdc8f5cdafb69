"""An environment whose reward is for a file that a harness wrote."""

from nemo_gym.base_resources_server import BaseVerifyRequest, SimpleResourcesServer


class WrittenFileVerifyRequest(BaseVerifyRequest):
    expected: str


class WrittenFileResourcesServer(SimpleResourcesServer):
    async def verify(self, body: WrittenFileVerifyRequest) -> float:
        files = (body.response.model_extra or {})["harness"]["files"]
        return float(files.get("answer.txt", "").strip() == body.expected)
