"""Scores the rollouts of one task against each other, once all of them are there."""
import asyncio
from collections import defaultdict
from typing import Any, Dict, List

from pydantic import ConfigDict

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.global_config import ROLLOUT_INDEX_KEY_NAME, TASK_INDEX_KEY_NAME


class RankedConfig(BaseResourcesServerConfig):
    num_rollouts_per_prompt: int = 2


class RankedVerifyRequest(BaseVerifyRequest):
    model_config = ConfigDict(extra="allow")


class RankedVerifyResponse(BaseVerifyResponse):
    rank: int


class Ranked(SimpleResourcesServer):
    config: RankedConfig

    def model_post_init(self, context: Any) -> None:
        self._cohorts: Dict[int, List] = defaultdict(list)
        self._full: Dict[int, asyncio.Event] = defaultdict(asyncio.Event)

    async def verify(self, body: RankedVerifyRequest) -> RankedVerifyResponse:
        row = body.model_dump()
        task, rollout = row[TASK_INDEX_KEY_NAME], row[ROLLOUT_INDEX_KEY_NAME]
        cohort = self._cohorts[task]
        cohort.append(rollout)
        if len(cohort) == self.config.num_rollouts_per_prompt:
            self._full[task].set()
        await self._full[task].wait()
        rank = sorted(cohort).index(rollout)
        return RankedVerifyResponse(**row, reward=1.0 / (1 + rank), rank=rank)


if __name__ == "__main__":
    Ranked.run_webserver()
