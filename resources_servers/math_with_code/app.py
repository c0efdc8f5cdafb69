"""Mathematical problems with a Python tool that keeps its variables. The code runs in a sandbox, one a rollout."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pydantic import BaseModel, Field, PrivateAttr

from nemo_gym import JsonObject
from nemo_gym.answers import message_texts, visible
from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    Endpoint,
    Score,
    SessionState,
    SimpleResourcesServer,
    tool,
)
from nemo_gym.compute import LONG_TEXT, Compute
from nemo_gym.sandbox import PythonResult, SandboxConfig, SandboxPool, SandboxProcess
from nemo_gym.sandbox.contract import time_limits
from nemo_gym.sandbox.local import compile_packages
from resources_servers.math_with_code.engine import Checked, check

PACKAGES = ("numpy", "scipy", "pandas")
NOT_EVALUATED = ("print", "import", "from", "def", "class", "if", "for", "while", "try", "with")
"""Code whose last line begins so has no result."""
CHECK_TIMEOUT_S = 10.0
"""CPU seconds to look for the answer in a very long reply."""

LIBRARIES = """
import types as _types

class _Library(_types.ModuleType):
    def __init__(self, name, aliases):
        super().__init__(name)
        self.__dict__["_aliases"] = aliases

    def __getattr__(self, attribute):
        import importlib
        module = importlib.import_module(self.__name__)
        globals().update(dict.fromkeys(self._aliases, module))
        return getattr(module, attribute)

numpy = np = _Library("numpy", ("numpy", "np"))
pandas = pd = _Library("pandas", ("pandas", "pd"))
scipy = _Library("scipy", ("scipy",))
del _types
"""
"""The names that every session begins with. The libraries take up to a second to import: only when they are used."""


class PythonExecutorResourcesServerConfig(BaseResourcesServerConfig, SandboxConfig, extra="forbid"):
    max_execution_time: int = Field(default=10, ge=1)
    """Seconds of CPU time that one piece of code may use, over all its processes."""

    warm_sessions: int = Field(default=2, ge=0)
    """Number of sessions that are started ahead."""


class ExecutePythonResponse(BaseModel):
    success: bool
    stdout: str = ""
    stderr: str = ""
    error_message: str | None = None
    result: str | None = None


class PythonMathVerifyRequest(BaseVerifyRequest):
    expected_result: str
    expected_code_contains: str = ""


class PythonSession(SessionState):
    """One rollout's Python process, from its first call to the end."""

    sandbox: SandboxProcess | None = None
    has_libraries: bool = False
    turn: asyncio.Lock = Field(default_factory=asyncio.Lock)

    def close(self) -> None:
        sandbox, self.sandbox, self.has_libraries = self.sandbox, None, False
        if sandbox is not None:
            sandbox.close()


class PythonExecutorResourcesServer(SimpleResourcesServer):
    config: PythonExecutorResourcesServerConfig

    given_history = "replay"

    _pool: SandboxPool = PrivateAttr()

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        provider = self.config.local_provider(
            self.server_client.global_config_dict,
            limits=time_limits(self.config.max_execution_time),
            packages=PACKAGES,
        )
        await asyncio.to_thread(compile_packages, PACKAGES)
        async with SandboxPool(provider, warm=self.config.warm_sessions) as self._pool:
            yield

    def endpoints(self) -> list[Endpoint]:
        return [*super().endpoints(), Endpoint("/end_session", self.end_session, cause="environment")]

    @tool
    async def execute_python(self, code: str, session: PythonSession) -> ExecutePythonResponse:
        """Execute Python code. Variables are kept. You have access to numpy, scipy and pandas."""
        async with session.turn:
            sandbox = await self._sandbox(session)
            done = await sandbox.python(code)
            session.has_libraries = not done.is_lost
        return _response(code, done)

    async def end_session(self, session: PythonSession) -> ExecutePythonResponse:
        """End the Python process. For harnesses: it is no tool, so the model is not offered it."""
        async with session.turn:
            session.close()
        return ExecutePythonResponse(success=True)

    @classmethod
    def check_row(cls, row: JsonObject) -> None:
        if not visible(row["expected_result"]).strip():
            raise ValueError("expected_result is blank")

    async def verify(self, body: PythonMathVerifyRequest, compute: Compute) -> Score:
        checked = await _checked(body, compute)
        return Score(float(checked.is_right), extracted_answer=checked.answer, accuracy=checked.is_right)

    async def _sandbox(self, session: PythonSession) -> SandboxProcess:
        if session.sandbox is None or not session.sandbox.is_alive:
            session.close()
            session.sandbox = await self._pool.take()
        if not session.has_libraries:
            await session.sandbox.python(LIBRARIES)
        return session.sandbox


def _response(code: str, done: PythonResult) -> ExecutePythonResponse:
    if done.limit in ("time", "cpu"):
        return ExecutePythonResponse(success=False, error_message="code timed-out")
    if done.error is not None:
        return ExecutePythonResponse(success=False, stderr=done.stderr, error_message=done.error)
    last_line = code.rstrip().rpartition("\n")[2].strip()
    result = None if last_line.startswith(NOT_EVALUATED) else done.result
    return ExecutePythonResponse(success=True, stdout=done.stdout, stderr=done.stderr, result=result)


async def _checked(body: PythonMathVerifyRequest, compute: Compute) -> Checked:
    """The answer and whether it is right. A very long reply is read outside the loop."""
    messages = ["".join(parts) for parts in message_texts(body.response)]
    if sum(map(len, messages)) <= LONG_TEXT:
        return check(messages, body.expected_result)
    nothing = Checked(None, is_right=False)
    return await compute.run(check, messages, body.expected_result, timeout_s=CHECK_TIMEOUT_S, on_limit=nothing)
