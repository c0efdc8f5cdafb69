"""The providers that run on this machine, attacks on their sandboxes, and waiting."""

import asyncio
import textwrap
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.sandbox.contract import ExecResult, SandboxSpec
from nemo_gym.sandbox.local import LocalProvider, host_runtime
from nemo_gym.sandbox.process import SandboxProcess
from nemo_gym.sandbox.registry import bubblewrap, get_provider_class, landlock
from tests.sandbox.attacks import PRELUDE

SECRET = "canary-7c1f"
SMALL = {"memory_mb": 256, "processes": 24, "disk_mb": 16, "files": 2000, "open_files": 64, "cpu_s": 5.0}
"""Limits that an attack reaches soon."""
ASSESSMENTS = {"bubblewrap": bubblewrap, "landlock": landlock}
CONFINING = ("bubblewrap", "bubblewrap_forked", "landlock")
LONGER_AND_LONGER = (0.5, 2.0, 8.0, 32.0)
"""Time limits, to be tried until the code has begun before its time was up, as it may not have on a busy machine."""
FORKED = {"bubblewrap": None, "bubblewrap_forked": True, "landlock": True}
"""Which of them fork their sandboxes from the first one on."""


def provider(name: str, **options: Any) -> LocalProvider:
    """A provider, or a skipped test where it does not work."""
    options = {"fork_server": FORKED[name], **options}
    name = name.removesuffix("_forked")
    assessment = ASSESSMENTS[name]()
    if not assessment.works:
        pytest.skip(f"{name}: {assessment.reason}")
    made: LocalProvider = get_provider_class(name)(**options)
    if options["fork_server"] and made.server_launch(SandboxSpec(), host_runtime()) is None:
        pytest.skip(f"{name}: the interpreter is in a folder that each sandbox has of its own, so that none is forked")
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


async def attack(box: SandboxProcess, code: str, *args: object, timeout_s: float = 20.0) -> ExecResult:
    program = PRELUDE + textwrap.dedent(code)
    return await box.program(program, *(str(one) for one in args), timeout_s=timeout_s)


async def fails(box: SandboxProcess, code: str, *args: object) -> None:
    """The attack ran, and got nothing."""
    result = await attack(box, code, *args)
    output = f"{result.stdout}{result.stderr}"
    assert "ESCAPED" not in output, output
    assert SECRET not in output
    assert result.error_type is None, result


def processes_with(token: str) -> list[str]:
    """Processes of the host whose command line holds a token."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if token.encode() in words:
            found.append(path.parent.name)
    return found


async def until(condition: Callable[[], Any], *, timeout_s: float = 60.0) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - other processes make it true
            await asyncio.sleep(0.02)
