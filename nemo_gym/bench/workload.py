"""One point of a capacity table: which rollouts, how many at once, and the rows and commands that make them."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from nemo_gym.bench.endpoint import EndpointSpec
from nemo_gym.bench.replies import DEFAULT_FAULTS

MODEL_CONFIG = "responses_api_models/openai_model/configs/openai_model.yaml"


@dataclass(frozen=True, slots=True)
class Environment:
    """What is measured: configs, one of their agents, and rows for it."""

    config_paths: Sequence[str]
    agent_name: str
    rows: Sequence[dict[str, Any]]
    overrides: Sequence[str] = ()
    """More arguments of the commands, such as `+num_workers=4`."""
    through_ng_run: bool = False

    def arguments(self, urls: Sequence[str]) -> list[str]:
        """What the command that starts the servers is given."""
        base_url = urls[0] if len(urls) == 1 else f"[{','.join(urls)}]"
        return [
            f"+config_paths=[{','.join([*self.config_paths, MODEL_CONFIG])}]",
            *(f"+policy_base_url={base_url}", "+policy_api_key=none", "+policy_model_name=simulated"),
            *self.overrides,
        ]

    def tool_arguments(self) -> dict[str, str]:
        """Arguments, made from their schemas, for all tools that the rows offer."""
        tools = (tool for row in self.rows for tool in row["responses_create_params"].get("tools") or ())
        functions = {tool["name"]: tool.get("parameters") or {} for tool in tools if tool.get("type") == "function"}
        return {name: orjson.dumps(example_value(schema)).decode() for name, schema in functions.items()}


@dataclass(frozen=True, slots=True)
class Point:
    """A load."""

    in_flight: int
    turns: int
    payload_bytes: int
    latency: str
    rollouts: int
    fault_rate: float = 0.0
    faults: Sequence[str] = ()

    def endpoint(self, environment: Environment) -> EndpointSpec:
        return EndpointSpec(
            latency=self.latency,
            turns=self.turns,
            payload_bytes=self.payload_bytes,
            fault_rate=self.fault_rate,
            tool_arguments=environment.tool_arguments(),
            faults=tuple(self.faults) or DEFAULT_FAULTS,
        )


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]], count: int) -> None:
    """So many rows, each different from the others, as real ones are."""
    with path.open("wb") as file:
        for number in range(count):
            file.write(orjson.dumps({**rows[number % len(rows)], "bench_row": number}) + b"\n")


def example_value(schema: Mapping[str, Any], *, depth: int = 0) -> Any:
    """A small value that a JSON schema allows, as far as that can be told without solving it."""
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    if schema.get("enum"):
        return schema["enum"][0]
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            return example_value(schema[key][0], depth=depth)
    kind = schema.get("type", "object" if "properties" in schema or not depth else "string")
    return _of_type(kind[0] if isinstance(kind, list) else kind, schema, depth)


def _of_type(kind: str, schema: Mapping[str, Any], depth: int) -> Any:
    if kind == "object" and depth < 8:
        properties = schema.get("properties") or {}
        return {
            name: example_value(properties.get(name, {}), depth=depth + 1) for name in schema.get("required") or ()
        }
    if kind == "array" and depth < 8 and schema.get("minItems"):
        return [example_value(schema.get("items") or {}, depth=depth + 1)] * int(schema["minItems"])
    if kind in ("integer", "number"):
        return schema.get("minimum", 1)
    return {"object": {}, "array": [], "boolean": True, "null": None}.get(kind, "text")


def padded(rows: Sequence[dict[str, Any]], prompt_bytes: int) -> list[dict[str, Any]]:
    """The rows, with words added to the last user message of each until its input has that size."""
    chance = random.Random(7)
    found = []
    for row in rows:
        params = dict(row["responses_create_params"])
        missing = prompt_bytes - len(orjson.dumps(params["input"]))
        if missing > 0:
            words = "".join(chance.choices("abcdefghij klmnopqrs tuvwxyz ", k=missing))
            given = params["input"]
            said = [{"role": "user", "content": given}] if isinstance(given, str) else list(given)
            params["input"] = [*said, {"role": "user", "content": words}]
        found.append({**row, "responses_create_params": params})
    return found
