"""Scripts: lists of replies with conditions. The only I/O is reading the file."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from nemo_gym.common.paths import find
from nemo_gym.errors import ConfigError, RolloutError
from nemo_gym.llm_api.responses import (
    NeMoGymEasyInputMessage,
    NeMoGymFunctionCallOutput,
    NeMoGymMessage,
    NeMoGymResponseInputItem,
    NeMoGymResponseOutputMessage,
    NeMoGymResponseReasoningItem,
)

_GROUP_REFERENCE = re.compile(r"\\(\d)")


class ToolCall(BaseModel):
    """A tool call that a reply makes. Arguments given as a text are sent as they are, valid or not."""

    model_config = ConfigDict(extra="forbid")

    name: str
    arguments: dict[str, Any] | str = Field(default_factory=dict)


class Reply(BaseModel):
    """A reply and its conditions. The first reply whose conditions hold is given. Those without conditions are given
    in order over a conversation, and the last of them is repeated."""

    model_config = ConfigDict(extra="forbid")

    user: str | None = None
    """Only if this pattern is found in the last user message."""
    tool_output: str | None = None
    """Only if the conversation ends with a tool's answer in which this pattern is found."""
    turn: int | None = None
    """Only if the model has replied this many times since the last user message."""
    times: int | None = None
    """At most this many times in all."""

    say: str | None = None
    """A message. Here, in reasoning and in arguments, \\1 is the first group of the pattern, if it has groups."""
    think: str | None = None
    """Reasoning."""
    call: list[ToolCall] = Field(default_factory=list)
    """Tool calls."""
    incomplete: str | None = None
    """The reason why the reply was cut off, such as max_output_tokens."""

    latency_s: float | None = None
    """Latency of this reply, in place of the model's own."""
    status: int | None = None
    """Answer with this HTTP status and no reply."""
    retry_after_s: float | None = None
    """Ask for this pause along with the status."""
    garbage: str | None = None
    """Answer with this text in place of JSON."""

    @field_validator("user", "tool_output")
    @classmethod
    def _is_a_pattern(cls, pattern: str | None) -> str | None:
        try:
            re.compile(pattern or "")
        except re.error as error:
            raise ValueError(f"{pattern!r} is not a regular expression: {error}") from error
        return pattern

    @model_validator(mode="after")
    def _names_groups_there_are(self) -> Self:
        groups = next((found for found in map(_group_count, (self.tool_output, self.user)) if found), None)
        texts = [self.say or "", self.think or "", *(str(call.arguments) for call in self.call)]
        highest = max((int(number) for text in texts for number in _GROUP_REFERENCE.findall(text)), default=0)
        if groups is not None and highest > groups:
            raise ValueError(f"\\{highest} stands for a group of the pattern, which has only {groups}")
        return self

    @property
    def is_given_in_order(self) -> bool:
        return self.user is None and self.tool_output is None and self.turn is None and self.times is None


class _Turn(NamedTuple):
    """One item of a conversation."""

    role: str
    text: str
    opens_reply: bool = False
    """True if a new reply starts here, even right after another item of the model."""


@dataclass(frozen=True, slots=True)
class ScriptInput:
    """The parts of a conversation that conditions depend on."""

    user: str
    tool_output: str | None
    turn: int
    """Replies of the model since the last user message."""
    replies: int
    """Replies of the model in the whole conversation."""
    words: int

    @classmethod
    def of_responses(cls, items: Iterable[NeMoGymResponseInputItem]) -> Self:
        """From the items of a Responses request."""
        return cls._of([_turn_of(item) for item in items])

    @classmethod
    def of_chat(cls, messages: Iterable[dict[str, Any]]) -> Self:
        """From the messages of a Chat Completions request."""
        return cls._of([_Turn(message["role"], _text(message.get("content")), True) for message in messages])

    @classmethod
    def _of(cls, turns: list[_Turn]) -> Self:
        last_user = max((index for index, item in enumerate(turns) if item.role == "user"), default=-1)
        return cls(
            user=turns[last_user].text if last_user >= 0 else "",
            tool_output=turns[-1].text if turns and turns[-1].role == "tool" else None,
            turn=_count_replies(turns[last_user + 1 :]),
            replies=_count_replies(turns),
            words=sum(len(item.text.split()) for item in turns),
        )


def _count_replies(turns: list[_Turn]) -> int:
    return sum(
        item.role == "assistant" and (item.opens_reply or before.role != "assistant")
        for before, item in zip([_Turn("user", ""), *turns], turns, strict=False)
    )


class Script:
    """Finds the reply to a conversation."""

    def __init__(self, replies: Sequence[Reply]) -> None:
        self._replies = list(replies)
        self._served = [0] * len(self._replies)
        in_order = [index for index, reply in enumerate(self._replies) if reply.is_given_in_order]
        self._position = {index: position for position, index in enumerate(in_order)}

    @classmethod
    def read(cls, path: str) -> Self:
        """A JSONL file, one reply a line."""
        file = find(path, what="script")
        return cls(
            [
                _parsed(file, number, line)
                for number, line in enumerate(file.read_text(encoding="utf-8").split("\n"), 1)
                if line.strip()
            ]
        )

    def reply(self, conversation: ScriptInput) -> Reply:
        """The first reply whose conditions hold, with group references replaced. Counts its use."""
        for index, reply in enumerate(self._replies):
            if not self._may_be_given(index, reply, conversation):
                continue
            matches = _matches(reply, conversation)
            if matches is not None:
                self._served[index] += 1
                return _filled_in(reply, matches)
        raise RolloutError("model", f"The script has no reply to {conversation}.")

    def _may_be_given(self, index: int, reply: Reply, conversation: ScriptInput) -> bool:
        if reply.times is not None and self._served[index] >= reply.times:
            return False
        if index not in self._position:
            return reply.turn is None or reply.turn == conversation.turn
        position = self._position[index]
        is_last = position == len(self._position) - 1
        return conversation.replies == position or (is_last and conversation.replies > position)


def _matches(reply: Reply, conversation: ScriptInput) -> "list[re.Match[str]] | None":
    """Return the places where the patterns of a reply were found; None if one was not."""
    matches = []
    for pattern, text in ((reply.user, conversation.user), (reply.tool_output, conversation.tool_output)):
        if pattern is not None:
            found = re.search(pattern, text) if text is not None else None
            if found is None:
                return None
            matches.append(found)
    return matches


def _filled_in(reply: Reply, matches: "list[re.Match[str]]") -> Reply:
    match = next((match for match in reversed(matches) if match.re.groups), None)
    if match is None:
        return reply
    calls = [call.model_copy(update={"arguments": _expanded(call.arguments, match)}) for call in reply.call]
    return reply.model_copy(
        update={"say": _expanded(reply.say, match), "think": _expanded(reply.think, match), "call": calls}
    )


def _expanded(value: Any, match: "re.Match[str]") -> Any:
    if isinstance(value, str):
        return _GROUP_REFERENCE.sub(lambda reference: match[int(reference[1])] or "", value)
    if isinstance(value, dict):
        return {key: _expanded(item, match) for key, item in value.items()}
    return [_expanded(item, match) for item in value] if isinstance(value, list) else value


def _group_count(pattern: str | None) -> int:
    return re.compile(pattern or "").groups


def _parsed(file: Path, number: int, line: str) -> Reply:
    try:
        return Reply.model_validate_json(line)
    except ValidationError as error:
        found = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in found["loc"])
        raise ConfigError(f"{file}, line {number}: {place}: {found['msg']}. Found: {line[:200]}") from error


def _turn_of(item: NeMoGymResponseInputItem) -> _Turn:
    if isinstance(item, NeMoGymFunctionCallOutput):
        return _Turn("tool", _text(item.output))
    if isinstance(item, NeMoGymEasyInputMessage | NeMoGymMessage | NeMoGymResponseOutputMessage):
        return _Turn(item.role, _text(item.content))
    return _Turn("assistant", "", opens_reply=isinstance(item, NeMoGymResponseReasoningItem))


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    texts = (part.get("text") for part in content or ())
    return "".join(text for text in texts if isinstance(text, str))
