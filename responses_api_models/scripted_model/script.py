"""Scripts: lists of replies, each with the conditions under which it is given. No I/O but reading the file."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nemo_gym.errors import ConfigError, RolloutError
from nemo_gym.openai_types import (
    NeMoGymEasyInputMessage,
    NeMoGymFunctionCallOutput,
    NeMoGymMessage,
    NeMoGymResponseInputItem,
    NeMoGymResponseOutputMessage,
)
from nemo_gym.paths import find


class ToolCall(BaseModel):
    """A tool call that a reply makes. Arguments given as a text are sent as they are, valid or not."""

    model_config = ConfigDict(extra="forbid")

    name: str
    arguments: dict[str, Any] | str = Field(default_factory=dict)


class Reply(BaseModel):
    """What to say, and when. Without a condition, replies are given in turn, the last one from then on."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    user: str | None = None
    """Only if this pattern is found in the last user message."""
    tool_output: str | None = None
    """Only if the conversation ends with a tool's answer in which this pattern is found."""
    turn: int | None = None
    """Only if the model has spoken this many times since the last user message."""
    times: int | None = None
    """At most this many times in all."""

    say: str | None = None
    """A message. Here and in arguments, \\1 stands for the first group of the pattern that matched."""
    think: str | None = None
    """Reasoning."""
    call: list[ToolCall] = Field(default_factory=list)
    """Tool calls."""
    incomplete: str | None = None
    """The reason why the reply was cut off, such as max_output_tokens."""

    latency_s: float | None = None
    """How long the reply takes, instead of the model's own latency."""
    status: int | None = None
    """Answer with this HTTP status and no reply."""
    retry_after_s: float | None = None
    """Ask for this pause along with the status."""
    garbage: str | None = None
    """Answer with this text in place of JSON."""

    @property
    def is_unconditional(self) -> bool:
        return self.user is None and self.tool_output is None and self.turn is None


@dataclass(frozen=True, slots=True)
class Conversation:
    """As much of a conversation as a script looks at."""

    user: str
    tool_output: str | None
    turn: int
    words: int

    @classmethod
    def of_responses(cls, items: str | Sequence[NeMoGymResponseInputItem]) -> Self:
        """From the input of a Responses request."""
        if isinstance(items, str):
            return cls(user=items, tool_output=None, turn=0, words=len(items.split()))
        told = [_told(item) for item in items]
        return cls._of(told)

    @classmethod
    def of_chat(cls, messages: Iterable[dict[str, Any]]) -> Self:
        """From the messages of a Chat Completions request."""
        return cls._of([(message["role"], _text(message.get("content"))) for message in messages])

    @classmethod
    def _of(cls, told: list[tuple[str, str]]) -> Self:
        last_user = max((index for index, (role, _) in enumerate(told) if role == "user"), default=-1)
        since = [role for role, _ in told[last_user + 1 :]]
        turns = sum(
            role == "assistant" and before != "assistant"
            for before, role in zip(["user", *since], since, strict=False)
        )
        ends_with_tool = bool(told) and told[-1][0] == "tool"
        return cls(
            user=told[last_user][1] if last_user >= 0 else "",
            tool_output=told[-1][1] if ends_with_tool else None,
            turn=turns,
            words=sum(len(text.split()) for _, text in told),
        )


class Script:
    """Finds the reply to a conversation."""

    def __init__(self, replies: Sequence[Reply]) -> None:
        self._replies = list(replies)
        self._served = [0] * len(self._replies)
        in_turn = [index for index, reply in enumerate(self._replies) if reply.is_unconditional]
        self._position = {index: position for position, index in enumerate(in_turn)}

    @classmethod
    def read(cls, path: str) -> Self:
        """A JSONL file, one reply a line."""
        file = find(path, what="script")
        return cls(
            [_parsed(file, number, line) for number, line in enumerate(file.read_text().splitlines(), 1) if line]
        )

    def reply(self, conversation: Conversation) -> Reply:
        """The first reply whose conditions hold, filled in; its use is counted."""
        for index, reply in enumerate(self._replies):
            match = self._match(index, reply, conversation)
            if match is not None:
                self._served[index] += 1
                return _filled_in(reply, match)
        raise RolloutError("model", f"The script has no reply to {conversation}.")

    def _match(self, index: int, reply: Reply, conversation: Conversation) -> "re.Match[str] | None":
        if reply.times is not None and self._served[index] >= reply.times:
            return None
        if reply.turn is not None and reply.turn != conversation.turn:
            return None
        if index in self._position and not self._is_its_turn(index, conversation.turn):
            return None
        found = re.search("", "")
        if reply.user is not None:
            found = re.search(reply.user, conversation.user)
        if found is not None and reply.tool_output is not None:
            found = (
                re.search(reply.tool_output, conversation.tool_output)
                if conversation.tool_output is not None
                else None
            )
        return found

    def _is_its_turn(self, index: int, turn: int) -> bool:
        position = self._position[index]
        is_last = position == len(self._position) - 1
        return self._replies[index].times is not None or turn == position or (is_last and turn > position)


def _filled_in(reply: Reply, match: "re.Match[str]") -> Reply:
    if match.re.groups == 0:
        return reply
    calls = [call.model_copy(update={"arguments": _expanded(call.arguments, match)}) for call in reply.call]
    return reply.model_copy(
        update={"say": _expanded(reply.say, match), "think": _expanded(reply.think, match), "call": calls}
    )


def _expanded(value: Any, match: "re.Match[str]") -> Any:
    if isinstance(value, str):
        return match.expand(value)
    if isinstance(value, dict):
        return {key: _expanded(item, match) for key, item in value.items()}
    return [_expanded(item, match) for item in value] if isinstance(value, list) else value


def _parsed(file: Path, number: int, line: str) -> Reply:
    try:
        return Reply.model_validate_json(line)
    except ValidationError as error:
        found = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in found["loc"])
        raise ConfigError(f"{file}, line {number}: {place}: {found['msg']}. Found: {line[:200]}") from error


def _told(item: NeMoGymResponseInputItem) -> tuple[str, str]:
    if isinstance(item, NeMoGymFunctionCallOutput):
        return "tool", _text(item.output)
    if isinstance(item, NeMoGymEasyInputMessage | NeMoGymMessage | NeMoGymResponseOutputMessage):
        return item.role, _text(item.content)
    return "assistant", ""


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or "" for part in content or ())
