"""The tool and the reward of math_with_code, line by line."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import psutil
import pytest

from nemo_gym import PARENT_DIR
from nemo_gym.sandbox.bubblewrap import may_become_others
from nemo_gym.testing import (
    TRANSPORTS,
    BrowserLikeClient,
    Transport,
    client_for,
    example_row,
    message,
    response_of,
    rows_of,
    running_servers,
    says,
    servers_of,
    tool_output,
)
from resources_servers.math_with_code.app import PythonExecutorResourcesServer
from resources_servers.math_with_code.engine import check
from resources_servers.math_with_code.generate import KINDS, generate_rows
from tests.example_rows import WITH_PUBLIC_DATA, own_rows, public_rows

OWN_ROWS = own_rows("math_with_code")

CODE = {
    "divisible by 7": "print(sum(n % 7 == 0 and n % 11 != 0 for n in range(1, 1001)))",
    "remainder": "pow(3, 2026, 1009)",
    "eigenvalue": "print(round(max(np.linalg.eigvalsh(np.array([[2, 1], [1, 3]]))), 3))",
    "sum of positive": """
ways = [1] + [0] * 12
for k in range(1, 13):
    for n in range(k, 13):
        ways[n] += ways[n - k]
ways[12]""",
    "prime": "n = 10001\nwhile any(n % d == 0 for d in range(2, 101)): n += 1\nprint(n)",
}


@pytest.fixture
async def environment() -> AsyncIterator[BrowserLikeClient]:
    async with client_for(PythonExecutorResourcesServer, max_execution_time=10, warm_sessions=1) as client:
        yield client


async def execute(environment: BrowserLikeClient, code: str) -> dict[str, Any]:
    answer = await environment.post("/execute_python", json={"code": code})
    assert answer.status == 200, answer.text
    done: dict[str, Any] = answer.json()
    assert list(done) == ["success", "stdout", "stderr", "error_message", "result"]
    return done


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        ("print(6 * 7)", {"stdout": "42\n", "result": None}),
        ("6 * 7", {"stdout": "", "result": "42"}),
        ("x = 5\nx", {"result": "5"}),
        ("x = 5", {"result": None}),
        ("'text'", {"result": "text"}),
        ("iffy = 3\niffy", {"result": None}),
        ("format(3)", {"result": None}),
        ("import math", {"result": None}),
        ("for n in range(2): print(n)", {"stdout": "0\n1\n", "result": None}),
        ("sorted(map(str, [2, 1]))", {"result": "['1', '2']"}),
        ("y = 2\ndef double(): return 2 * y\nans = double()\nans", {"result": "4"}),
        ("import sys; print('e', file=sys.stderr); 1", {"stderr": "e\n"}),
        ("int(np.arange(5).sum())", {"result": "10"}),
        ("numpy is np, pandas is pd", {"result": "(True, True)"}),
        ("int(pd.Series([1, 2]).sum())", {"result": "3"}),
        ("scipy.special.comb(5, 2, exact=True)", {"result": "10"}),
        ("import numpy as np\nint(np.ones(3).sum())", {"result": "3"}),
        ("def f(x: int): pass\nlist(map(callable, f.__annotations__.values()))", {"result": "[True]"}),
        ("", {"stdout": "", "result": None}),
        (r"print('\ud800'); '\udfff!'", {"stdout": "\\ud800\n", "result": None}),
        (r"x = '\udfff!'; x", {"result": "\\udfff!"}),
    ],
)
async def test_code_that_runs(environment: BrowserLikeClient, code: str, fields: dict[str, Any]) -> None:
    done = await execute(environment, code)
    assert (done["success"], done["error_message"]) == (True, None)
    assert {name: done[name] for name in fields} == fields


async def test_the_last_line_is_run_once(environment: BrowserLikeClient) -> None:
    await execute(environment, "seen = []")
    await execute(environment, "seen.append(1)")
    assert (await execute(environment, "len(seen)"))["result"] == "1"


@pytest.mark.parametrize(
    ("code", "message_text"),
    [
        ("print('lost'); 1 / 0", "division by zero"),
        ("unknown", "name 'unknown' is not defined"),
        ("raise ValueError('my text')", "my text"),
        ("def f(:", "invalid syntax"),
    ],
)
async def test_an_error_is_reported_and_variables_survive(
    environment: BrowserLikeClient, code: str, message_text: str
) -> None:
    await execute(environment, "kept = 1")
    done = await execute(environment, code)
    assert (done["success"], done["stdout"], done["result"]) == (False, "", None)
    assert message_text in done["error_message"]
    assert (await execute(environment, "kept"))["result"] == "1"


@pytest.mark.parametrize("code", ["while True: pass", "import time; time.sleep(60)"])
async def test_code_that_is_late_gets_an_error_and_variables_survive(code: str) -> None:
    boxes = {"auto": {"limits": {"wall_s": 5}}}
    async with client_for(PythonExecutorResourcesServer, max_execution_time=1, sandbox_provider=boxes) as environment:
        await execute(environment, "kept = 1")
        done = await execute(environment, code)
        assert (done["success"], done["error_message"]) == (False, "code timed-out")
        assert (await execute(environment, "kept"))["result"] == "1"


async def test_only_cpu_time_is_counted_against_code() -> None:
    async with client_for(PythonExecutorResourcesServer, max_execution_time=1) as environment:
        assert (await execute(environment, "import time\ntime.sleep(3)\n130"))["result"] == "130"
        busy = "t = time.process_time()\nwhile time.process_time() < t + 0.6: pass\n130"
        sessions = [environment.another() for _ in range(8)]
        done = await asyncio.gather(*(execute(session, f"import time\n{busy}") for session in sessions))
        assert [each["result"] for each in done] == 8 * ["130"]


async def test_code_is_late_by_its_cpu_time() -> None:
    boxes = {"auto": {"limits": {"wall_s": 3600}}}
    async with client_for(PythonExecutorResourcesServer, max_execution_time=1, sandbox_provider=boxes) as environment:
        done = await execute(environment, "while True: pass")
        assert (done["success"], done["error_message"]) == (False, "code timed-out")


async def test_a_process_that_ends_is_replaced(environment: BrowserLikeClient) -> None:
    await execute(environment, "kept = 1")
    done = await execute(environment, "import os; os._exit(1)")
    assert (done["success"], "ended" in done["error_message"]) == (False, True)
    assert (await execute(environment, "'kept' in globals(), int(np.ones(2).sum())"))["result"] == "(False, 2)"


async def test_sessions_do_not_see_each_other(environment: BrowserLikeClient) -> None:
    other = environment.another()
    await execute(environment, "mine = 1; open('note', 'w').write('x')")
    seen = await execute(other, "import os\n'mine' in globals(), os.path.exists('note')")
    assert seen["result"] == "(False, False)"
    assert (await execute(environment, "mine"))["result"] == "1"


async def test_calls_of_one_session_take_turns(environment: BrowserLikeClient) -> None:
    await execute(environment, "count = 0")
    code = "before = count\nimport time; time.sleep(0.01)\ncount = before + 1"
    await asyncio.gather(*(execute(environment, code) for _ in range(5)))
    assert (await execute(environment, "count"))["result"] == "5"


async def test_ending_a_session_ends_its_process(environment: BrowserLikeClient) -> None:
    await execute(environment, "kept = 1")
    ended = (await environment.post("/end_session", json={})).json()
    assert ended["success"] is True
    assert (await execute(environment, "'kept' in globals()"))["result"] == "False"


async def test_the_model_cannot_end_the_process() -> None:
    row = {**rows_of(OWN_ROWS)[0], "expected_result": "7"}
    row["responses_create_params"] = {"input": "Compute."}
    run = [{"name": "execute_python", "arguments": {"code": code}} for code in ("kept = 7", "print(kept)")]
    replies: list[dict[str, Any]] = [
        {"turn": 0, "call": [run[0], {"name": "end_session", "arguments": {}}, run[1]]},
        {"say": r"\boxed{7}"},
    ]
    (record,) = await records([row], replies)
    assert [tool["name"] for tool in record["responses_create_params"]["tools"]] == ["execute_python"]
    outputs = [json.loads(item["output"]) for item in record["response"]["output"] if "output" in item]
    assert outputs[1] == {"error": "There is no tool 'end_session'. Tools: execute_python."}
    assert outputs[2]["stdout"] == "7\n"


@pytest.mark.parametrize(
    "attack",
    [
        "import os; os.kill(os.getppid(), 9)",
        "import os, resource; resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (0, 0))\nwhile True: pass",
        "import os; os.write(3, b'\\xff' * 10**6); os._exit(0)",
        "import os; os.closerange(0, 65536)",
    ],
)
async def test_code_that_breaks_its_sandbox_reads_that_its_process_ended(attack: str) -> None:
    """Nothing confines it here: it can do to its agent what it likes."""
    async with client_for(PythonExecutorResourcesServer, sandbox_provider={"unconfined": {}}) as environment:
        assert (await execute(environment, "x = 1"))["success"]
        broken = await execute(environment, attack)
        assert (broken["success"], broken["error_message"]) == (False, "The Python process ended.")
        assert (await execute(environment, "y = 2\nnp.int64(y)"))["result"] == "2"


async def test_the_code_has_no_network_and_no_files(environment: BrowserLikeClient) -> None:
    code = f"open({str(OWN_ROWS)!r}).read()"
    assert "No such file" in (await execute(environment, code))["error_message"]
    code = "import socket; socket.create_connection(('192.0.2.1', 80), 1)"
    assert (await execute(environment, code))["success"] is False


@pytest.mark.parametrize(
    ("texts", "expected", "answer", "reward"),
    [
        ([r"\boxed{32}"], "32", "32", 1.0),
        ([r"\boxed{ 32 }"], "32", "32", 1.0),
        ([r"\boxed{1} \boxed{2}"], "2", "2", 1.0),
        ([r"\boxed{1} \boxed{2}"], "1", "2", 0.0),
        ([r"\boxed{1}", r"\boxed{2}"], "2", "2", 1.0),
        ([r"\boxed{1}", "so it is."], "1", "1", 1.0),
        ([r"\boxed{1}. \boxed{2, 1}"], "1", "2, 1", 0.0),
        ([r"\boxed{1}, \boxed{2} or \boxed{3}"], "3", "1, 2, 3", 0.0),
        ([r"\boxed{\boxed{130}}"], "130", "130", 1.0),
        ([r"\boxed {130}"], "130", "130", 1.0),
        ([r"It is not \boxed{130}."], "130", None, 0.0),
        ([r"\boxed{130}? No, that is wrong."], "130", None, 0.0),
        ([r"Not \boxed{129}, but \boxed{130}."], "130", "130", 1.0),
        ([r"\boxed{130} <think>Or 131?"], "130", "130", 1.0),
        (["<reasoning>\\boxed{130}</reasoning>"], "130", None, 0.0),
        ([r"\boxed{\frac{1}{2}}"], r"\frac{1}{2}", r"\frac{1}{2}", 1.0),
        ([r"\boxed{3} \boxed{}"], "3", "3", 1.0),
        ([r"<think>\boxed{1}</think>\boxed{3}"], "3", "3", 1.0),
        ([r"<think>\boxed{3}</think>It is 3."], "3", None, 0.0),
        ([r"\boxed{3}</think>"], "3", None, 0.0),
        ([r"<think>\boxed{3}"], "3", None, 0.0),
        (["32"], "32", None, 0.0),
        (["None"], "None", None, 0.0),
        ([], "None", None, 0.0),
        ([r"\boxed{3"], "3", None, 0.0),
    ],
)
async def test_the_box_decides(
    environment: BrowserLikeClient, texts: list[str], expected: str, answer: str | None, reward: float
) -> None:
    row = example_row(response=says(*texts), expected_result=expected)
    record = (await environment.post("/verify", json=row)).json()
    assert (record["extracted_answer"], record["reward"], record["accuracy"]) == (answer, reward, bool(reward))


async def test_what_a_tool_printed_is_no_answer(environment: BrowserLikeClient) -> None:
    items = [message(r"\boxed{1}"), tool_output(r"\boxed{2}")]
    row = example_row(response=response_of(*items), expected_result="2")
    assert (await environment.post("/verify", json=row)).json()["reward"] == 0.0


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("349.0", "349"),
        ("349", "349.00"),
        ("349.", "349"),
        ("+0349", "349"),
        (".50", "0.5"),
        ("-3", "\N{MINUS SIGN}3"),
        ("7.5e5", "750000"),
        (r"1.3\times 10^2", "130"),
        (r"1.3 \cdot 10^{2}", "130"),
        ("13×10^1", "130"),
        ("x = 130", "130"),
        ("１３０", "130"),  # noqa: RUF001
        ("1 300", "1300"),
        ("12,345.0", "12345"),
        ("12{,}345", "12345"),
        (r"12\,345", "12,345"),
        (r"\text{349}", "349"),
        ("$349$", "349"),
        ("{130}", "130"),
        (r"\,130", "130"),
        ("(130)", "130"),
        (r"\lambda = 3.618", "3.618"),
        (r"\approx 3.618", "3.618"),
        (r"\sqrt{2}", r"\(\sqrt{2}\)"),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_the_same_number_is_right(answer: str, expected: str) -> None:
    assert check([rf"\boxed{{{answer}}}"], expected).is_right


@pytest.mark.parametrize("later", ["Actually that was wrong, the answer is 131.", "I withdraw my answer."])
def test_a_later_message_may_take_the_answer_back(later: str) -> None:
    assert not check([r"\boxed{130}", later], "130").is_right
    assert check([r"\boxed{130}", "That is all."], "130").is_right


@pytest.mark.parametrize("expected", ["", " ", "\u200b"])
def test_a_row_without_an_expected_result_is_refused(expected: str) -> None:
    with pytest.raises(ValueError, match="blank"):
        PythonExecutorResourcesServer.check_row({"expected_result": expected})


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("349.5", "349"),
        ("349.0000000000000000000000000000000001", "349"),
        ("-349", "349"),
        ("349, 350", "349"),
        (r"1.3\times 10^3", "130"),
        (r"1.3\times 10^{2}0", "130"),
        ("13²", "132"),
        ("13 0", "130"),
        ("x = y = 130", "130"),
        ("3,49", "349"),
        ("349 cm", "349"),
        ("nan", "NaN"),
        ("inf", "Infinity"),
        ("3_49", "349"),
        ("1e400000000", "349"),
        ("1e9999", "1e9998"),
        ("1e99999999999999999999", "349"),
    ],
)
def test_another_number_is_wrong(answer: str, expected: str) -> None:
    assert not check([rf"\boxed{{{answer}}}"], expected).is_right


@pytest.mark.parametrize(
    "text",
    [
        *("\\boxed{" * 300_000, "\\boxed{}" * 300_000, "<think>" * 300_000),
        *(rf"\boxed{{{'9' * 2_000_000}}}", r"\boxed{" + "1," * 1_000_000 + "}"),
    ],
    ids=["open", "empty", "think", "digits", "commas"],
)
async def test_a_very_long_reply_is_read_outside_the_loop(environment: BrowserLikeClient, text: str) -> None:
    row = example_row(response=says(text), expected_result="349")
    assert (await environment.post("/verify", json=row)).json()["reward"] == 0.0
    row = example_row(response=says(rf"{text} }} </think> \boxed{{349.0}}"), expected_result="349")
    assert (await environment.post("/verify", json=row)).json()["reward"] == 1.0


def sandbox_processes() -> int:
    """Those that were forked from the Python process that makes sandboxes."""
    names: dict[int, str] = {}
    parents: list[int] = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            names[child.pid] = child.name()
            parents.append(child.ppid())
    forked = sum(names.get(parent, "").startswith("python") for parent in parents)
    return forked - (not may_become_others() and forked > 0)  # an ordinary user's is forked itself


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_the_example_rows_are_solved_through_the_agent(transport: Transport) -> None:
    rows = rows_of(OWN_ROWS)
    assert len(rows) == 5
    replies: list[dict[str, Any]] = [
        {"user": words, "turn": 0, "call": [{"name": "execute_python", "arguments": {"code": code}}]}
        for words, code in CODE.items()
    ]
    replies += [
        {"tool_output": r'"stdout":"(\d[\d.]*)\\n"', "say": r"So \\boxed{\1}."},
        {"tool_output": r'"result":"(\d[\d.]*)"', "say": r"So \\boxed{\1}."},
    ]
    replies = json.loads(json.dumps(replies).replace(r"\\\\boxed", r"\\boxed"))
    assert await rewards(rows, replies, transport) == [1.0] * 5


async def test_a_model_that_looks_for_the_dataset_finds_nothing() -> None:
    look = f"import glob; [open(p).read() for p in glob.glob('{PARENT_DIR}/**/*.jsonl', recursive=True)]"
    read: list[dict[str, Any]] = [{"turn": 0, "call": [{"name": "execute_python", "arguments": {"code": look}}]}]
    read.append({"tool_output": r"expected_result.*?(\d+)", "say": r"\\boxed{\1}"})
    assert await rewards(rows_of(OWN_ROWS), [*read, {"say": "I found nothing."}]) == [0.0] * 5


async def rewards(rows: list[Any], replies: list[dict[str, Any]], transport: Transport = "direct") -> list[float]:
    """What the agent gets for rows with a model that replies so."""
    return [record["reward"] for record in await records(rows, replies, transport)]


async def records(
    rows: list[Any], replies: list[dict[str, Any]], transport: Transport = "direct"
) -> list[dict[str, Any]]:
    """The rollouts of rows with a model that replies so. Afterwards no session is left."""
    servers = servers_of(
        "resources_servers/math_with_code/configs/math_with_code.yaml",
        "responses_api_models/scripted_model/configs/scripted_model.yaml",
        policy_model={"responses_api_models": {"scripted_model": {"script_fpath": None, "replies": replies}}},
        math_with_code={"resources_servers": {"math_with_code": {"warm_sessions": 0}}},
    )
    async with running_servers(servers, transport=transport) as client:
        answers = [await client.post("math_with_code_simple_agent", "/run", json=row) for row in rows]
        made = [await answer.json() for answer in answers]
        async with asyncio.timeout(30):
            while sandbox_processes():  # noqa: ASYNC110 - the last rollout's process is ending
                await asyncio.sleep(0.02)
    return made


@WITH_PUBLIC_DATA
async def test_the_public_rows_reward_the_expected_result(environment: BrowserLikeClient) -> None:
    rows = rows_of(public_rows("math_with_code"))
    assert len(rows) == 5
    for row in rows:
        for answer, reward in ((row["expected_result"], 1.0), ("?", 0.0)):
            body = {**row, "response": says(f"\\boxed{{{answer}}}")}
            assert (await environment.post("/verify", json=body)).json()["reward"] == reward


async def test_the_code_of_a_gold_response_computes_the_expected_result(environment: BrowserLikeClient) -> None:
    for difficulty in KINDS:
        for row in generate_rows(3, 8, difficulty):
            code = json.loads(row["gold_response"][0]["arguments"])["code"]
            assert (await execute(environment, code))["result"] == row["expected_result"], row
