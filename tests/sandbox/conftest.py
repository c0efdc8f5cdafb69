"""A small sandbox of each provider that runs here."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from nemo_gym.sandbox.process import SandboxProcess
from tests.sandbox.providers import CONFINING, SMALL, sandbox


@pytest.fixture(params=CONFINING)
async def box(request: pytest.FixtureRequest) -> AsyncIterator[SandboxProcess]:
    limits: dict[str, Any] = SMALL
    async with sandbox(request.param, **limits) as made:
        yield made
