"""Play the example rows of public folders on our package, and compare rewards with the stored ones.

The folders' own agents and the stock public model run unmodified. The endpoint replays the replies, also those of
judges, that the stored rollouts hold; what it was never asked there gets a plain text and counts as unknown."""

import asyncio
import json
import os
import re
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests.stub_endpoint import Request, completion, stub_endpoint

MODEL = "responses_api_models/openai_model/configs/openai_model.yaml"
PLAIN_TEXT = "The answer is 42."
FOLDER_TIMEOUT_S, ROLLOUT_TIMEOUT_S = 240, 90
TOLERANCE = 1e-6
_GIVEN = ("function_call_output", "user", "system", "developer")
JsonObject = dict[str, Any]


class Example(NamedTuple):
    """A dataset of example rows, with the agent that plays them."""

    config: Path
    agent: str
    dataset: Path


@dataclass
class Played:
    """The rollouts of one dataset."""

    example: str
    rows: int = 0
    scored: int = 0
    equal: int = 0
    different: list[str] = field(default_factory=list)
    """Rewards that differ from the stored ones, with both."""
    unknown_requests: int = 0
    """Requests that no stored rollout holds, such as those of judges."""
    failures: dict[str, int] = field(default_factory=dict)
    error: str = ""
    """Why nothing was played."""
    seconds: float = 0.0


def examples(root: Path, only: str) -> Iterator[Example]:
    """Yield each file of example rows that the wheel has, once."""
    patterns = (
        "resources_servers/*/configs/*.yaml",
        "environments/*/config.yaml",
        "responses_api_agents/*/configs/*.yaml",
    )
    seen: set[tuple[Path, str]] = set()
    for config in (file for pattern in patterns for file in sorted(root.glob(pattern))):
        if not re.search(only, str(config.relative_to(root))):
            continue
        for agent, dataset in _datasets(root, config):
            kind = config.relative_to(root).parts[0]
            if (dataset, kind) not in seen:
                seen.add((dataset, kind))
                yield Example(config, agent, dataset)


def _datasets(root: Path, config: Path) -> Iterator[tuple[str, Path]]:
    loaded = yaml.safe_load(config.read_text()) or {}
    for name, block in loaded.items():
        implementations = block.get("responses_api_agents") if isinstance(block, dict) else None
        for settings in (implementations or {}).values():
            for dataset in (settings or {}).get("datasets") or ():
                path = root / str(dataset.get("jsonl_fpath"))
                if dataset.get("type") == "example" and path.is_file():
                    yield name, path


# Stored rollouts


class StoredReplies:
    """Finds what a stored rollout answered to a request, by the texts of its messages."""

    def __init__(self, records: Iterable[JsonObject]) -> None:
        self.records = list(records)
        self._outputs: defaultdict[str, list[list[JsonObject]]] = defaultdict(list)
        self.unknown = 0
        for record in self.records:
            for request, response in _answered(record):
                self._outputs[_key(request.get("input"))].append(response.get("output") or [])

    def reply(self, body: Mapping[str, Any]) -> list[JsonObject]:
        items = body.get("input")
        items = [{"role": "user", "content": items}] if isinstance(items, str) else list(items or ())
        for length in range(len(items), 0, -1):
            if not _text(items[length - 1]):
                continue
            for output in self._outputs.get(_key(items[:length]), ()):
                turn = _next_turn(output, _made(items[length:]))
                if turn:
                    return turn
        self.unknown += 1
        content = [{"type": "output_text", "text": PLAIN_TEXT, "annotations": []}]
        return [{"id": "m", "type": "message", "role": "assistant", "status": "completed", "content": content}]


def _answered(value: Any) -> Iterator[tuple[JsonObject, JsonObject]]:
    """Yield each request with its response, at any depth."""
    if isinstance(value, dict):
        request, response = value.get("responses_create_params"), value.get("response")
        if isinstance(request, dict) and isinstance(response, dict):
            yield request, response
        for each in value.values():
            yield from _answered(each)
    elif isinstance(value, list):
        for each in value:
            yield from _answered(each)


def _key(items: Any) -> str:
    if isinstance(items, str):
        return items.strip()
    return "\n".join(filter(None, (_text(item) for item in items or ())))


def _text(item: JsonObject) -> str:
    content = item.get("content") if isinstance(item, dict) else item
    if isinstance(content, str):
        return content.strip()
    parts = [part for part in content or () if isinstance(part, dict)]
    return "".join(str(part.get("text") or part.get("image_url") or "") for part in parts).strip()


def _made(items: Sequence[JsonObject]) -> int:
    """Count the calls and messages of the model."""
    return sum(_is_made(item) and item.get("type") != "reasoning" for item in items)


def _is_made(item: JsonObject) -> bool:
    return item.get("type") != "function_call_output" and item.get("role", "assistant") == "assistant"


def _next_turn(output: Sequence[JsonObject], made: int) -> list[JsonObject]:
    """Return the items of the model that follow so many that were made before."""
    found: list[JsonObject] = []
    for item in output:
        is_made = _is_made(item)
        if is_made and item.get("type") != "reasoning" and made > 0:
            made -= 1
        elif is_made and made == 0:
            found.append(item)
        elif found and not is_made:
            break
    return found if any(item.get("type") != "reasoning" for item in found) else []


def _lines(path: Path) -> list[JsonObject]:
    try:
        return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    except (OSError, ValueError):
        return []


def _stored_rollouts(dataset: Path) -> list[JsonObject]:
    own = dataset.with_name(dataset.name.replace("example", "example_rollouts", 1))
    return _lines(own) or _lines(dataset.with_name("example_rollouts.jsonl"))


# Playing


async def play(example: Example, root: Path, python: Path, output: Path, environment: Mapping[str, str]) -> Played:
    """Collect one rollout of each row, in a process of its own, and compare the rewards."""
    name = f"{example.config.relative_to(root)} {example.dataset.name}"
    played, stored = Played(name), StoredReplies(_stored_rollouts(example.dataset))
    played.rows, started = len(_lines(example.dataset)), time.monotonic()

    def reply(request: Request) -> Any:
        if request.path.endswith("/chat/completions"):
            items = stored.reply({"input": request.body["messages"]})
            return completion("".join(map(_text, items)))
        if not request.path.endswith("/responses"):
            return {"object": "list", "data": [{"id": "m", "object": "model"}]}
        usage = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}
        details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
        whole = {"id": "resp-1", "object": "response", "created_at": 1, "model": "m", "status": "completed"}
        tools = {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True, "usage": {**usage, **details}}
        return {**whole, **tools, "output": stored.reply(request.body)}

    async with stub_endpoint(reply) as stub:
        log = await _collect(example, python, output, {**environment, "STUB": stub.url})
    played.seconds, played.unknown_requests = round(time.monotonic() - started, 1), stored.unknown
    _compare(played, _lines(output), stored.records)
    failed = _lines(output.with_name(f"{output.stem}_failures.jsonl"))
    played.failures = dict(Counter(f"{each.get('cause')}: {each.get('message', '')}"[:300] for each in failed))
    if not played.scored and not failed:
        played.error = _last_error(log)
    return played


def _other_models(config: Path, output: Path) -> Path:
    """Write a config with each model that another server refers to and the config does not have: the stock one."""
    loaded = yaml.safe_load(config.read_text()) or {}
    named = {name for name in _models_named_in(loaded) if name not in loaded and name != "policy_model"}
    endpoint = {"openai_base_url": "${policy_base_url}", "openai_api_key": "k", "openai_model": "m"}
    block = {"responses_api_models": {"openai_model": {"entrypoint": "app.py", **endpoint}}}
    path = output.with_suffix(".yaml")
    path.write_text(json.dumps(dict.fromkeys(sorted(named), block)))
    return path


def _unset_endpoints(config: Path, url: str) -> Iterator[str]:
    """Yield values for the endpoints that a config leaves to its user, such as those of judges."""
    values = {"_base_url": url, "_api_key": "dummy", "_model_name": "m"}
    names = set(re.findall(r"\$\{(\w+(?:_base_url|_api_key|_model_name))\}", config.read_text()))
    for name in sorted(names - {"policy_base_url", "policy_api_key", "policy_model_name"}):
        yield f"{name}={next(value for ending, value in values.items() if name.endswith(ending))}"


def _models_named_in(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if value.get("type") == "responses_api_models" and isinstance(value.get("name"), str):
            yield value["name"]
        for each in value.values():
            yield from _models_named_in(each)
    elif isinstance(value, list):
        for each in value:
            yield from _models_named_in(each)


async def _collect(example: Example, python: Path, output: Path, environment: Mapping[str, str]) -> str:
    configs = (example.config, MODEL, _other_models(example.config, output))
    policy = (f"policy_base_url={environment['STUB']}", "policy_api_key=dummy", "policy_model_name=m")
    endpoint = (*policy, *_unset_endpoints(example.config, environment["STUB"]))
    command = (
        *(str(python), "-m", "nemo_gym", "collect_rollouts", f"+config_paths=[{','.join(map(str, configs))}]"),
        *(f"++{each}" for each in endpoint),
        *(f"+agent_name={example.agent}", f"+input_jsonl_fpath={example.dataset}", f"+output_jsonl_fpath={output}"),
        *("+max_attempts=1", "+num_samples_in_parallel=2", f"+rollout_timeout_s={ROLLOUT_TIMEOUT_S}"),
        *(f"+uv_venv_dir={output.parent / 'venvs'}", "+resume=restart"),
    )
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=output.parent,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(FOLDER_TIMEOUT_S):
            text, _ = await process.communicate()
        return text.decode(errors="replace")
    except TimeoutError:
        return f"Error: not done after {FOLDER_TIMEOUT_S} s"
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


def _compare(played: Played, records: Sequence[JsonObject], stored: Sequence[JsonObject]) -> None:
    rewards: defaultdict[str, list[float]] = defaultdict(list)
    for record in stored:
        rewards[_record_key(record)].append(record.get("reward", float("nan")))
    for record in records:
        played.scored += 1
        wanted = rewards.get(_record_key(record))
        if not wanted:
            continue
        if any(abs(record["reward"] - each) <= TOLERANCE for each in wanted):
            played.equal += 1
        else:
            index = record.get("_ng_task_index")
            played.different.append(f"row {index}: {record['reward']:.4g}, stored {', '.join(map(str, wanted))}")


def _record_key(record: JsonObject) -> str:
    return _key((record.get("responses_create_params") or {}).get("input"))


def _last_error(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"Error|error:|not |cannot", line)]
    return (errors or lines or ["no output"])[-1][:400]
