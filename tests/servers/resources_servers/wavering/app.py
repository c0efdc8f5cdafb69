"""Scores every other rollout, whatever is in it."""

from itertools import cycle
from typing import Iterator

from pydantic import PrivateAttr

from nemo_gym.base_resources_server import BaseVerifyRequest, SimpleResourcesServer


class WaveringResourcesServer(SimpleResourcesServer):
    _rewards: Iterator[float] = PrivateAttr(default_factory=lambda: cycle([0.0, 1.0]))

    async def verify(self, body: BaseVerifyRequest) -> float:
        return next(self._rewards)


if __name__ == "__main__":
    WaveringResourcesServer.run_webserver()
