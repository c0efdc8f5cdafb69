"""Shell scripts that the model writes, run in a sandbox against public and private tests."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pydantic import Field, PrivateAttr

from nemo_gym import JsonObject
from nemo_gym.answers import last_text, without_thinking
from nemo_gym.base_resources_server import BaseResourcesServerConfig, BaseVerifyRequest, Score, SimpleResourcesServer
from nemo_gym.episodes import import_extra
from nemo_gym.sandbox import SandboxConfig, SandboxPool
from nemo_gym.sandbox.contract import time_limits
from resources_servers.bash_tasks.checks import check, script_in


class BashTasksConfig(BaseResourcesServerConfig, SandboxConfig, extra="forbid"):
    num_processes: int = Field(default=4, ge=1)
    """Maximum number of scripts that are tested at once. Others wait."""

    test_timeout_s: int = Field(default=30, ge=1)
    """Seconds of CPU time for the tests of one file."""

    warm_sandboxes: int = Field(default=1, ge=0)
    """Number of sandboxes that are started ahead."""


class BashTasksVerifyRequest(BaseVerifyRequest):
    tests: list[str] = Field(min_length=1)
    """Files of pytest tests that start `./solution.sh`."""


class BashTasksResourcesServer(SimpleResourcesServer):
    EXTRA = "bash-tasks"
    config: BashTasksConfig

    _pool: SandboxPool = PrivateAttr()
    _turns: asyncio.Semaphore = PrivateAttr()

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        import_extra("pytest", extra=self.EXTRA)
        provider = self.config.local_provider(
            self.server_client.global_config_dict,
            limits=time_limits(self.config.test_timeout_s),
            packages=("pytest",),
            preload=("pytest",),
        )
        self._turns = asyncio.Semaphore(self.config.num_processes)
        async with SandboxPool(provider, warm=self.config.warm_sandboxes, session=False) as self._pool:
            yield

    @classmethod
    def check_row(cls, row: JsonObject) -> None:
        """Refuse tests that cannot be run, or that do not start the script."""
        for number, tests in enumerate(row["tests"]):
            try:
                compile(tests, "<tests>", "exec", dont_inherit=True)
            except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
                raise ValueError(f"tests[{number}] is not valid Python: {error}") from error
            if "solution.sh" not in tests or "def test_" not in tests:
                raise ValueError(f"tests[{number}] has no test that starts solution.sh")

    async def verify(self, body: BashTasksVerifyRequest) -> Score:
        """`passed` says which of the test files passed; all of them must."""
        script = script_in(without_thinking(last_text(body.response)))
        if script is None:
            return Score(0.0, passed=[])
        async with self._turns:
            found = [await self._checked(script, tests) for tests in body.tests]
        return Score(float(all(found)), passed=found)

    async def _checked(self, script: str, tests: str) -> bool:
        """Each file of tests gets a sandbox of its own."""
        sandbox = await self._pool.take()
        try:
            return await check(sandbox, script, tests)
        finally:
            await asyncio.shield(self._pool.release(sandbox))


if __name__ == "__main__":
    BashTasksResourcesServer.run_webserver()
