"""Calls that are compared, APIs whose state decides, and the gold answers of all rows."""

from typing import Any

import orjson
import pytest

from nemo_gym import ServerReply
from nemo_gym.testing import (
    BrowserLikeClient,
    calls,
    client_for,
    example_row,
    response_of,
    rows_of,
    running_servers,
    says,
    server_spec,
)
from resources_servers.bfcl.apis import Apis
from resources_servers.bfcl.app import BfclResourcesServer, Play, judged, run_call
from resources_servers.bfcl.calls import Call, Language, is_right, parsed_call
from resources_servers.bfcl.gold import gold_calls
from resources_servers.bfcl.literals import java_value, javascript_value
from tests.benchmarks import benchmark_rows, require

EXAMPLES = {row["id"]: row for row in rows_of("resources_servers/bfcl/data/example.jsonl")}
UNANSWERABLE = {
    *("simple_java_36", "simple_java_65", "parallel_multiple_26", "live_simple_106-63-0", "live_simple_112-68-0"),
    *("live_multiple_862-181-3", "live_multiple_964-207-0"),
}
"""Rows whose answer contradicts the description, or is no literal of its language."""


def function(**types: Any) -> dict[str, Any]:
    """A function `a.f` whose parameters have these types; a list is an array of its item."""
    properties = {
        name: {"type": "array", "items": {"type": kind[0]}} if isinstance(kind, list) else {"type": kind}
        for name, kind in types.items()
    }
    return {"name": "a.f", "parameters": {"type": "dict", "properties": properties, "required": []}}


@pytest.mark.parametrize(
    ("kind", "allowed", "value", "expected"),
    [
        ("float", [5.0], 5, True),
        ("integer", [5], 5.0, False),
        ("integer", [1], True, False),
        ("integer", [5], "5", False),
        ("integer", [5], None, False),
        ("float", [0.1], 0.1 + 1e-9, False),
        ("float", [5.0], 10**400, False),
        ("boolean", [True], 1, False),
        ("string", ["April 1, 2024"], "april 1 2024", True),
        ("string", ["it's"], 'it"s', True),
        ("string", ["Rome"], "Rome!", False),
        ("string", ["", "m"], "", True),
        ("integer", ["SIZE"], "SIZE", True),
        ("integer", ["SIZE"], "size", False),
        (["integer"], [[1, 2]], [1, 2], True),
        (["integer"], [[1, 2]], [2, 1], False),
        (["integer"], [[1, 2]], [1, "2"], False),
        (["string"], [["A b"]], ["ab"], True),
        (["integer"], [[1], ""], [], True),
        (["integer"], [[1], ""], ["x"], False),
        ("dict", [{"a": [1, 2], "b": ["", "x"]}], {"a": 2}, True),
        ("dict", [{"a": [1], "b": ["x"]}], {"a": 1}, False),
        ("dict", [{"a": [1]}], {"a": 1, "c": 1}, False),
        (["dict"], [[{"a": [1]}, {"a": [2]}]], [{"a": 1}, {"a": 2}], True),
        (["dict"], [[{"a": [1]}, {"a": [2]}]], [{"a": 2}, {"a": 1}], False),
        (["dict"], [[{"a": [1]}], ""], ["no object"], False),
    ],
)
def test_a_value_is_compared_by_the_rule_of_the_leaderboard(
    kind: Any, allowed: list[Any], value: Any, expected: bool
) -> None:
    call = Call("a_f", {"x": value})
    assert is_right([call], [function(x=kind)], [{"a.f": {"x": allowed}}], "simple_python", "python") is expected


@pytest.mark.parametrize(
    ("made", "category", "expected"),
    [
        ([Call("a_f", {"x": 1}), Call("a_f", {"x": 2})], "parallel", True),
        ([Call("a_f", {"x": 2}), Call("a_f", {"x": 1})], "parallel", True),
        ([Call("a_f", {"x": 1}), Call("a_f", {"x": 1})], "parallel", False),
        ([Call("a_f", {"x": 1})], "parallel", False),
        ([Call("a_f", {"x": 1}), Call("a_f", {"x": 2}), Call("a_f", {"x": 2})], "parallel", False),
        ([Call("a.f", {"x": 1}), Call("a_f", {"x": 2})], "parallel", False),
        ([Call("a_f", {"x": 1, "y": 1}), Call("a_f", {"x": 2})], "parallel", False),
    ],
)
def test_the_calls_are_those_of_the_answer_in_any_order(made: list[Call], category: str, expected: bool) -> None:
    answers = [{"a.f": {"x": [1]}}, {"a.f": {"x": [2]}}]
    assert is_right(made, [function(x="integer", y="integer")], answers, category, "python") is expected


@pytest.mark.parametrize(
    ("language", "text", "kind", "inner", "value"),
    [
        ("java", "5L", "long", None, 5),
        ("java", "5", "long", None, "5"),
        ("java", "3.5f", "float", None, 3.5),
        ("java", "true", "boolean", None, True),
        ("java", "new ArrayList<>(Arrays.asList(1, 2))", "ArrayList", "integer", [1, 2]),
        ("java", 'new ArrayList<String>() {{ add("a"); add("b"); }}', "ArrayList", "String", ["a", "b"]),
        ("java", "new int[]{1, 2}", "Array", "integer", [1, 2]),
        ("java", 'new HashMap<String, Object>() {{ put("a", 1); }}', "HashMap", None, {"a": 1}),
        ("javascript", "'x'", "String", None, "x"),
        ("javascript", "5n", "Bigint", None, 5),
        ("javascript", "[[1, 2], [3]]", "array", "array", [[1, 2], [3]]),
        ("javascript", "{'a': true, 'b': [1, 2]}", "dict", None, {"a": True, "b": [1, 2]}),
        ("javascript", "[" * 50_000, "array", "array", "[" * 50_000),
    ],
)
def test_values_of_other_languages_are_literals(
    language: Language, text: str, kind: str, inner: str | None, value: Any
) -> None:
    parse = java_value if language == "java" else javascript_value
    assert parse(text, kind, inner) == value


@pytest.mark.parametrize("text", ["", "[1]", "{", '{"a": NaN}', "[" * 10_000, '{"a": %s}' % ("9" * 5000)])
def test_arguments_that_are_no_json_object_are_no_call(text: str) -> None:
    assert parsed_call("f", text) is None


async def score(environment: BrowserLikeClient, row: dict[str, Any], *items: dict[str, Any]) -> float:
    answer = await environment.post("/verify", json={**row, "response": response_of(*items)})
    assert answer.status == 200, answer.text
    return float(answer.json()["reward"])


async def test_examples_score_what_they_ask_for() -> None:
    nothing = says("I would rather not.")["output"]
    async with client_for(BfclResourcesServer) as environment:
        for row in EXAMPLES.values():
            gold: Any = BfclResourcesServer.gold_response(row)
            items = says(gold)["output"] if isinstance(gold, str) else gold
            assert await score(environment, row, *items) == 1.0, row["id"]
            assert await score(environment, row, *nothing) == 0.0
        irrelevance = {**EXAMPLES["ours_multiple"], "category": "irrelevance", "ground_truth": []}
        assert await score(environment, irrelevance, *nothing) == 1.0
        assert await score(environment, irrelevance, calls("ring_bell", {"house": 1})) == 0.0
        relevance = {**EXAMPLES["ours_multiple"], "category": "live_relevance", "ground_truth": []}
        assert await score(environment, relevance, calls("anything", {})) == 1.0
        assert await score(environment, relevance, calls("anything", "{")) == 0.0
        broken = {**EXAMPLES["ours_multiple"], "ground_truth": [], "response": response_of()}
        assert (await environment.post("/seed_session", json=broken)).status == 422


async def test_a_row_with_one_turn_is_one_model_call_and_runs_nothing() -> None:
    reply = {"call": [{"name": "ring_bell", "arguments": {"house": 12}}]}
    record = await play("simple_agent", EXAMPLES["ours_multiple"], [reply], execute_tools=False)
    assert record["reward"] == 1.0
    assert [item["type"] for item in record["response"]["output"]] == ["function_call"]


async def play(agent: str, row: dict[str, Any], replies: list[dict[str, Any]], **config: Any) -> dict[str, Any]:
    servers: dict[str, Any] = {
        "resources_server": {"type": "resources_servers", "name": "bfcl"},
        "model_server": {"type": "responses_api_models", "name": "policy_model"},
    }
    stack = [
        server_spec("agent", "responses_api_agents", agent, **servers, **config),
        server_spec("bfcl", "resources_servers", "bfcl", domain="agent"),
        server_spec("policy_model", "responses_api_models", "scripted_model", replies=replies),
    ]
    async with running_servers(stack) as client:
        reply = await client.call("agent", "/run", row, answer=ServerReply)
    record: dict[str, Any] = orjson.loads(reply.content())
    return record


# The gold answers of all rows


def test_the_answers_of_all_rows_with_one_turn_are_right_but_for_those_that_cannot_be() -> None:
    rows = benchmark_rows("bfcl/bfcl")
    answered = [row for row in rows if row["ground_truth"]]
    wrong = {row["id"] for row in answered if not is_right(gold_calls(row), *rule_of(row))}
    assert (len(rows), len(answered), wrong) == (3641, 2501, UNANSWERABLE)


def rule_of(row: dict[str, Any]) -> Any:
    return row["function"], row["ground_truth"], row["category"], row["language"]


def apis_of(row: dict[str, Any]) -> Apis:
    return Apis(row["involved_classes"], row["initial_config"], is_long="long_context" in row["category"])


def failure_of(row: dict[str, Any], turns: list[list[str]]) -> str | None:
    """Play calls in turns, and say why the first turn that failed did."""
    done, apis, answer = Play(), apis_of(row), apis_of(row)
    for made, wanted in zip(turns, row["ground_truth"], strict=True):
        done.calls_in_turn = len(made)
        done.results += [run_call(apis, call) for call in made]
        failure = judged(done, apis, answer, wanted)
        if failure:
            return failure
    return None


def test_the_answers_of_each_fourth_row_with_several_turns_are_right_and_silence_is_not() -> None:
    rows = benchmark_rows("bfcl_multi_turn/bfcl_multi_turn")
    assert len(rows) == 800
    rows = rows[::4]
    assert [row["id"] for row in rows if failure_of(row, row["ground_truth"])] == []
    assert [row["id"] for row in rows if not failure_of(row, [[] for _ in row["ground_truth"]])] == []


def row_with_files(category: str = "multi_turn_base") -> dict[str, Any]:
    """A row of our own, on the file system of the package."""
    require("bfcl_multi_turn/bfcl_multi_turn")
    files = {"note.txt": {"type": "file", "content": "b\na"}}
    tools = [
        {"type": "function", "name": name, "parameters": {"type": "object", "properties": {}}, "strict": False}
        for name in ("touch", "ls", "rm")
    ]
    return {
        **example_row("Make a file x."),
        "responses_create_params": {"input": [{"role": "user", "content": "Make a file x."}], "tools": tools},
        "category": category,
        "turns": ["Sort the note.", "Sort it now."],
        "added_tools": {"2": [{**tools[0], "name": "sort"}]},
        "initial_config": {"GorillaFileSystem": {"root": {"home": {"type": "directory", "contents": files}}}},
        "involved_classes": ["GorillaFileSystem"],
        "ground_truth": [["touch(file_name='x')"], [], ["sort('note.txt')"]],
    }


TOUCH = {"user": "Make", "turn": 0, "call": [{"name": "touch", "arguments": {"file_name": "x"}}]}
SORT = {"user": "now", "turn": 0, "call": [{"name": "sort", "arguments": {"file_name": "note.txt"}}]}
EARLY = {"user": "Sort the", "turn": 0, "call": [{"name": "sort", "arguments": {"file_name": "note.txt"}}]}
SAY = {"say": "Done."}


@pytest.mark.parametrize(
    ("replies", "failure"),
    [
        ([TOUCH, SORT, SAY], None),
        ([TOUCH, EARLY, SORT, SAY], None),
        ([SORT, SAY], "no call"),
        ([TOUCH, EARLY, SAY], "no call"),
        ([{**TOUCH, "call": [{"name": "ls", "arguments": {}}]}, SORT, SAY], "another state"),
        ([TOUCH, {**SORT, "call": [{"name": "ls", "arguments": {}}]}, SAY], "a result is missing"),
        ([{"user": "Make", "times": 21, "call": TOUCH["call"]}, SORT, SAY], "too many steps"),
        ([{"user": "Make", "call": TOUCH["call"]}, SAY], "unfinished"),
        ([TOUCH, {"user": "Sort the", "incomplete": "max_output_tokens"}, SORT, SAY], "unfinished"),
        ([{**TOUCH, "call": [{"name": "_load_scenario", "arguments": {"scenario": {}}}]}, SORT, SAY], "no call"),
        ([{**TOUCH, "call": [{"name": "verify", "arguments": {}}]}, SORT, SAY], "no call"),
    ],
)
async def test_each_turn_is_judged_by_calls_state_and_results(
    replies: list[dict[str, Any]], failure: str | None
) -> None:
    record = await play("multi_turn_agent", row_with_files(), replies, max_steps=60)
    assert (record["reward"], record["failure"]) == (float(failure is None), failure)


async def test_a_tool_can_be_called_from_the_turn_on_that_adds_it() -> None:
    record = await play("multi_turn_agent", row_with_files(), [TOUCH, EARLY, SORT, SAY])
    outputs = [item["output"] for item in record["response"]["output"] if item["type"] == "function_call_output"]
    assert "no tool 'sort'" in outputs[1]
    assert orjson.loads(outputs[2]) == {"sorted_content": "a\nb"}


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("power", {"base": 10**15, "exponent": 10**15}),
        ("square_root", {"number": 2.0, "precision": 10**9}),
        ("logarithm", {"value": 2.0, "base": 3.0, "precision": 10**9}),
        ("__init__", {}),
        ("add", {"a": 1}),
        ("mean", {"numbers": "text"}),
    ],
)
def test_calls_that_would_never_end_and_wrong_ones_are_errors(name: str, arguments: dict[str, Any]) -> None:
    require("bfcl_multi_turn/bfcl_multi_turn")
    result = Apis(["MathAPI"], {}, is_long=False).call(name, named=arguments)
    assert "rror" in result


async def test_metrics_have_each_category_and_groups_that_are_complete() -> None:
    names = ("simple_python", "simple_java", "simple_javascript", "multiple", "parallel", "parallel_multiple")
    records = [{"category": name, "reward": float(name == "multiple")} for name in names]
    async with client_for(BfclResourcesServer) as environment:
        assert isinstance(environment.server, BfclResourcesServer)
        metrics = environment.server.compute_metrics([records])
    assert metrics["category/multiple"] == 1.0
    assert metrics["leaderboard/non_live"] == 0.25
    assert "leaderboard/live" not in metrics
