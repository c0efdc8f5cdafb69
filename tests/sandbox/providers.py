"""The providers that run on this machine, for tests that run over all of them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from nemo_gym.sandbox.assessment import bubblewrap, landlock
from nemo_gym.sandbox.contract import SandboxSpec
from nemo_gym.sandbox.local import LocalProvider
from nemo_gym.sandbox.process import SandboxProcess
from nemo_gym.sandbox.registry import get_provider_class

ASSESSMENTS = {"bubblewrap": bubblewrap, "landlock": landlock}
CONFINING = ("bubblewrap", "landlock")


def provider(name: str, **options: Any) -> LocalProvider:
    """A provider, or a skipped test where it does not work."""
    assessment = ASSESSMENTS[name]()
    if not assessment.works:
        pytest.skip(f"{name}: {assessment.reason}")
    made: LocalProvider = get_provider_class(name)(**options)
    return made


@asynccontextmanager
async def sandbox(
    name: str, *, spec: SandboxSpec | None = None, session: bool = False, packages: tuple[str, ...] = (), **limits: Any
) -> AsyncIterator[SandboxProcess]:
    """A sandbox that is gone after the block."""
    made = provider(name, limits=limits, packages=packages)
    try:
        yield await made.open(spec, session=session)
    finally:
        await made.aclose()
