"""An environment whose tool returns an image."""

from nemo_gym.base_resources_server import BaseNextMessageRequest, BaseVerifyRequest, SimpleResourcesServer, tool
from nemo_gym.llm_api.responses import NeMoGymResponseContent, NeMoGymResponseInputText, image_part


class CameraResourcesServer(SimpleResourcesServer):
    @tool
    async def look(self) -> list[NeMoGymResponseContent]:
        """Take a picture."""
        return [NeMoGymResponseInputText(text="Here:"), image_part(b"\x89PNG\r\n")]

    async def next_message(self, body: BaseNextMessageRequest) -> None:
        return None

    async def verify(self, body: BaseVerifyRequest) -> float:
        return 1.0
