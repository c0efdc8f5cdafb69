"""Environments for other rollout loops: served in a thread of this process, one step at a time."""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar
from uuid import uuid4

import orjson
from omegaconf import OmegaConf

from nemo_gym.base_responses_api_agent import AgentRunRequest
from nemo_gym.client.server_client import CookieJar, ServerClient, ServerReply, base_url
from nemo_gym.common.paths import find
from nemo_gym.config.loading import load_config, server_instances
from nemo_gym.config.validation import validate
from nemo_gym.data.records import read_records
from nemo_gym.errors import Cause, ConfigError, GymError, MissingPathError, RolloutError
from nemo_gym.gateway.mcp import ToolResult, session_tools
from nemo_gym.llm_api.base import JsonObject, content_text
from nemo_gym.runtime.stack import ServerSpec, Stack, StackSpec
from nemo_gym.server.tools import no_such_tool, offered_tools, with_tools
from nemo_gym.server.uvicorn_runner import bind, serving

T = TypeVar("T")
LOOPBACK = "127.0.0.1"
_POLICY = "policy_model"
_NO_POLICY = {"responses_api_models": {"scripted_model": {"entrypoint": "app.py", "replies": [{"say": ""}]}}}
"""Placeholder for the policy that agents of a config refer to. Here the policy is the caller, and agents are not
started."""


class EnvironmentHost:
    """The environment of a config, with the judges and other models that it calls. Close it, or use `with`."""

    def __init__(
        self, *config_paths: str | Path, environment: str | None = None, serves_http: bool = False, **settings: Any
    ) -> None:
        given = {"config_paths": [str(path) for path in config_paths], _POLICY: _NO_POLICY, **settings}
        config = load_config(initial=given, fill_ports=False)
        servers = server_instances(config)
        self.name = _environment(servers, environment)
        self._datasets = [each["jsonl_fpath"] for server in servers for each in server.config.get("datasets") or ()]
        held = [server for server in servers if server.server_type != "responses_api_agents"]
        plain: Any = OmegaConf.to_container(config, resolve=True)
        self._spec = StackSpec([server for server in held if server.name != _POLICY or _POLICY in settings], plain)
        self._serves_http = serves_http
        self.url: str | None = None
        """URL of the environment on loopback, with `serves_http`."""
        self._started: Future[ServerClient] = Future()
        self._loop, self._stop = asyncio.new_event_loop(), asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=f"nemo_gym {self.name}", daemon=True)
        self._thread.start()
        self.client = self._started.result()
        try:
            self.tools: list[JsonObject] = self.call("/tool_schemas", {}, CookieJar())["tools"]
        except BaseException:
            self.close()
            raise

    def rows(self, path: str | None = None) -> list[JsonObject]:
        """Return the rows of a JSONL file; by default, of the first dataset of the config that exists."""
        for name in self._datasets if path is None else [path]:
            try:
                rows = list(read_records(find(name, what="dataset")))
            except MissingPathError:
                if path is not None:
                    raise
                continue
            if not rows:
                raise ConfigError(f"{name} is empty, expected one row per line.")
            return rows
        named = ", ".join(self._datasets) or "none"
        raise ConfigError(f"No dataset in the configuration of {self.name} exists ({named}): pass rows or a dataset.")

    def call(
        self, path: str, body: Any, jar: CookieJar, *, cause: Cause = "environment", ends_session: bool = False
    ) -> JsonObject:
        """POST to the environment. A failure raises RolloutError."""
        asked = self.client.call(
            self.name, path, body, answer=ServerReply, cause=cause, jar=jar, ends_session=ends_session
        )
        answer: JsonObject = orjson.loads(self.wait(asked).content())
        return answer

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the environment's thread and return its result. It is cancelled if waiting is
        interrupted."""
        if not self._thread.is_alive():
            work.close()
            raise GymError(f"The environment {self.name} is closed. Start it again for more episodes.")
        running = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return running.result()
        except CancelledError:
            raise GymError(f"The environment {self.name} was closed during a call.") from None
        finally:
            running.cancel()

    def close(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        try:
            async with Stack(self._spec) as stack, self._listening(stack):
                self._started.set_result(stack.client)
                await self._stop.wait()
        except BaseException as error:
            if self._started.done():
                raise
            self._started.set_exception(error)

    @asynccontextmanager
    async def _listening(self, stack: Stack) -> AsyncIterator[None]:
        if not self._serves_http:
            yield
            return
        with bind(LOOPBACK, 0) as listening:
            port = listening.getsockname()[1]
            async with serving({port: stack.apps[self.name]}, [listening]):
                self.url = base_url(LOOPBACK, port)
                yield


class HostedEpisode:
    """One rollout of a row, driven by the caller: its messages and tool calls go in, the environment's replies come
    out."""

    def __init__(self, host: EnvironmentHost, row: JsonObject) -> None:
        self.host, self._jar = host, CookieJar()
        self.row = with_tools(check_row(row), host.tools)
        listed = self.row["responses_create_params"].get("tools") or ()
        self.tools: list[JsonObject] = [tool for tool in listed if tool.get("name") in offered_tools(listed)]
        self.output: list[JsonObject] = []
        self._turn_start, self._turns = 0, 0
        self._failure: RolloutError | None = None
        self._call_tool = session_tools(host.client, host.name, self._jar)
        with self._remembering_failure():
            host.call("/seed_session", self.row, self._jar)

    @property
    def messages(self) -> list[JsonObject]:
        """The prompt of the row, as messages."""
        given = self.row["responses_create_params"]["input"]
        return [{"role": "user", "content": given}] if isinstance(given, str) else list(given)

    def open(self) -> str | None:
        """Return the environment's first message; None if the row ends with a user message."""
        messages = self.messages
        return None if messages and messages[-1].get("role") == "user" else self._next_message()

    def call_tool(self, name: str, arguments: JsonObject) -> ToolResult:
        """Call a tool that the row offers. Errors of the tool are results for the policy. A failure of the environment
        raises RolloutError, and then the episode has no score."""
        call_id = f"call_{uuid4().hex}"
        text = json.dumps(arguments)  # unlike orjson, accepts long integers and lone surrogates
        self.output.append({"type": "function_call", "name": name, "arguments": text, "call_id": call_id})
        offered = offered_tools(self.tools)
        if name in offered:
            with self._remembering_failure():
                result = self.host.wait(self._call_tool(name, text.encode()))
        else:
            result = ToolResult(no_such_tool(name, offered), is_error=True)
        self.output.append({"type": "function_call_output", "call_id": call_id, "output": result.text})
        return result

    def say(self, text: str) -> str | None:
        """Send a message of the policy and return the environment's reply; None if the conversation is over."""
        self.add_message(text)
        self._turns += 1
        return self._next_message()

    def add_message(self, text: str) -> None:
        content = [{"type": "output_text", "text": text.encode(errors="replace").decode(), "annotations": []}]
        self.output.append({"type": "message", "id": f"msg_{uuid4().hex}", "role": "assistant", "content": content})

    def score(self, output: list[JsonObject] | None = None) -> JsonObject:
        """Verify the episode, end it, and return the scored record. `output` replaces the recorded output items."""
        body = {**self.row, "response": self._response(self.output if output is None else output)}
        with self._remembering_failure():
            return self.host.call("/verify", body, self._jar, cause="verifier", ends_session=True)

    def close(self) -> None:
        """End the episode without a score."""
        if self._jar:
            self.host.wait(self._release())

    async def _release(self) -> None:
        for cookie in list(self._jar):
            await self.host.client.release(cookie, self._jar.pop(cookie))

    @contextmanager
    def _remembering_failure(self) -> Iterator[None]:
        """End the episode if the environment fails. Later calls raise the same error."""
        if self._failure is not None:
            raise self._failure
        try:
            yield
        except RolloutError as error:
            self._failure = error
            self.close()
            raise

    def _next_message(self) -> str | None:
        new_items = self.output[self._turn_start :]
        body = {**self.row, "response": self._response(new_items), "turn": self._turns}
        with self._remembering_failure():
            asked = self.host.client.send(self.host.name, "/next_message", body, cause="environment", jar=self._jar)
            reply = self.host.wait(asked)
            if reply.status == 404:
                return None  # it has no conversation
            if reply.status >= 400:
                raise RolloutError("environment", reply.text[:1000], server=self.host.name)
        message = orjson.loads(reply.content())["message"]
        if message is None:
            return None
        text = content_text(message["content"])
        self.output.append({"type": "message", "role": "user", "content": text})
        self._turn_start = len(self.output)
        return text

    def _response(self, output: list[JsonObject]) -> JsonObject:
        about = {"id": f"resp_{uuid4().hex}", "created_at": time.time(), "model": "outside", "object": "response"}
        return {**about, "output": output, "tools": [], "tool_choice": "auto", "parallel_tool_calls": True}


def message_texts(messages: list[JsonObject]) -> Iterator[str]:
    """Yield the texts of messages. Items without content are skipped."""
    return (content_text(message["content"]) for message in messages if message.get("content"))


def check_row(row: JsonObject, *, what: str = "The row") -> JsonObject:
    """Return the row. Raises an error if it is not valid for an agent."""
    validate(AgentRunRequest, row, what=what)
    return row


def _environment(servers: list[ServerSpec], wanted: str | None) -> str:
    names = [server.name for server in servers if server.server_type == "resources_servers"]
    if wanted in names or (wanted is None and len(names) == 1):
        return wanted or names[0]
    asked = "one environment" if wanted is None else f"the environment '{wanted}'"
    raise ConfigError(
        f"Expected {asked}, but the config has {', '.join(names) or 'none'}. Pass a config file with a "
        "`resources_servers` block; if it has several, choose one with environment=<name>."
    )
