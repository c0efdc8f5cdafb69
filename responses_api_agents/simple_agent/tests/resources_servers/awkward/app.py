"""An environment for tests of agents: tools that meet, crash and hang; boundaries that fail when the row says so."""

import asyncio
import math
from typing import Any, Literal

from pydantic import PrivateAttr

from nemo_gym.base_resources_server import (
    BaseSeedSessionRequest,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SessionState,
    SimpleResourcesServer,
    tool,
)

HANG_S = 30.0
Behaviour = Literal["fine", "crash", "hang", "nan"]

open_visits: set[int] = set()
"""The states that were made and have not been closed."""


class Visit(SessionState):
    notes: list[str] = []  # noqa: RUF012 - a field, which pydantic copies

    def model_post_init(self, _context: Any, /) -> None:
        open_visits.add(id(self))

    def close(self) -> None:
        open_visits.discard(id(self))


class AwkwardSeedRequest(BaseSeedSessionRequest):
    seed: Behaviour = "fine"


class AwkwardVerifyRequest(BaseVerifyRequest):
    verify: Behaviour = "fine"


class AwkwardVerifyResponse(BaseVerifyResponse):
    notes: list[str]


class AwkwardResourcesServer(SimpleResourcesServer):
    _pair: asyncio.Barrier = PrivateAttr(default_factory=lambda: asyncio.Barrier(2))

    async def seed_session(self, body: AwkwardSeedRequest, session: Visit) -> None:
        await _behave(body.seed)
        session.notes.append("seeded")

    @tool
    async def note(self, text: str, session: Visit) -> list[str]:
        """Keep a text; get all that were kept."""
        session.notes.append(text)
        return session.notes

    @tool
    async def meet(self, name: str, linger_s: float = 0.0) -> str:
        """Wait until somebody else has called this, too."""
        async with asyncio.timeout(5):
            await self._pair.wait()
        await asyncio.sleep(linger_s)
        return name

    @tool
    async def crash(self) -> None:
        """Fail."""
        raise RuntimeError("the tool broke")

    @tool
    async def hang(self) -> None:
        """Take long."""
        await asyncio.sleep(HANG_S)

    @tool
    async def tell_strangely(self) -> complex:
        """Answer what has no JSON form."""
        return 1j

    @tool
    async def count_open_visits(self) -> int:
        """How many rollouts have state here."""
        return len(open_visits)

    async def verify(self, body: AwkwardVerifyRequest, session: Visit) -> AwkwardVerifyResponse:
        await _behave(body.verify)
        return AwkwardVerifyResponse(
            responses_create_params=body.responses_create_params,
            response=body.response,
            reward=math.nan if body.verify == "nan" else float(len(session.notes)),
            notes=session.notes,
        )


async def _behave(behaviour: Behaviour) -> None:
    if behaviour == "crash":
        raise RuntimeError("the handler broke")
    if behaviour == "hang":
        await asyncio.sleep(HANG_S)
