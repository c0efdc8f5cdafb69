"""Tool calls for a model whose chat template does not support tools: described in the system message, called as JSON,
constrained to their schemas by a grammar.

Where tools are offered, a reply begins with a decision: `{"tool": "<name>", "arguments": {...}}`, or `{"tool": null}`
and then the answer. Its first characters, `PREFILL`, are part of the prompt. `written` restores a message exactly
as the model wrote it, so that the tokens of a conversation stay valid from turn to turn.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from nemo_gym import JsonObject
from nemo_gym.llm_api.responses_chat import UnsupportedError

PREFILL = '{"tool":'
_ANSWERS = f"{PREFILL} null}}\n\n"
_ARGUMENTS = ', "arguments": '
_READ = json.JSONDecoder().raw_decode

_HOW_TO = """\
You have access to these tools:
{tools}

To use a tool, reply {{"tool": "<name>", "arguments": {{...}}}}. \
To answer the user, reply {{"tool": null}} and then your answer."""

_RESULT = 'Result: {}\n\nTo answer: {{"tool": null}}'
"""Repeats how to answer: otherwise a model of 135 million parameters calls the tool again."""

_COMPACT = {"lenient": True, "whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""Options of schemas in the grammar: ignore unknown keywords, allow no optional white space."""


@dataclass(frozen=True, slots=True)
class Offer:
    """The replies that a request allows."""

    tools: Sequence[JsonObject] = ()
    """All tools of the request."""
    allowed: Sequence[JsonObject] = ()
    """The tools that may be called."""
    may_answer: bool = True
    several_calls: bool = False
    answer_schema: JsonObject | None = None


class ParsedReply(NamedTuple):
    content: str | None
    calls: list[JsonObject]


def offer_of(params: Mapping[str, Any]) -> Offer:
    """Tools that a chat request allows."""
    tools = [tool["function"] for tool in params.get("tools") or ()]
    names, must_call = _choice(params.get("tool_choice") or "auto", [tool["name"] for tool in tools])
    allowed = [tool for tool in tools if tool["name"] in names]
    return Offer(
        tools=tools,
        allowed=allowed,
        may_answer=not (allowed and must_call),
        several_calls=params.get("parallel_tool_calls") is True,
        answer_schema=_answer_schema(params.get("response_format") or {}),
    )


def _choice(choice: Any, names: list[str]) -> tuple[list[str], bool]:
    """Return the tools that may be called, and if one must be called."""
    if choice == "none":
        return [], False
    if isinstance(choice, str):
        return names, choice == "required"
    if choice.get("type") == "function":
        wanted, must_call = [choice["function"]["name"]], True
    elif choice.get("type") == "allowed_tools":
        allowed = choice["allowed_tools"]
        wanted, must_call = [tool["function"]["name"] for tool in allowed["tools"]], allowed["mode"] == "required"
    else:
        raise UnsupportedError(f"A tool_choice of type '{choice.get('type')}'", "'function' or 'allowed_tools'")
    unknown = [name for name in wanted if name not in names]
    if unknown:
        raise UnsupportedError(f"A tool_choice of '{unknown[0]}'", f"one of the tools offered ({', '.join(names)})")
    return wanted, must_call


def _answer_schema(wanted: Mapping[str, Any]) -> JsonObject | None:
    kind = wanted.get("type", "text")
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    if kind == "json_schema":
        return dict(wanted["json_schema"]["schema"])
    raise UnsupportedError(f"A response_format of type '{kind}'", "'text', 'json_object' or 'json_schema'")


# What the model reads


def as_plain_chat(messages: Sequence[Mapping[str, Any]], offer: Offer) -> list[JsonObject]:
    """The conversation for a template that supports system, user and assistant messages with texts only."""
    plain: list[JsonObject] = []
    for message in messages:
        role, text = message["role"], _text(message.get("content"))
        if role == "assistant":
            plain.append({"role": role, "content": written(text, message.get("tool_calls") or (), offer)})
        elif role != "tool":
            plain.append({"role": "system" if role == "developer" else role, "content": text})
        elif plain and "is_result" in plain[-1]:
            plain[-1]["content"] += f"\n{_RESULT.format(text)}"
        else:
            plain.append({"role": "user", "content": _RESULT.format(text), "is_result": True})
    if offer.tools:
        _explain(plain, offer)
    return [{"role": message["role"], "content": message["content"]} for message in plain]


def _explain(plain: list[JsonObject], offer: Offer) -> None:
    explanation = _HOW_TO.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in offer.tools))
    if plain and plain[0]["role"] == "system":
        plain[0]["content"] += f"\n\n{explanation}"
    else:
        plain.insert(0, {"role": "system", "content": explanation})


def written(text: str, calls: Sequence[Mapping[str, Any]], offer: Offer) -> str:
    """A message as the model wrote it."""
    functions = [call["function"] for call in calls]
    lines = [f"{PREFILL} {json.dumps(call['name'])}{_ARGUMENTS}{call['arguments']}}}" for call in functions]
    if text and lines:
        lines.insert(0, text)
    elif not lines:
        lines = [f"{_ANSWERS}{text}" if offer.tools else text]
    return "\n".join(lines)


def _text(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    other = next((part for part in content if part["type"] not in ("text", "refusal")), None)
    if other is not None:
        raise UnsupportedError(f"A content part of type '{other['type']}'", "text")
    return "\n".join(part.get("text") or part.get("refusal") or "" for part in content)


# What the model may write


def grammar_of(offer: Offer, *, end: str) -> str | None:
    """A grammar of the allowed replies for llguidance; None if any reply is allowed. They begin after `PREFILL`.

    `end` is the token that ends a reply. Without it every end token is allowed, and a small model picks a wrong one.
    """
    if not offer.tools and offer.answer_schema is None:
        return None
    rules = []
    if offer.allowed:
        rules += [f"call: {' | '.join(f'call_{index}' for index in range(len(offer.allowed)))}"]
        rules += [_call_rule(index, tool) for index, tool in enumerate(offer.allowed)]
    if offer.may_answer:
        head = _literal(_ANSWERS.removeprefix(PREFILL)) if offer.tools else ""
        rules += [f"answer: {head} said", f"said: {_said(offer)}"]
    replies = [f"call{_more(offer)}"] * bool(offer.allowed) + ["answer"] * offer.may_answer
    return "\n".join(("%llguidance {}", f"start: ({' | '.join(replies)}) {end}", *rules, ""))


def _call_rule(index: int, tool: JsonObject) -> str:
    head = _literal(f" {json.dumps(tool['name'])}{_ARGUMENTS}")
    return (
        f"call_{index}: {head} arguments_{index} {_literal('}')}\narguments_{index}: {_json(tool.get('parameters'))}"
    )


def _more(offer: Offer) -> str:
    return f" ({_literal(chr(10) + PREFILL)} call)*" if offer.several_calls else ""


def _said(offer: Offer) -> str:
    return r"/(.|\n)*/" if offer.answer_schema is None else _json(offer.answer_schema)


def _json(schema: JsonObject | None) -> str:
    return f"%json {json.dumps({**(schema or {'type': 'object'}), 'x-guidance': _COMPACT})}"


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


# What the model wrote


def parse_reply(text: str, offer: Offer) -> ParsedReply:
    """Parse a reply, including the prefill. A reply that was cut off too early to be parsed is a text."""
    if not offer.tools:
        return ParsedReply(text, [])
    if text.startswith(_ANSWERS.rstrip()):
        return ParsedReply(text[len(_ANSWERS) :], [])
    try:
        return ParsedReply(None, _calls(text))
    except (ValueError, RecursionError):
        return ParsedReply(text, [])


def _calls(text: str) -> list[JsonObject]:
    """The calls, with their arguments as written. Raises ValueError if there is any other text."""
    calls, at = [], 0
    while at < len(text):
        name, at = _READ(text, _after(text, at, f"{PREFILL} "))
        start = _after(text, at, _ARGUMENTS)
        _, end = _READ(text, start)
        at = _after(text, end, "}")
        at = _after(text, at, "\n") if at < len(text) else at
        calls.append({"name": str(name), "arguments": text[start:end]})
    return calls


def _after(text: str, at: int, expected: str) -> int:
    if not text.startswith(expected, at):
        raise ValueError(f"no {expected!r} at {at}")
    return at + len(expected)
