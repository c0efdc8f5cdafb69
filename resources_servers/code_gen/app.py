"""Competitive programming: the program that the model wrote, run in a sandbox against the row's tests."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from pydantic import BaseModel, Discriminator, Field, PrivateAttr, Tag

from nemo_gym.answers import joined_text
from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    Score,
    SimpleResourcesServer,
)
from nemo_gym.compute import Compute
from nemo_gym.sandbox import SandboxConfig, SandboxPool
from nemo_gym.sandbox.contract import time_limits
from resources_servers.code_gen.runner import (
    MEMORY_MB,
    PRELOAD,
    RunReport,
    UnitTests,
    extract_code,
    installed,
    run_tests,
)
from resources_servers.code_gen.test_code import TestCode, run_test_code


class CodeGenResourcesServerConfig(BaseResourcesServerConfig, SandboxConfig, extra="forbid"):
    num_processes: int = Field(default=8, ge=1)
    """Maximum number of programs that are tested at once. Others wait."""

    unit_test_timeout_secs: int = Field(default=10, ge=1)
    """Seconds of CPU time that a program may use for one test, over all its processes."""

    debug: bool = False
    """Not read; rows and configs of others have it."""

    warm_sandboxes: int = Field(default=2, ge=0)
    """Number of sandboxes that are started ahead."""


def _form_of(tests: Any) -> str:
    is_code = isinstance(tests, TestCode) or (isinstance(tests, dict) and "test_code" in tests)
    return "code" if is_code else "values"


class VerifierMetadata(BaseModel):
    unit_tests: Annotated[
        Annotated[UnitTests, Tag("values")] | Annotated[TestCode, Tag("code")], Discriminator(_form_of)
    ]


class CodeGenVerifyRequest(BaseVerifyRequest):
    verifier_metadata: VerifierMetadata


class CodeGenResourcesServer(SimpleResourcesServer):
    config: CodeGenResourcesServerConfig

    _pool: SandboxPool = PrivateAttr()
    _turns: asyncio.Semaphore = PrivateAttr()

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        provider = self.config.local_provider(
            self.server_client.global_config_dict,
            limits={"memory_mb": MEMORY_MB, **time_limits(self.config.unit_test_timeout_secs)},
            packages=installed("numpy"),
            preload=PRELOAD,
        )
        self._turns = asyncio.Semaphore(self.config.num_processes)
        async with SandboxPool(provider, warm=self.config.warm_sandboxes, session=False) as self._pool:
            yield

    async def verify(self, body: CodeGenVerifyRequest, compute: Compute) -> Score:
        """`result` has True for each test passed, then at most one code: -2 wrong, -3 late, -4 failed."""
        text = joined_text(body.response)
        code = extract_code(text)
        if code is None:
            return _score(0.0, extracted_model_output=text if text.strip() else None)
        started = time.monotonic()
        report = await self._report(code, body.verifier_metadata.unit_tests, compute)
        return _score(
            float(all(outcome is True for outcome in report.result)),
            extracted_model_output=text,
            extracted_model_code=code,
            result=report.result,
            metadata=report.metadata,
            unit_tests_time_taken=time.monotonic() - started,
        )

    async def _report(self, code: str, tests: UnitTests | TestCode, compute: Compute) -> RunReport:
        """Run a program in a sandbox, and again in another one if that sandbox ends.

        The machine may have ended the first. If the second, which did start, ends as well, the program broke both."""
        async with self._turns:
            report = await self._report_of_one_sandbox(code, tests, compute)
            return await self._report_of_one_sandbox(code, tests, compute) if report.is_sandbox_lost else report

    async def _report_of_one_sandbox(self, code: str, tests: UnitTests | TestCode, compute: Compute) -> RunReport:
        sandbox = await self._pool.take()
        try:
            if isinstance(tests, TestCode):
                return await run_test_code(sandbox, code, tests)
            return await run_tests(sandbox, code, tests, compute)
        finally:
            await asyncio.shield(self._pool.release(sandbox))


def _score(
    reward: float,
    *,
    extracted_model_output: str | None,
    extracted_model_code: str | None = None,
    result: list[bool | int] | None = None,
    metadata: dict[str, Any] | None = None,
    unit_tests_time_taken: float | None = None,
) -> Score:
    return Score(
        reward,
        extracted_model_output=extracted_model_output,
        extracted_model_code=extracted_model_code,
        result=result,
        metadata=metadata,
        unit_tests_time_taken=unit_tests_time_taken,
    )
