"""Runs a command-line harness for each rollout. It finds our model under a path of its own and the environment's tools
by MCP, and all its model calls are the rollout's trace."""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

from pydantic import AfterValidator, Field, PrivateAttr, TypeAdapter, ValidationError

from nemo_gym import CookieJar, JsonObject, NeMoGymResponse
from nemo_gym.base_responses_api_agent import AgentRunRequest, Conversation, ToolCallingAgent, ToolCallingAgentConfig
from nemo_gym.common.paths import find
from nemo_gym.errors import RolloutError
from nemo_gym.gateway.mcp import McpToolServer, ToolResult, session_tools
from nemo_gym.gateway.model_gateway import ModelGateway
from nemo_gym.interop.harness_calls import HarnessCalls, HarnessTrace, sampling_of
from nemo_gym.participants import HARNESS, message_text
from nemo_gym.sandbox import resolve_provider_config
from responses_api_agents.command_agent.commands import (
    CommandResult,
    check_arguments,
    check_path,
    check_provider,
    opened_workspace,
)

PROMPT_FILE = ".nemo_gym/prompt.txt"
WorkspacePath = Annotated[str, AfterValidator(check_path)]
_FILES = TypeAdapter(dict[WorkspacePath, str])
_PLACEHOLDER = re.compile(r"\{[a-z_]+\}")
DEFAULT_ENV = {
    "OPENAI_BASE_URL": "{base_url}",
    "OPENAI_API_BASE": "{base_url}",
    "OPENAI_API_KEY": "none",
    "ANTHROPIC_BASE_URL": "{root_url}",
    "ANTHROPIC_API_KEY": "none",
    "NEMO_GYM_MCP_URL": "{mcp_url}",
    "NEMO_GYM_MODEL": "{model}",
}
"""Environment variables that most harnesses read. The secret is the path in the URLs, so the keys may be any text."""


class CommandAgentConfig(ToolCallingAgentConfig):
    """The harness, its model and its environment."""

    command: list[str] = Field(min_length=1)
    """The program and its arguments. {prompt}, {prompt_file}, {instructions}, {base_url}, {root_url}, {mcp_url},
    {model} and {workdir} are replaced."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables of the harness, with the same placeholders. Of ours it inherits PATH, LANG and TZ."""
    files: dict[WorkspacePath, str] = Field(default_factory=dict)
    """Files in its work folder, path to text, with the same placeholders. A row may bring more in its `files`."""
    copied_files: dict[WorkspacePath, str] = Field(default_factory=dict)
    """More of them: path in the work folder to the path of a file, which is copied as it is."""
    keep_files: list[WorkspacePath] = Field(default_factory=list)
    """Files of the work folder whose text is recorded when the harness has ended."""
    model: str = "policy"
    """The name of the model that the harness gets."""
    sandbox_provider: str | dict[str, Any] | None
    """Run the harness in a sandbox: `{provider: options}`, or the name of a top-level block with that. Null is a
    decision of yours, too: then the harness, and all that it runs, is an ordinary process of this machine."""
    command_timeout_s: float = Field(default=1800.0, gt=0)
    concurrency: int = Field(default=8, ge=1)
    """Maximum number of harnesses that run at once. Other rollouts wait."""


class CommandAgent(ToolCallingAgent):
    config: CommandAgentConfig

    _gateway: ModelGateway = PrivateAttr()
    _socket: Path | None = PrivateAttr(default=None)
    _provider: dict[str, Any] | None = PrivateAttr(default=None)
    _turns: asyncio.Semaphore = PrivateAttr()
    _copied: dict[str, str] = PrivateAttr()

    def model_post_init(self, _context: Any, /) -> None:
        self._turns = asyncio.Semaphore(self.config.concurrency)
        self._copied = {name: find(path).read_text() for name, path in self.config.copied_files.items()}

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """The gateway is open as long as the server is."""
        wanted = self.config.sandbox_provider
        if wanted is not None:
            self._provider = resolve_provider_config(wanted, self.server_client.global_config_dict)
            check_provider(self._provider)
        self._gateway = ModelGateway(self.core())
        with TemporaryDirectory(prefix="nemo-gym-gateway-") as folder:
            async with self._gateway.serving(), self._gateway.socket(Path(folder)) as self._socket:
                yield

    async def converse(self, body: AgentRunRequest, jar: CookieJar) -> NeMoGymResponse:
        """One run of the harness, from its start to its end."""
        run = HarnessRun(self, body, jar)
        async with self._turns:
            result = await self._play(run)
        run.raise_failure(result)
        harness = {**asdict(result), "tool_calls": run.tool_calls, "request": run.model.trace.request()}
        ended_by = "max_steps" if run.model.is_out_of_steps else HARNESS
        return run.model.trace.response(ended_by=ended_by, harness=harness)

    async def _play(self, run: "HarnessRun") -> CommandResult:
        config, gateway = self.config, self._gateway
        tools = McpToolServer(config.resources_server.name, offered_tools(run.body), run.call_tool)
        async with opened_workspace(self._provider, gateway_port=gateway.port, gateway_socket=self._socket) as space:
            with gateway.opened(
                run.model.chat_completions, run.model.responses, model=config.model, tools=tools
            ) as path:
                values = self._placeholders(run.body, gateway.url_of(path, port=space.port), space.path)
                filled = {name: fill_in(text, values) for name, text in config.files.items()}
                prompt = {PROMPT_FILE: values["{prompt}"]}
                await space.write({**filled, **self._copied, **prompt, **_row_files(run.body)})
                env = {name: fill_in(text, values) for name, text in {**DEFAULT_ENV, **config.env}.items()}
                command = [fill_in(word, values) for word in config.command]
                check_arguments([*command, *env.values()])
                return await space.run(command, env, timeout_s=config.command_timeout_s, keep=config.keep_files)

    def _placeholders(self, body: AgentRunRequest, url: str, workdir: str) -> dict[str, str]:
        conversation = Conversation.of("", body.responses_create_params)
        by_user = [item for item in conversation.given if getattr(item, "role", None) == "user"]
        others = [item for item in conversation.given if getattr(item, "role", None) in ("system", "developer")]
        return {
            "{prompt}": message_text(by_user),
            "{prompt_file}": f"{workdir}/{PROMPT_FILE}",
            "{instructions}": message_text(others),
            "{base_url}": f"{url}/v1",
            "{root_url}": url,
            "{mcp_url}": f"{url}/mcp",
            "{model}": self.config.model,
            "{workdir}": workdir,
        }


class HarnessRun:
    """The calls that one harness makes to its model and its tools."""

    def __init__(self, agent: CommandAgent, body: AgentRunRequest, jar: CookieJar) -> None:
        self.body, self._agent = body, agent
        self.tool_calls: list[JsonObject] = []
        self._tool_error: RolloutError | None = None
        config, client = agent.config, agent.server_client
        self._turn: AbstractAsyncContextManager[None] = (
            nullcontext() if config.concurrent_tool_calls else asyncio.Lock()
        )
        self.model = HarnessCalls(
            client,
            config.model_server.name,
            jar,
            timeout_s=config.model_timeout_s,
            max_steps=config.max_steps,
            sampling=sampling_of(body.responses_create_params),
            trace=HarnessTrace(
                environment_tools=tuple(str(tool["name"]) for tool in offered_tools(body)),
                environment_calls=self.tool_calls,
            ),
        )
        self._call_tool = session_tools(client, config.resources_server.name, jar, timeout_s=config.tool_timeout_s)

    def raise_failure(self, result: CommandResult) -> None:
        """Raise unless the rollout can be scored as it stands."""
        if self._tool_error is not None:
            raise self._tool_error
        self.model.raise_model_error()
        if not self.model.trace.calls:
            command, said = self._agent.config.command[0], (result.stderr or result.stdout)[-1000:].strip()
            found = f"{command} ended with code {result.return_code} and never called the model: {said or 'no output'}"
            raise RolloutError("environment", found, server=self._agent.config.name)

    async def call_tool(self, name: str, arguments: bytes) -> ToolResult:
        """Calls that a harness makes at the same time run in the order in which they arrive, unless
        `concurrent_tool_calls` is set."""
        async with self._turn:
            if self._tool_error is not None:
                raise self._tool_error
            called: JsonObject = {"name": name, "arguments": arguments.decode(), "output": None}
            self.tool_calls.append(called)  # at once: a call that its client gives up may have had its effect
            try:
                result = await self._call_tool(name, arguments)
            except RolloutError as error:
                self._tool_error = error
                raise
            called["output"] = result.text
            return result


def offered_tools(body: AgentRunRequest) -> list[JsonObject]:
    """The tools that a row offers."""
    return [dict(tool) for tool in body.responses_create_params.tools]


def fill_in(text: str, values: Mapping[str, str]) -> str:
    """The text with placeholders replaced, in one pass: what a row says is never taken for a placeholder."""
    return _PLACEHOLDER.sub(lambda found: values.get(found[0], found[0]), text)


def _row_files(body: AgentRunRequest) -> dict[str, str]:
    try:
        return _FILES.validate_python((body.model_extra or {}).get("files") or {})
    except ValidationError as error:
        raise RolloutError("input", f"The row's `files` are not valid: {error}") from error
