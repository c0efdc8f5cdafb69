"""ScienceWorld: experiments of primary school in a world of text, with points for every step towards the goal."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pydantic import Field, PrivateAttr

from nemo_gym.base_resources_server import BaseResourcesServerConfig, BaseSeedSessionRequest
from nemo_gym.episodes import EpisodeResourcesServer, EpisodeSession
from resources_servers.scienceworld.game import GamePool, ScienceWorldEpisode


class ScienceWorldConfig(BaseResourcesServerConfig, extra="forbid"):
    max_games: int = Field(default=8, ge=1)
    """Virtual machines at once, in each worker, of about 450 MB each. Further rollouts wait."""

    heap_mb: int = Field(default=512, ge=256)
    """Memory of the heap of a virtual machine."""


class ScienceWorldRow(BaseSeedSessionRequest):
    task: str
    """One of 30, such as `boil`."""
    variation: int = Field(default=0, ge=0)
    simplification: str = ""
    """Such as `easy`, or several names with commas between them."""
    max_steps: int = Field(default=100, ge=1)
    """Moves of the game. Looking around and the inventory cost none."""


class ScienceWorldResourcesServer(EpisodeResourcesServer):
    EXTRA = "scienceworld"
    config: ScienceWorldConfig

    _pool: GamePool = PrivateAttr()

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        self._pool = GamePool(self.config.max_games, self.config.heap_mb)
        try:
            yield
        finally:
            await asyncio.to_thread(self._pool.close)

    async def seed_session(self, body: ScienceWorldRow, session: EpisodeSession) -> None:
        session.episode = await asyncio.to_thread(
            ScienceWorldEpisode, self._pool, body.task, body.variation, body.simplification, body.max_steps
        )


if __name__ == "__main__":
    ScienceWorldResourcesServer.run_webserver()
