"""Tools of MCP servers, started with a command or reached by HTTP. A rollout has connections of its own, so what a
server keeps for a connection is the state of the rollout."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any
from weakref import WeakSet

from pydantic import BaseModel, Field, PrivateAttr

from nemo_gym import JsonObject
from nemo_gym.answers import (
    Declaration,
    final_declaration,
    is_negated,
    is_withdrawn,
    last_text,
    says_something,
    shown,
    visible,
)
from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseSeedSessionRequest,
    BaseVerifyRequest,
    SessionState,
    SimpleResourcesServer,
    ToolError,
    ToolName,
    any_tool,
)
from nemo_gym.common.exceptions import raise_first_error
from nemo_gym.errors import ConfigError, RolloutError
from nemo_gym.interop.mcp_connection import McpConnection, McpServer

_NUMBER = re.compile(r"(?<![\w.])[-\u2212]?\d{1,30}(?:,\d{3})*(?:\.\d{1,30})?%?(?!\w)")
_PLAIN_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_SENTENCE_END = re.compile(r"[.!?][\s*_`\"')]+|\n+|[.!?]$")
_ITEM_END = re.compile(r"[.!?,;/|]\s+|\n+|[/|;]")
_DECLARING = re.compile(r"\b(?:is|are|was|were|be|shows?|says?|said|returned|gives?)\b|[:=]")
_MARKS = re.compile(r"(?:[\W_]|\b(?:the|an?|now|in|at|called|named)\b)*", re.IGNORECASE)
"""Matches what may stand between an answer and the words that declare it."""
_TWO_LETTERS = re.compile(r"[^\W\d_]{2}")
MAX_SHORT = 3
"""The words of a short item, and how many of them are a list."""
_OR_BEFORE = re.compile(r"(?:\bor|[/|])[\s*_`]*$", re.IGNORECASE)
_OR_AFTER = re.compile(r"[\s,*_`]*(?:\bor\b|[/|])", re.IGNORECASE)


class McpToolsConfig(BaseResourcesServerConfig, extra="forbid"):
    mcp_servers: dict[str, McpServer] = Field(min_length=1)
    tool_timeout_s: float = Field(default=300.0, gt=0)
    """Time limit for connecting, and for one call of a tool."""


class McpSession(SessionState):
    connections: dict[str, McpConnection] = Field(default_factory=dict)

    def close(self) -> None:
        for connection in self.connections.values():
            connection.close()


class ToolCheck(BaseModel):
    """A call after the rollout, in its session, and the output that it must have."""

    tool: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    output: str


class McpToolsVerifyRequest(BaseVerifyRequest):
    expected_answer: str | None = None
    checks: list[ToolCheck] = Field(default_factory=list)


class McpToolsSeedRequest(BaseSeedSessionRequest):
    checks: list[ToolCheck] = Field(default_factory=list)


class McpToolsResourcesServer(SimpleResourcesServer):
    EXTRA = "mcp"

    config: McpToolsConfig

    given_history = "replay"

    _tools: dict[str, tuple[str, JsonObject]] = PrivateAttr(default_factory=dict)
    """The server of each tool, and how a row lists it."""
    _tasks: asyncio.TaskGroup = PrivateAttr()
    _connections: WeakSet[McpConnection] = PrivateAttr(default_factory=WeakSet)

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        with raise_first_error():
            async with asyncio.TaskGroup() as self._tasks:
                try:
                    for name in self.config.mcp_servers:
                        await self._list(name)
                    yield
                finally:
                    for connection in list(self._connections):
                        connection.close()

    async def _list(self, server: str) -> None:
        connection = self._connect(server)
        for tool in (await (await connection.client()).list_tools()).tools:
            if tool.name in self._tools:
                raise ConfigError(f"The MCP servers {self._tools[tool.name][0]} and {server} both have {tool.name!r}.")
            described = {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema}
            self._tools[tool.name] = (server, {"type": "function", **described, "strict": False})
        connection.close()

    async def _list_tools(self) -> JsonObject:
        """For rows that do not mention `tools`."""
        return {"tools": [described for _server, described in self._tools.values()]}

    def _connect(self, server: str) -> McpConnection:
        place, timeout_s = self.config.mcp_servers[server], self.config.tool_timeout_s
        connection = McpConnection(server, place, self._tasks, timeout_s=timeout_s)
        self._connections.add(connection)
        return connection

    @classmethod
    def check_row(cls, row: JsonObject) -> None:
        """Refuse a row that every reply would fit."""
        expected = row.get("expected_answer")
        if not (expected or row.get("checks")):
            raise ValueError("there is neither an expected_answer nor a check")
        if isinstance(expected, str) and expected and not says_something(visible(expected)):
            raise ValueError("expected_answer has no letter or digit")

    async def seed_session(self, body: McpToolsSeedRequest) -> None:
        missing = [each.tool for each in body.checks if each.tool not in self._tools]
        if missing:
            raise RolloutError("input", f"The row checks {missing[0]!r}, a tool that no MCP server has.")

    @any_tool
    async def call_tool(self, name: ToolName, body: dict[str, Any], session: McpSession) -> str:
        """Call a tool of the server that has it."""
        if name not in self._tools:
            raise RolloutError("input", f"No MCP server has a tool {str(name)!r}.", retryable=False)
        server = self._tools[name][0]
        if server not in session.connections:
            session.connections[server] = self._connect(server)
        return await session.connections[server].call(name, body)

    async def verify(self, body: McpToolsVerifyRequest, session: McpSession) -> float:
        """1.0 if the last message shows the expected answer, outside of thoughts, and all checks hold."""
        said = shown(last_text(body.response))
        if body.expected_answer and not gives(said, body.expected_answer):
            return 0.0
        try:
            outputs = [await self.call_tool(ToolName(each.tool), each.arguments, session) for each in body.checks]
        except ToolError:
            return 0.0
        return float(outputs == [each.output for each in body.checks])


def gives(text: str, answer: str) -> bool:
    """True if a text gives the answer and neither negates nor withdraws it.

    Of numbers the last one counts: "112", "-12", "12, then 13" and "12%" do not give 12, but "$12.00" does. Other
    answers are looked for as whole words, in their last place not one of several: at the beginning or end of a
    sentence, or behind a word such as "is"."""
    if _NUMBER.fullmatch(answer):
        found = [Declaration(*each.span(), each[0]) for each in _NUMBER.finditer(text)]
        last = final_declaration(text, found)
        return last is not None and _value(last.content) == _value(answer)
    before, after = (r"(?<!\w)" if _is_word(answer[0]) else ""), (r"(?!\w)" if _is_word(answer[-1]) else "")
    places = [found.span() for found in re.finditer(f"{before}{re.escape(answer)}{after}", text)]
    if not places:
        return False
    start, end = places[-1]
    if _is_in_list(text, start, end) or not _is_declared(text, start, end):
        return False
    if _OR_BEFORE.search(text, max(0, start - 20), start) or _OR_AFTER.match(text, end):
        return False
    return not (is_negated(text, start) or is_withdrawn(text, end, answer))


def _is_declared(text: str, start: int, end: int) -> bool:
    """True where only one answer of a sentence can be: at its beginning, its end, or behind its last "is" or colon.
    Whoever lists all that may be right has most of it elsewhere."""
    first = max((each.end() for each in _SENTENCE_END.finditer(text, 0, start)), default=0)
    following = _SENTENCE_END.search(text, end)
    last = following.start() if following else len(text)
    lead = text[first:start].strip().lower()
    if _TWO_LETTERS.search(lead) and lead in text[end:].lower():
        return False  # the same is said of another one
    declared = [each.end() for each in _DECLARING.finditer(text, first, last)]
    return any(_MARKS.fullmatch(text, *between) for between in ((first, start), (end, last))) or bool(
        declared and _MARKS.fullmatch(text, declared[-1], start)
    )


def _is_in_list(text: str, start: int, end: int) -> bool:
    """True if the answer is in a list, or a row of short sentences, of which none is longer than a few words."""
    before, after = _ITEM_END.split(text[:start]), _ITEM_END.split(text[end:])
    own = f"{before[-1]}{text[start:end]}{after[0]}"
    shorts = [_is_short(each) for each in (*before[:-1], own, *after[1:]) if says_something(each)]
    return len(shorts) >= MAX_SHORT and sum(shorts) >= MAX_SHORT and _is_short(own)


def _is_short(item: str) -> bool:
    return len(item.split()) <= MAX_SHORT


def _value(written: str) -> Decimal | str:
    """The number; what is not one, such as a percentage or several, as it is written."""
    bare = written.replace("\u2212", "-").replace(",", "")
    return Decimal(bare) if _PLAIN_NUMBER.fullmatch(bare) and ", " not in written else written


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"
