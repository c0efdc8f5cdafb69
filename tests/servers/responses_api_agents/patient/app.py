"""Scores a row after as many seconds as the row says."""

import asyncio

from pydantic import BaseModel

from nemo_gym.base_responses_api_agent import SimpleResponsesAPIAgent
from nemo_gym.client.server_client import ServerReply


class Patience(BaseModel):
    seconds: float = 0.0
    reply: str = '{"reward": 1.0}'


class PatientAgent(SimpleResponsesAPIAgent):
    async def responses(self, body: Patience) -> ServerReply:
        await asyncio.sleep(body.seconds)
        return ServerReply(self.config.name, 200, body.reply.encode())

    run = responses
