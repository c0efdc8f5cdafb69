"""What fits a schema, case by case; and what hostile schemas and replies cost."""

import json
import re
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nemo_gym import PARENT_DIR
from nemo_gym.testing import client_for, example_row, message, response_of, rows_of, running_servers, says, server_spec
from resources_servers.structured_outputs.app import StructuredOutputsResourcesServer
from resources_servers.structured_outputs.schemas import fits, make_strict
from tests.stacks import verified_by

PUBLIC_ROWS = PARENT_DIR.parent / "shared/data/structured_outputs"
OWN_ROWS = PARENT_DIR / "resources_servers/structured_outputs/data"
CATASTROPHIC = {"type": "string", "pattern": "^(a+)+$"}
INNER = {"type": "object", "properties": {"a": {}, "b": {}}, "required": ["a"]}


def of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def row(schema: Any, *texts: str, **fields: Any) -> dict[str, Any]:
    schema_str = schema if isinstance(schema, str) else json.dumps(schema)
    return example_row(response=says(*texts), schema_str=schema_str, schema_type="json", **fields)


@pytest.mark.parametrize(
    ("schema", "reply", "fitting"),
    [
        (of(a={"type": "string"}), '{"a": "x"}', True),
        (of(a={"type": "string"}), ' \n{"a": "x"}\t ', True),
        (of(a={"type": "string"}), '```json\n{"a": "x"}\n```', False),
        (of(a={"type": "string"}), '{"a": "x"', False),
        (of(a={"type": "string"}), 'Here: {"a": "x"}', False),
        (of(a={"type": "string"}), "", False),
        (of(a={"type": "integer"}), '{"a": "x", "a": 1}', True),
        (INNER, '{"a": 1}', False),
        (INNER, '{"a": 1, "b": 2}', True),
        (INNER, '{"a": 1, "b": 2, "c": 3}', False),
        ({**INNER, "additionalProperties": True}, '{"a": 1, "b": 2, "c": 3}', False),
        ({"type": "array", "items": INNER}, '[{"a": 1, "b": 2, "c": 3}]', False),
        ({"type": "array", "items": INNER}, '[{"a": 1, "b": 2}]', True),
        ({"$ref": "#/$defs/inner", "$defs": {"inner": INNER}}, '{"a": 1, "b": 2, "c": 3}', False),
        ({"$ref": "#/$defs/inner", "$defs": {"inner": INNER}}, '{"a": 1, "b": 2}', True),
        ({"anyOf": [INNER]}, '{"a": 1, "c": 3}', True),
        ({"oneOf": [INNER]}, '{"a": 1, "c": 3}', True),
        ({"allOf": [INNER]}, '{"a": 1, "c": 3}', True),
        ({"anyOf": [INNER]}, '{"c": 3}', False),
        (of(a={"type": "string", "format": "date"}), '{"a": "abc"}', True),
        (of(a={"type": "integer", "format": "int32"}), '{"a": 99999999999999999999}', True),
        (of(a={"type": "integer"}), '{"a": 1.0}', True),
        (of(a={"type": "integer"}), '{"a": 1.5}', False),
        (of(a={"type": "integer"}), '{"a": true}', False),
        (of(a={"type": "number"}), '{"a": NaN}', False),
        (of(a={"type": "number", "minimum": 18, "maximum": 30}), '{"a": NaN}', False),
        (of(a={"type": "number", "minimum": 18}), '{"a": Infinity}', False),
        (of(a={"type": "number", "maximum": 30}), '{"a": -Infinity}', False),
        (of(a={"type": "number", "minimum": 18}), '{"a": 1e400}', False),
        (of(a={"type": "number", "maximum": 30}), '{"a": -1.5E+999}', False),
        (of(a={"type": "integer"}), '{"a": 1e400}', False),
        (of(a={"type": "number"}), '{"a": 1e-400}', True),
        (of(a={"type": "number"}), '{"a": 1e308}', True),
        (of(a={}), '{"a": [{"b": NaN}]}', False),
        ({"type": "array"}, "[1, NaN]", False),
        (True, "NaN", False),
        (True, "Infinity", False),
        (True, "nan", False),
        (True, "\ufeff1", False),
        (True, "1 1", False),
        (True, "[1,]", False),
        (True, "01", False),
        (True, "+1", False),
        (True, ".5", False),
        (True, "0x10", False),
        (True, "'a'", False),
        (True, '"a\nb"', False),
        (True, "\u00a01", False),
        (True, '"\\ud800"', True),
        ({"const": 1}, "1.0", True),
        (of(a={"type": "number", "multipleOf": 0.01}), '{"a": 19.99}', False),
        (of(a={"enum": ["x", "y"]}), '{"a": "z"}', False),
        (of(a={"enum": ["x", "y"]}), '{"a": "y"}', True),
        (of(a={"type": "string", "pattern": "^x+$"}), '{"a": "xy"}', False),
        (of(a={"type": "string", "pattern": "^x+$"}), '{"a": "xx"}', True),
        (of(a={"minimum": 2}), '{"a": 1}', False),
        (of(a={"minItems": 2}), '{"a": [1]}', False),
        (of(a={"uniqueItems": True}), '{"a": [1, 1]}', False),
        (of(a={"uniqueItems": True}), '{"a": [1, true]}', True),
        (of(a={"type": "number", "nullable": True}), '{"a": null}', False),
        (of(a={"type": ["number", "null"]}), '{"a": null}', True),
        (of(a={"type": "number", "minimum": 1, "exclusiveMinimum": True}), '{"a": 2}', False),
        (of(properties={"type": "string"}), '{"properties": "x"}', False),
        ({**of(a={}), "patternProperties": {"^x_": {}}}, '{"a": 1, "x_b": 2}', True),
        ({**of(a={}), "patternProperties": {"^x_": {}}}, '{"a": 1, "y_b": 2}', False),
        ("not json", "1", False),
        ({"type": "thing"}, "1", False),
        ({"type": "object", "properties": ["a"]}, "{}", False),
        ({"items": [{"type": "string"}]}, '["x"]', False),
        ([], "1", False),
        (True, "1", True),
        (False, "1", False),
        ({"$ref": "#/$defs/missing"}, "1", False),
        ({"$ref": "#"}, "1", False),
        (of(a={"pattern": "("}), '{"a": "x"}', False),
        (of(a={"pattern": r"^\p{L}$"}), '{"a": "x"}', False),
        (of(a={"pattern": "a{99999999999999999999}"}), '{"a": "x"}', False),
        ({"$schema": "http://json-schema.org/draft-07/schema#", **INNER}, '{"a": 1, "b": 2}', True),
        ({"$id": "https://example.com/schema.json", **INNER}, '{"a": 1, "b": 2}', True),
    ],
)
def test_what_fits_a_schema(schema: Any, reply: str, fitting: bool) -> None:
    assert fits(reply, schema if isinstance(schema, str) else json.dumps(schema)) is fitting


UNTYPED = {"properties": {"a": {"type": "string"}}}


@pytest.mark.parametrize(
    ("schema", "fitting", "other"),
    [
        (UNTYPED, ['{"a": "x"}'], ["5", "[]", "null", "true", '""', "{}", '{"a": 5}']),
        (of(a={"properties": {"b": {}}}), ['{"a": {"b": 5}}'], ['{"a": 5}', '{"a": []}']),
        ({"items": UNTYPED}, ["[]", '[{"a": "x"}]'], ["5", "{}", "[5]"]),
        ({"anyOf": [UNTYPED, {"type": "null"}]}, ["null", '{"a": "x"}'], ["5"]),
        ({"allOf": [UNTYPED]}, ['{"a": "x"}'], ["5"]),
        ({"$ref": "#/$defs/x", "$defs": {"x": UNTYPED}}, ['{"a": "x"}'], ["5"]),
        ({"type": ["object", "null"], "anyOf": [{"required": ["a"]}]}, ["null", '{"a": 1}'], ["5", "{}"]),
        ({"required": ["a"]}, ['{"a": 1}'], ["5", "{}"]),
        ({"minimum": 3}, ["4"], ["2", '"x"', "true", "null"]),
        ({"minLength": 2}, ['"ab"'], ['"a"', "5", "[1, 2]"]),
        ({"minLength": 2, "minItems": 1}, ['"ab"', "[1]"], ["5", "[]", "{}"]),
        ({"enum": [1, "a"], "minimum": 0}, ["1", '"a"'], ["2"]),
        ({"not": {"required": ["a"]}}, [], ["5", '{"a": 1}']),
        ({"not": {"required": ["z"]}, "properties": {"a": {}}}, ['{"a": 1}'], ["5"]),
        ({"if": {"type": "object"}, "then": {"required": ["a"]}}, ["5", '{"a": 1}'], ["{}"]),
        ({"description": "anything"}, ["5", "{}"], []),
    ],
    ids=str,
)
def test_a_schema_without_a_type_means_the_one_that_its_keywords_are_for(
    schema: Any, fitting: list[str], other: list[str]
) -> None:
    assert [reply for reply in fitting if not fits(reply, json.dumps(schema))] == []
    assert [reply for reply in other if fits(reply, json.dumps(schema))] == []


@pytest.mark.parametrize(
    ("pattern", "found", "other"),
    [
        ("^x$", ["x"], ["x\n", "\nx", "x\r"]),
        ("^[A-Z]{2}-[0-9]{4}$", ["AB-1234"], ["AB-1234\n", "\uff21\uff22-1234"]),
        (r"^\d{4}$", ["2024"], ["\u0662\u0660\u0662\u0664", "\uff12\uff10\uff12\uff14", "2024\n"]),
        (r"^\w+$", ["abc_1"], ["\u00e9", "a\n"]),
        (r"^\S+$", ["ab"], ["a\u3000b", "a\ufeff"]),
        (r"^\s$", ["\u00a0", "\n"], ["a"]),
        ("^.$", ["a", "\U0001f600"], ["\n", "\r", "\u2028"]),
        (r"^[\s\S]*$", ["a\n"], []),
        (r"^a\$[$]$", ["a$$"], ["a$$\n"]),
        ("^(a|b$)", ["b"], ["b\n"]),
        ("a|b$", ["xa\n", "b"], ["b\n"]),
        ("^$", [""], ["\n"]),
        (r"^(\d)\1$", ["11"], ["12"]),
        ("(?i)^ab$", ["AB"], ["AB\n"]),
        ("a)(b", [], ["ab", "a)(b"]),
    ],
)
def test_patterns_are_those_of_ecma_262(pattern: str, found: list[str], other: list[str]) -> None:
    as_value, as_name = {"pattern": pattern}, {**of(), "patternProperties": {pattern: {}}}
    for schema, reply in ((as_value, json.dumps), (as_name, lambda text: json.dumps({text: 1}))):
        assert [text for text in found if not fits(reply(text), json.dumps(schema))] == []
        assert [text for text in other if fits(reply(text), json.dumps(schema))] == []


@pytest.mark.parametrize(
    ("reply", "fitting"),
    [
        ('<think>{"a": 1}</think>\n{"a": "x"}', True),
        ('<think>a<think>b</think>{"a": "x"}', True),
        ('hm</think>{"a": "x"}', True),
        ('<Thinking>hm</Thinking>{"a": "x"}', True),
        ('{"a": "<think>x"}', True),
        ('{"a": "</think>"}', True),
        ('<think>{"a": "x"}', False),
        ('<think>{"a": "x"}</think>', False),
        ('{"a": "x"}</think>', False),
        ('{"a": "x"}<think>no</think>{"a": "y"}', False),
        ('<think>hm</think>{"a": 1}', False),
        ('<think>hm</think>```json\n{"a": "x"}\n```', False),
    ],
)
def test_thoughts_are_not_the_answer(reply: str, fitting: bool) -> None:
    assert fits(reply, json.dumps(of(a={"type": "string"}))) is fitting


@pytest.mark.parametrize("place", ["http://127.0.0.1:9/schema.json", "file:///etc/hostname", "other.json"])
def test_nothing_is_fetched(place: str) -> None:
    assert fits("1", json.dumps({"$ref": place})) is False


def test_strictness_reaches_through_objects_but_not_through_lists() -> None:
    schema = of(a=of(b={}), c={"anyOf": [of(d={})], "items": of(e={})})
    make_strict(schema)
    assert schema["required"] == ["a", "c"]
    assert schema["properties"]["a"] == {**of(b={}), "required": ["b"], "additionalProperties": False}
    assert schema["properties"]["c"]["items"]["required"] == ["e"]
    assert schema["properties"]["c"]["anyOf"] == [of(d={})]


verified = partial(verified_by, StructuredOutputsResourcesServer)


async def test_a_reply_over_two_messages_is_one_reply() -> None:
    record = await verified(row(of(a={"type": "string"}), '{"a": "x', 'y"}', id=7))
    assert (record["reward"], record["timed_out"]) == (1.0, False)
    assert set(record) == {"responses_create_params", "response", "reward", "timed_out"}


@pytest.mark.parametrize(
    "output",
    [
        [],
        [{**message(""), "content": [{"type": "refusal", "refusal": "No."}]}],
        [{"type": "message", "role": "assistant", "content": "1"}],
        [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "1"}]}],
    ],
)
async def test_what_the_model_did_not_say_scores_nothing(output: list[dict[str, Any]]) -> None:
    assert (await verified(row(True) | {"response": response_of(*output)}))["reward"] == 0.0


@pytest.mark.parametrize("bad", [{"schema_type": "yaml"}, {"schema_str": {"type": "object"}}])
async def test_a_row_that_does_not_fit_is_refused(bad: dict[str, Any]) -> None:
    async with client_for(StructuredOutputsResourcesServer) as environment:
        assert (await environment.post("/verify", json=row(True, "1") | bad)).status == 422


@pytest.mark.parametrize(
    "schema", ["", "not JSON", "[]", "3", "null", "false", '{"minimum": NaN}', "[" * 10**5, None, {}, "{}", "true"]
)
def test_a_row_whose_schema_nothing_or_everything_fits_is_found(schema: Any) -> None:
    with pytest.raises(ValueError, match="schema_str"):
        StructuredOutputsResourcesServer.check_row({"schema_str": schema})
    StructuredOutputsResourcesServer.check_row(row(INNER))


async def test_a_catastrophic_pattern_ends_on_time_and_the_next_row_is_not_delayed() -> None:
    async with client_for(StructuredOutputsResourcesServer, check_timeout_s=0.5) as environment:
        hostile = row(CATASTROPHIC, json.dumps("a" * 50 + "b"))
        record = (await environment.post("/verify", json=hostile)).json()
        assert (record["reward"], record["timed_out"]) == (0.0, True)
        assert (await environment.post("/verify", json=row(CATASTROPHIC, '"aaa"'))).json()["reward"] == 1.0


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "[" * 100_000 + "]" * 100_000, '{"a":' * 100_000, "9" * 100_000], ids=lambda text: text[:5]
)
@pytest.mark.parametrize("schema", [True, {"items": {"$ref": "#"}}, {"uniqueItems": True}], ids=str)
def test_deep_nesting_and_endless_numbers_fit_nothing(text: str, schema: Any) -> None:
    started = time.process_time()
    assert fits(text, json.dumps(schema)) is False
    assert fits("1", text) is False, "nor as a schema"
    assert time.process_time() - started < 2


@pytest.mark.parametrize(("text", "reward"), [(json.dumps(["x"] * 1_000_000), 1.0), ("{" + " " * 5_000_000, 0.0)])
async def test_a_reply_of_five_megabytes_ends_on_time(text: str, reward: float) -> None:
    server = server_spec(
        "structured_outputs", "resources_servers", "structured_outputs", domain="instruction_following"
    )
    async with running_servers([server]) as client:
        body = row({"type": "array", "maxItems": 1_000_000}, text)
        answer = await client.post("structured_outputs", "/verify", json=body)
    record = await answer.json()
    assert (record["reward"], record["timed_out"]) == (reward, False)


def example_of(schema: dict[str, Any], root: dict[str, Any]) -> Any:
    """Something that fits a schema of the simple kind that the rows have."""
    if "$ref" in schema:
        return example_of(root["$defs"][schema["$ref"].removeprefix("#/$defs/")], root)
    for choice in ("anyOf", "oneOf"):
        if choice in schema:
            return example_of(schema[choice][0], root)
    if "enum" in schema or "const" in schema:
        return schema["const"] if "const" in schema else schema["enum"][0]
    kind = schema["type"]
    if kind == "object":
        return {name: example_of(value, root) for name, value in schema["properties"].items()}
    if kind == "array":
        return [example_of(schema["items"], root)] * schema.get("minItems", 0)
    texts = ("some words of text", "1840", "12345", "21:04")
    text = next(text for text in texts if re.search(schema.get("pattern", ""), text))
    number = max(schema.get("minimum", 1), schema.get("exclusiveMinimum", 0) + 1)
    plain = {"string": text, "integer": number, "number": number + 0.5, "boolean": True}
    return plain[kind if isinstance(kind, str) else kind[0]]


@pytest.mark.parametrize("folder", [OWN_ROWS, PUBLIC_ROWS], ids=["own", "public"])
def test_the_example_rows_reward_what_fits(folder: Path) -> None:
    if not folder.is_dir():
        pytest.skip("the public rows are not on this machine")
    rows = rows_of(folder / "example.jsonl")
    assert len(rows) >= 5
    for one in rows:
        schema = json.loads(one["schema_str"])
        reply = example_of(schema, schema)
        assert fits(json.dumps(reply), one["schema_str"]), reply
        assert not fits(json.dumps({**reply, "one_more": 1}), one["schema_str"])
        assert not fits(json.dumps(dict(list(reply.items())[1:])), one["schema_str"])


async def test_an_example_row_is_verified_over_http() -> None:
    one = rows_of(OWN_ROWS / "example.jsonl")[0]
    schema = json.loads(one["schema_str"])
    assert (await verified({**one, "response": says(json.dumps(example_of(schema, schema)))}))["reward"] == 1.0
    assert (await verified({**one, "response": says("{}")}))["reward"] == 0.0
