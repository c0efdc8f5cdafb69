"""`StopIteration` in a handler is an error like any other, in a plain `def` as in a coroutine."""

import asyncio
from typing import Annotated

import pytest
from fastapi import Query

from nemo_gym.base_resources_server import BaseVerifyRequest, SimpleResourcesServer, tool
from nemo_gym.compute.pool import Compute
from nemo_gym.testing import client_for, example_row, says

TIMEOUT_S = 10.0


class Plain(SimpleResourcesServer):
    @tool
    def find(self, name: str) -> str:
        """Find a name."""
        return next(each for each in ("a", "b") if each == name)

    def verify(self, body: BaseVerifyRequest) -> float:  # type: ignore[override]
        return next(iter(list[float]()))


class Coroutines(SimpleResourcesServer):
    @tool
    async def find(self, name: str) -> str:
        """Find a name."""
        return next(each for each in ("a", "b") if each == name)

    async def verify(self, body: BaseVerifyRequest, compute: Compute) -> float:
        return await compute.run(first_number, list[float](), timeout_s=TIMEOUT_S)


class FastAPIStyle(SimpleResourcesServer):
    @tool
    def find(self, name: str) -> str:
        """Find a name."""
        return first_name([name])

    def verify(self, body: BaseVerifyRequest, index: Annotated[int, Query()] = 0) -> float:  # type: ignore[override]
        return next(iter(list[float]()))


def first_number(numbers: list[float]) -> float:
    return next(iter(numbers))


def first_name(names: list[str]) -> str:
    return next(name for name in names if not name)


@pytest.mark.parametrize("kind", [Plain, Coroutines, FastAPIStyle])
async def test_a_handler_that_raises_stop_iteration_fails_at_once(kind: type[SimpleResourcesServer]) -> None:
    async with client_for(kind) as client, asyncio.timeout(TIMEOUT_S):
        found = await client.post("/find", json={"name": "c"})
        verified = await client.post("/verify", json=example_row("hi", response=says("hello")))
    assert (found.status, verified.status) == (500, 500)
    assert b"StopIteration" in found.content()
    assert b"StopIteration" in verified.content()
