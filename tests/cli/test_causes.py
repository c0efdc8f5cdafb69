"""What a user sees of a mistake: the cause on one line, and what to do."""

import asyncio
import os
import re
import resource
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.commands import BIN, free_port, ng
from tests.stub_endpoint import stub_endpoint

WEATHER = "resources_servers/example_simple_weather"
MODEL = "responses_api_models/openai_model/configs/openai_model.yaml"
COMMON = (
    "+agent_name=simple_weather_simple_agent",
    f"+input_jsonl_fpath={WEATHER}/data/example.jsonl",
    "+output_jsonl_fpath=out.jsonl",
    "+head_server.port=1",
    "+policy_api_key=wrong-key",
    "+policy_model_name=m",
)

pytestmark = pytest.mark.slow


class Done(NamedTuple):
    code: int
    stdout: str
    stderr: str


async def collect(url: str, cwd: Path, *more: str) -> Done:
    """`ng_collect_rollouts` against an endpoint of this event loop."""
    arguments = (f"+config_paths=[{WEATHER}/configs/simple_weather.yaml,{MODEL}]", f"+policy_base_url={url}", *COMMON)
    running = await asyncio.create_subprocess_exec(
        str(BIN / "ng_collect_rollouts"), *arguments, *more, cwd=cwd,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    stdout, stderr = await running.communicate()
    return Done(running.returncode or 0, stdout.decode(), stderr.decode())


@pytest.mark.parametrize(
    ("status", "body", "line"),
    [
        (
            401,
            {"error": {"message": "Incorrect API key.", "code": "invalid_api_key"}},
            "answered 401: Incorrect API key. Check policy_api_key.",
        ),
        (403, {"error": "Forbidden"}, "answered 403: Forbidden. Check policy_api_key."),
        (
            404,
            {"error": {"message": "The model `m` does not exist", "code": "model_not_found"}},
            "answered 404: The model `m` does not exist. Check policy_model_name.",
        ),
        (
            429,
            {"error": {"message": "You exceeded your current quota.", "code": "insufficient_quota"}},
            "answered 429: You exceeded your current quota. Add credits to the account of policy_api_key.",
        ),
        (402, {"error": "No balance"}, "answered 402: No balance. Add credits to the account of policy_api_key."),
        (404, {"detail": "Not Found"}, "answered 404: Not Found. Check policy_base_url and policy_model_name."),
    ],
)
async def test_an_endpoint_set_up_wrongly_ends_the_job_at_once(
    status: int, body: Any, line: str, tmp_path: Path
) -> None:
    async with stub_endpoint(lambda _: (status, body)) as stub:
        done = await collect(stub.url, tmp_path)
        assert len(stub.requests) <= 5  # none is tried again
    assert done.code == 1
    assert done.stderr == f"policy_model cannot be used: {stub.url}/responses {line}\n"
    assert done.stdout == ""
    assert os.listdir(tmp_path) == []


async def test_a_wrong_key_costs_less_than_a_second_of_cpu_time(tmp_path: Path) -> None:
    """Beyond what reading the configuration and loading the servers costs on this machine, whatever else runs."""
    async with stub_endpoint(lambda _: (401, {"error": "Incorrect API key"})) as stub:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert (await collect(stub.url, tmp_path)).code == 1
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    imports = "import nemo_gym.cli.collect, nemo_gym.runtime.stack, responses_api_agents.simple_agent.app"
    starting = await asyncio.create_subprocess_exec(sys.executable, "-c", imports, cwd=Path(__file__).parents[2])
    await starting.communicate()
    start = resource.getrusage(resource.RUSAGE_CHILDREN)
    start_s = start.ru_utime + start.ru_stime - after.ru_utime - after.ru_stime
    assert used_s - start_s < 1.0


async def test_an_endpoint_that_was_never_reached_ends_the_job_at_once(tmp_path: Path) -> None:
    done = await collect(f"http://127.0.0.1:{free_port()}/v1", tmp_path)
    assert done.code == 1
    assert done.stderr.startswith("policy_model cannot be used: http://127.0.0.1:")
    assert done.stderr.endswith("Connection refused. Is the endpoint running? Check policy_base_url.\n")
    assert os.listdir(tmp_path) == []


async def test_the_same_refusal_after_a_success_fails_only_its_rollouts(tmp_path: Path) -> None:
    asked = 0

    def reply(_request: Any) -> Any:
        nonlocal asked
        asked += 1
        response = {"id": "r", "created_at": 0, "model": "m", "object": "response", "parallel_tool_calls": True}
        message = {"id": "m", "type": "message", "role": "assistant", "status": "completed"}
        text = {"type": "output_text", "text": "Take a coat.", "annotations": []}
        done = {**response, "tool_choice": "auto", "tools": [], "output": [{**message, "content": [text]}]}
        return done if asked == 1 else (401, {"error": {"message": f"Incorrect API key sk-{asked}"}})

    async with stub_endpoint(reply) as stub:
        done = await collect(stub.url, tmp_path, "+num_samples_in_parallel=1", "+max_attempts=2")
    assert done.code == 1
    assert asked == 5
    assert "4 of 5 rollouts failed:\n  4× policy_model: 401 " in done.stderr
    assert (tmp_path / "out.jsonl").read_bytes().count(b"\n") == 1


def test_each_mistake_in_the_input_is_named(tmp_path: Path) -> None:
    scripted = "responses_api_models/scripted_model/configs/scripted_model.yaml"
    arguments = (
        f"+config_paths=[{WEATHER}/configs/simple_weather.yaml,{scripted}]",
        "+output_jsonl_fpath=out.jsonl",
        "+head_server.port=1",
    )
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"responses_create_params": \nnot a row\n\n{"nothing": 1}\n')
    agent = "+agent_name=simple_weather_simple_agent"
    bad = ng("ng_collect_rollouts", *arguments, agent, "+input_jsonl_fpath=rows.jsonl", cwd=tmp_path)
    assert bad.returncode == 1
    assert "row 1: simple_weather_simple_agent: 422 Invalid JSON" in bad.stderr
    assert re.search(r"rows\.jsonl:2 .*not JSON", bad.stderr)
    assert "row 3: simple_weather_simple_agent: 422 responses_create_params: Field required" in bad.stderr
    assert "Scored rollouts" not in bad.stdout

    example = f"+input_jsonl_fpath={WEATHER}/data/example.jsonl"
    no_agent = ng("ng_collect_rollouts", *arguments, example, cwd=tmp_path)
    assert no_agent.returncode == 2
    assert "Pass +agent_name=<agent>; agents: simple_weather_simple_agent." in no_agent.stderr

    rows.write_text("\n \n")
    empty = ng(
        "ng_collect_rollouts", *arguments, agent, "+input_jsonl_fpath=rows.jsonl", "-o", "no.jsonl", cwd=tmp_path
    )
    assert (empty.returncode, f"{rows} has no rows" in empty.stderr) == (2, True)
    assert not (tmp_path / "no.jsonl").exists()

    for start, line in (
        (b"\x1f\x8b", "with gunzip"),
        (b"\xef\xbb\xbf{}", "byte order mark. Save it as UTF-8 without BOM"),
    ):
        rows.write_bytes(start)
        done = ng("ng_collect_rollouts", *arguments, agent, "+input_jsonl_fpath=rows.jsonl", cwd=tmp_path)
        assert (done.returncode, line in done.stderr) == (2, True)

    (tmp_path / "rows.csv").write_text("prompt,answer\nhi,1\n")
    table = ng("ng_collect_rollouts", *arguments, agent, "+input_jsonl_fpath=rows.csv", cwd=tmp_path)
    assert (table.returncode, "ng_import +input_fpath=" in table.stderr) == (2, True)

    unset = ng("ng_collect_rollouts", *arguments, agent, example, "+other=${unset}", cwd=tmp_path)
    assert unset.returncode == 2
    assert unset.stderr.startswith("Interpolation key 'unset' not found: other is '${unset}'. Set 'unset: <value>'")

    for override, line in (
        ("+responses_create_params.temperature=hot", "- temperature: Input should be a valid number"),
        ("+responses_create_params.temprature=1", "- temprature: There is no such key. Did you mean 'temperature'?"),
    ):
        done = ng("ng_collect_rollouts", *arguments, agent, example, override, cwd=tmp_path)
        assert done.returncode == 2
        assert line in done.stderr
