"""Words to token ids and back, and how a conversation looks to the model.

`<user> add 3 . <model> + 3 <end> <tool> success true <model> . <end>`: what follows `<model>` up to `<end>` is the
model's own. A reply `+` and digits is a tool call, any other reply is a message.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nemo_gym import JsonObject

PAD, UNKNOWN, USER, TOOL, MODEL, END, CALL = "<pad>", "<unknown>", "<user>", "<tool>", "<model>", "<end>", "+"
WORDS = (
    *(PAD, UNKNOWN, USER, TOOL, MODEL, END, CALL),
    *("-", ",", ".", "?", *"0123456789"),
    *("add", "and", "count", "counter", "false", "how", "is", "me", "much", "now", "on", "please", "read", "says"),
    *("success", "tell", "the", "then", "to", "true", "what"),
)
ID_OF = {word: number for number, word in enumerate(WORDS)}
ROLES = {"tool": TOOL, "assistant": MODEL}
_WORD = re.compile(r"[a-z]+|[0-9]|[-+,.?]")


def encode_text(text: str) -> list[int]:
    return [ID_OF.get(word, ID_OF[UNKNOWN]) for word in _WORD.findall(text.lower())]


def encode_messages(messages: Iterable[Mapping[str, Any]]) -> list[int]:
    """The prompt, up to the place where the reply begins. A message with token ids is continued from those."""
    ids: list[int] = []
    for message in messages:
        if message.get("generation_token_ids") is not None:
            ids = [*message["prompt_token_ids"], *message["generation_token_ids"]]
            continue
        ids += [ID_OF[ROLES.get(message["role"], USER)], *encode_text(_text(message))]
        if message["role"] == "assistant":
            ids.append(ID_OF[END])
    return [*ids, ID_OF[MODEL]]


def decode_reply(ids: Sequence[int], tools: Iterable[Mapping[str, Any]]) -> JsonObject:
    """The assistant's message that sampled tokens are."""
    words = [WORDS[token] for token in ids if token != ID_OF[END]]
    name = next(filter(None, map(_number_parameter, tools)), None)
    has_ended = bool(ids) and ids[-1] == ID_OF[END]
    if name is None or not has_ended or words[:1] != [CALL] or not all(word.isdigit() for word in words[1:] or [""]):
        return {"role": "assistant", "content": " ".join(words)}
    function, parameter = name
    arguments = f'{{"{parameter}": {int("".join(words[1:]))}}}'
    call = {"id": "", "type": "function", "function": {"name": function, "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def _number_parameter(tool: Mapping[str, Any]) -> tuple[str, str] | None:
    """The name of the tool and of its only parameter, if that is a whole number."""
    properties = (tool["function"].get("parameters") or {}).get("properties") or {}
    is_number = [described.get("type") == "integer" for described in properties.values()]
    return (tool["function"]["name"], next(iter(properties))) if is_number == [True] else None


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else " ".join(str(part.get("text") or "") for part in content)
