"""Answers a row with what the row says, byte for byte."""

from pydantic import BaseModel

from nemo_gym.base_responses_api_agent import SimpleResponsesAPIAgent
from nemo_gym.client.server_client import ServerReply


class Wanted(BaseModel):
    answer: str


class BluntAgent(SimpleResponsesAPIAgent):
    async def responses(self, body: Wanted) -> ServerReply:
        return ServerReply(self.config.name, 200, body.answer.encode())

    run = responses
