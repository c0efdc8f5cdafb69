"""The rules of code_gen, line by line, with programs that run in a real sandbox."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from nemo_gym import PARENT_DIR
from nemo_gym.testing import BrowserLikeClient, client_for, example_row, rows_of, running_servers, says, servers_of
from resources_servers.code_gen.app import CodeGenResourcesServer
from resources_servers.code_gen.generate import generate_rows
from resources_servers.code_gen.runner import difference, extract_code, shortened, value_difference
from tests.example_rows import WITH_PUBLIC_DATA, own_rows, public_rows

OWN_ROWS = own_rows("code_gen")

SOLUTIONS = {
    "sum": "input()\nprint(sum(n for n in map(int, input().split()) if n % 2 == 0))",
    "mirror": "word = input()\nprint('yes' if word == word[::-1] else 'no')",
    "mean": "import sys\nfor line in sys.stdin:\n    a, b = map(float, line.split())\n    print((a + b) / 2)",
    "islands": """
h, w = map(int, input().split())
land = {(y, x) for y in range(h) for x, c in enumerate(input()) if c == '#'}
count = 0
while land:
    count += 1
    queue = deque([land.pop()])
    while queue:
        y, x = queue.popleft()
        for cell in ((y + 1, x), (y - 1, x), (y, x + 1), (y, x - 1)):
            if cell in land:
                land.remove(cell)
                queue.append(cell)
print(count)""",
    "pair": """
class Solution:
    def find_pair(self, numbers: List[int], target: int):
        print("noise")
        return next((i, j) for i, j in combinations(range(len(numbers)), 2) if numbers[i] + numbers[j] == target)""",
}


@pytest.fixture
async def environment() -> AsyncIterator[BrowserLikeClient]:
    boxes = {"auto": {"limits": {"wall_s": 8}}}
    async with client_for(
        CodeGenResourcesServer, unit_test_timeout_secs=2, warm_sandboxes=1, sandbox_provider=boxes
    ) as client:
        yield client


def fenced(code: str) -> str:
    return f"Here it is:\n```python\n{code}\n```\nDone."


def row(text: str, inputs: list[str], outputs: list[str], fn_name: str | None = None) -> dict[str, Any]:
    tests = {"inputs": inputs, "outputs": outputs, "fn_name": fn_name}
    return example_row(response=says(text), verifier_metadata={"unit_tests": tests})


async def verified(environment: BrowserLikeClient, body: dict[str, Any]) -> dict[str, Any]:
    answer = await environment.post("/verify", json=body)
    assert answer.status == 200, answer.text
    record: dict[str, Any] = answer.json()
    return record


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```python\nx\n```", "x"),
        ("a\n```\nx\ny\n```\nb", "x\ny"),
        ("```\nfirst\n```\ntext\n```\nsecond\n```", "second"),
        ("```\nfirst\n```\ntext\n```\nunclosed", "text"),
        ("```python\n```", None),
        ("~~~python\nx\n~~~", "x"),
        ("~~~\nx\n~~~\n```\ny\n```", "y"),
        ("~~~\nx = ~~~1\n~~~", "x = ~~~1"),
        ("<!--\n~~~\nx\n~~~\n-->", None),
        ("```python\nx", None),
        ("print(1)", None),
        ("", None),
        ("one line ```x```", None),
        ("- ```python\n  x\n  ```", "  x"),
        ("<think>\n```\nx\n```\n</think>\nDone.", None),
        ("<think>\n```\nx\n```\nDone.", None),
        ("```\nx\n```\n</think>\nDone.", None),
        ("<think>\n```\nx\n```\n</think>\n```\ny\n```", "y"),
        ("<!--\n```\nx\n```\n-->\nDone.", None),
        ("<!--\n```\nx\n```", None),
        ("```\nx\n```\n<!--\n```\ny\n```\n-->", None),
        ("<!-- Code: -->\n```\nx\n```", "x"),
        ("```\n<!--\n```\n```\nx\n```", "x"),
        ("```\nprint('<!--')\n```", "print('<!--')"),
    ],
)
def test_code_stands_between_the_last_two_fences(text: str, code: str | None) -> None:
    assert extract_code(text) == code


@pytest.mark.parametrize(
    ("output", "expected", "message"),
    [
        ("4\n", "4", None),
        ("  a b  \n\n", "a b", None),
        ("a  \n b", "a\nb", None),
        ("1.0", "1", None),
        ("1.50 2", "1.5 2.0", None),
        ("0.30000000000000004", "0.3", "Wrong answer at output_line_idx=0: 0.30000000000000004 != 0.3"),
        ("Yes", "yes", "Wrong answer at output_line_idx=0: Yes != yes"),
        ("4", "9", "Wrong answer at output_line_idx=0: 4 != 9"),
        ("1\n4", "1\n9", "Wrong answer at output_line_idx=1: 4 != 9"),
        ("1\n2", "1", "Wrong answer: mismatched output length"),
        ("", "", None),
        ("a 1", "a 1.0", "Wrong answer at output_line_idx=0: a 1 != a 1.0"),
        ("1 2", "1", "Wrong answer at output_line_idx=0: 1 2 != 1"),
        ("+4.2e1 inf", "42 Infinity", None),
        ("4_2", "42", "Wrong answer at output_line_idx=0: 4_2 != 42"),
        ("\uff14\uff12", "42", "Wrong answer at output_line_idx=0: \uff14\uff12 != 42"),
        ("\u0664\u0662", "42", "Wrong answer at output_line_idx=0: \u0664\u0662 != 42"),
        ("4_2 \uff14", "4_2 \uff14", None),
    ],
)
def test_outputs_are_compared_line_by_line(output: str, expected: str, message: str | None) -> None:
    assert difference(output, expected) == message


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("", "3"),
        ("[", "[]"),
        ("3 3", "3"),
        ("3,", "3"),
        ("\ufeff3", "3"),
        ("\u0663", "3"),
        ("[" * 100_000, "3"),
        ("[" * 100_000 + "]" * 100_000, "[]"),
        ('["ratio", ["1e400000000"]]', "3"),
        ("9" * 1_000_000, "3"),
        ("1e400", "1e308"),
        ("1e999999999999", "3"),
        ("NaN", "3"),
        ("[Infinity]", "[1]"),
        ("-Infinity", "-1"),
        ('{"a": 2, "a": 1}', '{"a": 1}'),
        ('{"a": 1}', '{"a": 1, "b": 2}'),
        ("'a'", '"a"'),
        ('"\ufffd"', '"\u00ff"'),
    ],
)
def test_a_forged_value_is_a_wrong_one(output: str, expected: str) -> None:
    assert value_difference(output, expected) == "Wrong Answer"


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("3", "3.0"),
        (" [1, 2]\n", "[1,2]"),
        ('{"b": 1, "a": [true, null]}', '{"a": [true, null], "b": 1}'),
        ("9" * 4300, "9" * 4300),
        ('"\u00e9"', '"\\u00e9"'),
    ],
)
def test_equal_json_values_are_right(output: str, expected: str) -> None:
    assert value_difference(output, expected) is None


def test_long_texts_are_shortened() -> None:
    assert len(shortened("x" * 10_000)) < 330
    assert shortened("x" * 300) == "x" * 300


@pytest.mark.parametrize(
    ("code", "result", "message"),
    [
        ("print(int(input()) ** 2)", [True, True], None),
        ("print(4)", [True, -2], "Wrong answer at output_line_idx=0: 4 != 9"),
        ("print(4); print()\nprint(5)", [-2], "Wrong answer: mismatched output length"),
        ("while True: pass", [-3], "Time Limit Exceeded"),
        ("import time; time.sleep(60)", [-3], "Time Limit Exceeded"),
        ("1 / 0", [-4], "Runtime Error"),
        ("print(int(input()) ** 2); 1 / 0", [-4], "Runtime Error"),
        ("def f(:", [-4], "Error during testing:"),
        ("print(int(input()) ** 2)\nexit()", [True, True], None),
        ("import sys\nprint(int(input()) ** 2)\nsys.exit()", [True, True], None),
        ("print(int(input()) ** 2)\nquit()", [-4], "Runtime Error"),
        ("import os\nos._exit(3)", [-4], "Runtime Error"),
        ("x = bytearray(10**11)", [-4], "Runtime Error"),
        ("if __name__ == '__main__':\n    print(int(input()) ** 2)", [True, True], None),
        ("import sys\nfor line in sys.stdin: print(int(line) ** 2)", [True, True], None),
        ("print(int(open(0).read()) ** 2)", [True, True], None),
        ("def f(n): return f(n - 1) if n else 0\nf(40000); print(int(input()) ** 2)", [True, True], None),
        ("print(int(sqrt(int(input()) ** 4)))", [True, True], None),
        ("from __future__ import annotations\nprint(int(input()) ** 2)", [True, True], None),
        ("import sys; sys.stdout.write('9' * 10**7)", [-2], "Wrong answer"),
    ],
)
async def test_how_programs_end(
    environment: BrowserLikeClient, code: str, result: list[Any], message: str | None
) -> None:
    record = await verified(environment, row(fenced(code), ["2\n", "3\n"], ["4\n", "9\n"]))
    assert record["result"] == result
    assert record["reward"] == float(result == [True, True])
    assert record["extracted_model_code"] == code
    assert record["unit_tests_time_taken"] > 0
    if message is None:
        assert list(record["metadata"]) == ["execution time"]
    else:
        assert record["metadata"]["error_message"].startswith(message)
        assert record["metadata"]["error_code"] == result[-1]
        assert record["metadata"]["expected"] == ["4\n", "9\n"][len(result) - 1]


POINT = """
import pickle, sys
from dataclasses import dataclass
from typing import ClassVar
@dataclass
class Point:
    size: ClassVar[int] = 2
    x: int
def solve(a: int, b: float):
    kinds = list(solve.__annotations__.values())
    copy = pickle.loads(pickle.dumps(Point(3)))
    return [kinds[0]("7"), kinds[1]("1"), copy.x, Point.size, sys.modules[__name__].Point is Point]
"""


@pytest.mark.parametrize("function", ["solve", None])
async def test_a_program_is_a_module_like_any_other(environment: BrowserLikeClient, function: str | None) -> None:
    if function:
        body = row(fenced(POINT), ["1\n2"], ["[7, 1.0, 3, 2, true]"], function)
    else:
        body = row(fenced(f"{POINT}\nprint(*solve(1, 2), __name__)"), [""], ["7 1.0 3 2 True __main__"])
    record = await verified(environment, body)
    assert (record["result"], record["reward"]) == ([True], 1.0), record["metadata"]


@pytest.mark.parametrize(
    ("code", "reward"),
    [
        ("def add(a, b):\n    return [a + b]", 1.0),
        ("class Solution:\n    def add(self, a, b):\n        return (a + b,)", 1.0),
        ("def add(a, b):\n    print('noise')\n    return [float(a + b)]", 1.0),
        ("def add(a, b):\n    return [a - b]", 0.0),
        ("def add(a, b):\n    return {a + b}", 0.0),
        ("def add(a, b):\n    return [(3,)]", 0.0),
        ("def other(a, b): return [3]", 0.0),
        ("def add(a): return [3]", 0.0),
        ('import os\ndef add(a, b):\n    os.write(1, b\'["list", [["plain", 3]]]\')\n    os._exit(0)', 0.0),
    ],
)
async def test_a_function_is_called_with_json_arguments(
    environment: BrowserLikeClient, code: str, reward: float
) -> None:
    record = await verified(environment, row(fenced(code), ["1\n2"], ["[3]"], "add"))
    assert record["reward"] == reward
    if not reward:
        assert record["metadata"]["error_message"] in ("Wrong Answer", "Runtime Error")


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        (row("  ", ["1"], ["1"]), {"extracted_model_output": None}),
        (row("no code", ["1"], ["1"]), {"extracted_model_output": "no code"}),
    ],
)
async def test_what_cannot_be_run_scores_nothing(
    environment: BrowserLikeClient, body: dict[str, Any], fields: dict[str, Any]
) -> None:
    record = await verified(environment, body)
    assert record["reward"] == 0.0
    assert [record[name] for name in ("result", "metadata", "unit_tests_time_taken")] == [None, None, None]
    assert {name: record[name] for name in fields} == fields


@pytest.mark.parametrize(
    ("tests", "fact"),
    [
        ({"inputs": [], "outputs": []}, "at least 1"),
        ({"inputs": ["1"]}, "outputs"),
        ({"outputs": ["1"]}, "inputs"),
        ({"inputs": ["1", "2"], "outputs": ["1"]}, "2 inputs and 1 outputs"),
        ({"inputs": ["1"], "outputs": ["1", "2"]}, "1 inputs and 2 outputs"),
        ({"inputs": ["1"], "outputs": []}, "1 inputs and 0 outputs"),
        ({"inputs": ["1"], "outputs": [1]}, "valid string"),
        ({"inputs": "1", "outputs": "1"}, "valid array"),
        ({"inputs": ["1"], "outputs": [None]}, "valid string"),
        ({"inputs": ["1", "2"], "outputs": ["", " \n"]}, "blank"),
        ({"inputs": ["1"], "outputs": ["1"], "fn_name": 3}, "valid string"),
        ({"inputs": ["1"], "outputs": ["1"], "fn_name": ""}, "fn_name"),
        ({"inputs": ["1"], "outputs": ["1"], "fn_name": "a b"}, "'a b'"),
        ({"inputs": ["1"], "outputs": ["not JSON"], "fn_name": "f"}, "Test 0"),
        ({"inputs": ["1", "2"], "outputs": ["1", "NaN"], "fn_name": "f"}, "Test 1"),
        ({"inputs": ["1\n"], "outputs": ["1"], "fn_name": "f"}, "Test 0"),
        ({"inputs": ["1"], "outputs": ["[" * 100_000], "fn_name": "f"}, "Test 0"),
        ({"inputs": ["1"], "outputs": ["x" * (8 * 2**20 + 1)]}, "8,388,608"),
        (None, "unit_tests"),
        ([], "unit_tests"),
    ],
)
@pytest.mark.parametrize("text", [fenced("pass"), "  "])
async def test_a_row_whose_tests_say_nothing_is_refused(
    environment: BrowserLikeClient, tests: Any, fact: str, text: str
) -> None:
    body = example_row(response=says(text), verifier_metadata={"unit_tests": tests})
    answer = await environment.post("/verify", json=body)
    assert (answer.status, fact in answer.text) == (422, True), answer.text[:500]


@pytest.mark.parametrize("metadata", [{}, {"verifier_metadata": {}}, {"verifier_metadata": None}])
async def test_a_row_without_tests_is_refused(environment: BrowserLikeClient, metadata: dict[str, Any]) -> None:
    body = example_row(response=says(fenced("pass")), **metadata)
    assert (await environment.post("/verify", json=body)).status == 422


@pytest.fixture
async def one_second() -> AsyncIterator[BrowserLikeClient]:
    async with client_for(CodeGenResourcesServer, unit_test_timeout_secs=1) as client:
        yield client


async def test_right_programs_that_have_to_wait_for_the_cpu_pass(one_second: BrowserLikeClient) -> None:
    busy = "import time\nwhile time.process_time() < 0.6: pass\nprint(int(input()) ** 2)"
    body = row(fenced(busy), ["2\n", "3\n"], ["4\n", "9\n"])
    records = await asyncio.gather(*(verified(one_second, body) for _ in range(8)))
    assert [(record["reward"], record["result"]) for record in records] == 8 * [(1.0, [True, True])]


async def test_waiting_is_not_counted_against_a_program(one_second: BrowserLikeClient) -> None:
    code = "import time\ntime.sleep(3)\nprint(int(input()) ** 2)"
    assert (await verified(one_second, row(fenced(code), ["2\n"], ["4\n"])))["reward"] == 1.0


SHORT_CHILDREN = """
import os, time
while True:
    if not os.fork():
        while time.process_time() < 0.1: pass
        os._exit(0)
    os.wait()"""
THREADS = """
import threading
def burn():
    while True: pass
for _ in range(4): threading.Thread(target=burn).start()"""
DEAF = "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass"


@pytest.mark.parametrize("code", ["while True: pass", SHORT_CHILDREN, THREADS, DEAF])
async def test_a_program_that_uses_too_much_cpu_time_is_late(one_second: BrowserLikeClient, code: str) -> None:
    record = await verified(one_second, row(fenced(code), ["2\n"], ["4\n"]))
    assert (record["reward"], record["result"]) == (0.0, [-3])
    assert (record["metadata"]["error_message"], record["metadata"]["error"]) == ("Time Limit Exceeded", "cpu limit")


async def test_texts_of_several_messages_are_joined(environment: BrowserLikeClient) -> None:
    body = {**row("", [""], ["7"]), "response": says("```python\nprint(", "7)\n```")}
    assert (await verified(environment, body))["reward"] == 1.0


async def test_a_program_finds_nothing_to_cheat_with(environment: BrowserLikeClient) -> None:
    secret = "the expected output 8271"
    code = f"""
import glob, os
found = []
for pattern in ("/proc/*/cmdline", "/proc/*/environ", "/work/**", "/tmp/**", "{PARENT_DIR}/**"):
    for path in glob.glob(pattern, recursive=True):
        try:
            found.append(open(path, errors="replace").read())
        except OSError:
            pass
text = " ".join(found)
at = text.find("the expected " + "output")
print(text[at:at + 25] if at >= 0 else "nothing")
"""
    record = await verified(environment, row(fenced(code), ["x"], [secret]))
    assert (record["reward"], record["metadata"]["output"]) == (0.0, "nothing\n")


async def test_programs_share_nothing_with_earlier_ones(environment: BrowserLikeClient) -> None:
    leave = "open('left', 'w').write('x'); open('/tmp/left', 'w').write('x'); print(1)"
    assert (await verified(environment, row(fenced(leave), [""], ["1"])))["reward"] == 1.0
    look = "import os; print(os.path.exists('left'), os.path.exists('/tmp/left'))"
    assert (await verified(environment, row(fenced(look), [""], ["False False"])))["reward"] == 1.0


async def rewards(replies: list[dict[str, Any]]) -> list[float]:
    """What the agent gets for the example rows with a model that replies so."""
    servers = servers_of(
        "resources_servers/code_gen/configs/code_gen.yaml",
        "responses_api_models/scripted_model/configs/scripted_model.yaml",
        policy_model={"responses_api_models": {"scripted_model": {"script_fpath": None, "replies": replies}}},
    )
    async with running_servers(servers) as client:
        answers = [await client.post("code_gen_simple_agent", "/run", json=one) for one in rows_of(OWN_ROWS)]
        return [(await answer.json())["reward"] for answer in answers]


async def test_the_example_rows_are_solved_through_the_agent() -> None:
    good = [
        {"user": re.escape(one["responses_create_params"]["input"][0]["content"][-60:]), "say": fenced(solution)}
        for one in rows_of(OWN_ROWS)
        for solution in [SOLUTIONS[one["verifier_metadata"]["problem_id"]]]
    ]
    assert await rewards(good) == [1.0] * 5
    assert await rewards([{"say": fenced("print('?')\ndef find_pair(*_): return 0")}]) == [0.0] * 5


@WITH_PUBLIC_DATA
async def test_the_public_rows_reward_a_program_that_knows_the_answers() -> None:
    rows = rows_of(public_rows("code_gen"))
    assert len(rows) == 5
    async with client_for(CodeGenResourcesServer) as environment:
        for one in rows:
            tests = one["verifier_metadata"]["unit_tests"]
            tests |= {name: tests[name][:20] for name in ("inputs", "outputs")}  # there are up to a hundred
            known = dict(zip(tests["inputs"], tests["outputs"], strict=True))
            right = f"import json, sys\nprint(json.loads({json.dumps(json.dumps(known))})[sys.stdin.read()])"
            for code, reward in ((right, 1.0), ("print('?')", 0.0)):
                assert (await verified(environment, {**one, "response": says(fenced(code))}))["reward"] == reward


async def test_a_program_that_leaves_out_a_step_of_a_generated_row_fails(environment: BrowserLikeClient) -> None:
    for generated in generate_rows(3, 3, 3):
        gold = generated["gold_response"]
        steps = re.findall(r"    numbers = .*\n", gold.partition("def solve")[2])
        assert len(steps) == 3
        for step in steps:
            body = {**generated, "response": says(gold.replace(step, ""))}
            assert (await verified(environment, body))["reward"] == 0.0, step
        assert (await verified(environment, {**generated, "response": says(gold)}))["reward"] == 1.0
