"""Rollouts as trajectories of ATIF, the Agent Trajectory Interchange Format, and back.

A step of the agent is what the model made at once, with the outputs of its tools. What ATIF has no field for (the row,
the reward, a verifier's own fields) is in `extra` of the trajectory, so that a rollout comes back as it was scored."""

import json
import mimetypes
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import orjson

from nemo_gym.analysis.chat_messages import NotChatError, chat_messages, chat_tools
from nemo_gym.errors import ConfigError
from nemo_gym.llm_api.base import JsonObject
from nemo_gym.llm_api.builders import tool_output
from nemo_gym.rollouts.types import agent_of, rollout_key

VERSION = "ATIF-v1.8"
PREFIX = "ATIF-"
RECORD = "nemo_gym_record"
"""The key in `extra` of a trajectory for the other fields of its record."""
RAW_ARGUMENTS = "raw_arguments"
"""The key in `extra` of a tool call for arguments that are not a JSON object, or are written in another way."""
_TOKENS = {"prompt_token_ids": "prompt_token_ids", "generation_token_ids": "completion_token_ids"}
_SOURCES = {"system": "system", "developer": "system", "user": "user"}
_DEFAULT_IMAGE = "image/png"


class NotTrajectoryError(ConfigError):
    """A document that is no trajectory."""


# Export


def trajectory_of(record: Mapping[str, Any]) -> JsonObject:
    """Return a scored record as a trajectory. Raises NotChatError if an item of it has no form there."""
    request, response = record["responses_create_params"], record["response"]
    task, repeat = rollout_key(record)
    steps = [*_prompt_steps(request), *_steps(response["output"])]
    tools = chat_tools(request.get("tools") or ())
    agent = {"name": agent_of(record) or "agent", "version": version("nemo-gym"), "model_name": response.get("model")}
    others = {name: value for name, value in record.items() if name not in ("responses_create_params", "response")}
    return {
        "schema_version": VERSION,
        "session_id": f"{task}-{repeat}",
        "agent": _without_none({**agent, "tool_definitions": tools or None}),
        "steps": [{"step_id": number, **step} for number, step in enumerate(steps, 1)],
        "final_metrics": _final_metrics(response.get("usage") or {}, len(steps)),
        "extra": {RECORD: others},
    }


def _prompt_steps(request: Mapping[str, Any]) -> Iterator[JsonObject]:
    if request.get("instructions"):
        yield {"source": "system", "message": request["instructions"], "extra": {"is_instructions": True}}
    given = request["input"]
    for step in _steps([{"role": "user", "content": given}] if isinstance(given, str) else given):
        yield {**step, "is_copied_context": True} if step["source"] == "agent" else step


def _steps(items: Sequence[JsonObject]) -> list[JsonObject]:
    """Return the steps of a conversation. The outputs of tools belong to the step that has called them."""
    steps: list[JsonObject] = []
    for turn in _turns(items):
        for message in chat_messages(turn, reasoning="field"):
            if message["role"] == "tool":
                _add_output(steps, message)
            elif message["role"] == "assistant":
                steps.append(_agent_step(message, turn))
            else:
                steps.append({"source": _SOURCES[message["role"]], "message": _content(message["content"])})
    return steps


def _turns(items: Iterable[JsonObject]) -> Iterator[list[JsonObject]]:
    """Yield what the model made at once, and other items one by one."""
    made: list[JsonObject] = []
    for item in items:
        is_made = isinstance(item, dict) and item.get("type") != "function_call_output"
        if not is_made or item.get("role", "assistant") != "assistant":
            if made:
                yield made
            yield [item]
            made = []
        else:
            made.append(item)
    if made:
        yield made


def _agent_step(message: JsonObject, turn: Iterable[JsonObject]) -> JsonObject:
    thought = message.get("reasoning_content")
    calls = [_tool_call(call) for call in message.get("tool_calls") or ()]
    text = _content(message["content"] or message.get("refusal") or "")
    step = {"source": "agent", "message": text, "reasoning_content": thought, "tool_calls": calls or None}
    return _without_none({**step, "metrics": _metrics(turn)})


def _tool_call(call: JsonObject) -> JsonObject:
    text = call["function"]["arguments"]
    try:
        arguments = json.loads(text)
    except ValueError:
        arguments = None
    known = arguments if isinstance(arguments, dict) else {}
    raw = {} if text == json.dumps(known) else {"extra": {RAW_ARGUMENTS: text}}
    return {"tool_call_id": call["id"], "function_name": call["function"]["name"], "arguments": known, **raw}


def _add_output(steps: list[JsonObject], message: JsonObject) -> None:
    """Add a tool's output to the newest step that has made the call."""
    name = message["tool_call_id"]
    for step in reversed(steps):
        if any(call["tool_call_id"] == name for call in step.get("tool_calls") or ()):
            results = step.setdefault("observation", {"results": []})["results"]
            results.append({"source_call_id": name, "content": _content(message["content"])})
            return
    raise NotChatError(f"an output of the call '{name}', which was not made")


def _metrics(turn: Iterable[JsonObject]) -> JsonObject | None:
    """Return the tokens of what the model made, if its items have them."""
    found: JsonObject = {}
    for item in turn:
        for name, other in _TOKENS.items():
            if item.get(name):
                found[other] = list(item[name])
        if item.get("generation_log_probs"):
            found["logprobs"] = list(item["generation_log_probs"])
    return found or None


def _final_metrics(usage: Mapping[str, Any], steps: int) -> JsonObject:
    cached = (usage.get("input_tokens_details") or {}).get("cached_tokens")
    prompt, completion = usage.get("input_tokens"), usage.get("output_tokens")
    totals = {"total_prompt_tokens": prompt, "total_completion_tokens": completion, "total_cached_tokens": cached}
    return _without_none({**totals, "total_steps": steps})


def _content(content: Any) -> Any:
    """Return a text, or the parts of a message with images."""
    if isinstance(content, str):
        return content
    return [_part(part) for part in content]


def _part(part: JsonObject) -> JsonObject:
    if part["type"] == "text":
        return {"type": "text", "text": part["text"]}
    url = part["image_url"]["url"]
    named = url.removeprefix("data:").split(";")[0] if url.startswith("data:") else mimetypes.guess_type(url)[0]
    return {"type": "image", "source": {"media_type": named or _DEFAULT_IMAGE, "path": url}}


def _without_none(values: JsonObject) -> JsonObject:
    return {name: value for name, value in values.items() if value is not None}


# Import


def read_trajectories(path: Path) -> Iterator[JsonObject]:
    """Yield the trajectories in a file of one, a list or lines of them, or in all `.json` files of a folder."""
    if path.is_dir():
        files = [file for file in sorted(path.rglob("*.json")) if PREFIX.encode() in file.read_bytes()]
        if not files:
            raise NotTrajectoryError(f"{path} has no .json file with a trajectory.")
        for file in files:
            yield from read_trajectories(file)
        return
    with path.open("rb") as opened:
        lines = opened if path.suffix == ".jsonl" else [opened.read()]
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                found = orjson.loads(line)
            except ValueError as error:
                raise NotTrajectoryError(f"{path}:{number} is not JSON: {error}.") from error
            yield from found if isinstance(found, list) else [found]


def record_of(trajectory: JsonObject) -> JsonObject:
    """Return a trajectory as the record of a rollout. It has a reward if it was exported with one."""
    named = str(trajectory.get("schema_version")) if isinstance(trajectory, dict) else ""
    if not named.startswith(PREFIX) or not isinstance(trajectory.get("steps"), list):
        raise NotTrajectoryError(f"Expected a trajectory with a schema_version such as '{VERSION}' and steps.")
    agent, steps = trajectory.get("agent") or {}, trajectory["steps"]
    first = next((at for at, step in enumerate(steps) if _is_own(step)), len(steps))
    before = list(steps[:first])
    instructions = (
        before.pop(0)["message"] if before and (before[0].get("extra") or {}).get("is_instructions") else None
    )
    request = {"input": [item for step in before for item in _items(step)], "instructions": instructions}
    request["tools"] = [{"type": "function", **tool["function"]} for tool in agent.get("tool_definitions") or ()]
    output = [item for step in steps[first:] for item in _items(step)]
    ids = {"id": f"resp_{trajectory.get('session_id')}", "object": "response", "created_at": 0}
    usage = _usage(trajectory.get("final_metrics") or {})
    response = {**ids, "model": agent.get("model_name") or "unknown", "output": output, **usage}
    others = (trajectory.get("extra") or {}).get(RECORD) or {"agent_ref": {"name": agent.get("name")}}
    given = {name: value for name, value in request.items() if value}
    return {"responses_create_params": {"input": [], **given}, "response": response, **others}


def _is_own(step: JsonObject) -> bool:
    return bool(step.get("source") == "agent" and not step.get("is_copied_context"))


def _items(step: JsonObject) -> Iterator[JsonObject]:
    """Yield the items of a step."""
    number, message = step.get("step_id"), step.get("message")
    if step["source"] != "agent":
        yield {"type": "message", "role": step["source"], "content": _input_content(message)}
        return
    made: list[JsonObject] = []
    if step.get("reasoning_content"):
        summary = [{"type": "summary_text", "text": step["reasoning_content"]}]
        made.append({"type": "reasoning", "id": f"rs_{number}", "summary": summary})
    if message or not step.get("tool_calls"):
        content = [{"type": "output_text", "text": _text(message), "annotations": []}]
        fields = {"id": f"msg_{number}", "status": "completed", "content": content}
        made.append({"type": "message", "role": "assistant", **fields})
    for call in step.get("tool_calls") or ():
        raw = (call.get("extra") or {}).get(RAW_ARGUMENTS)
        arguments = json.dumps(call["arguments"]) if raw is None else raw
        names = {"call_id": call["tool_call_id"], "name": call["function_name"], "arguments": arguments}
        made.append({"type": "function_call", "id": f"fc_{number}_{len(made)}", "status": "completed", **names})
    made[-1] |= _token_fields(step.get("metrics") or {})
    yield from made
    for result in (step.get("observation") or {}).get("results") or ():
        if result.get("source_call_id") is not None:
            yield tool_output(_text(result.get("content") or ""), call_id=result["source_call_id"])


def _token_fields(metrics: JsonObject) -> JsonObject:
    if not metrics.get("completion_token_ids"):
        return {}
    ids = {name: metrics.get(other) or [] for name, other in _TOKENS.items()}
    return {**ids, "generation_log_probs": metrics.get("logprobs") or []}


def _usage(metrics: JsonObject) -> JsonObject:
    prompt, completion = metrics.get("total_prompt_tokens"), metrics.get("total_completion_tokens")
    if prompt is None or completion is None:
        return {}
    cached = {"cached_tokens": metrics.get("total_cached_tokens") or 0}
    details = {"input_tokens_details": cached, "output_tokens_details": {"reasoning_tokens": 0}}
    counts = {"input_tokens": prompt, "output_tokens": completion, "total_tokens": prompt + completion}
    return {"usage": {**counts, **details}}


def _input_content(content: Any) -> Any:
    if isinstance(content, str):
        return content
    return [
        {"type": "input_text", "text": part["text"]}
        if part["type"] == "text"
        else {"type": "input_image", "image_url": part["source"]["path"], "detail": "auto"}
        for part in content
    ]


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part.get("text") or "" for part in content)
