"""Real commands against an endpoint that sends back all it was sent: no value of `env.yaml` is
on the screen, in logs, error texts, manifests and metrics."""

import asyncio
import base64
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from nemo_gym.client.server_client import get_from_head
from tests.commands import free_port, ng, started
from tests.polling import PATIENCE_S
from tests.stub_endpoint import Request, stub_endpoint

WEATHER = "resources_servers/example_simple_weather"
MODEL = "policy_model.responses_api_models.openai_model"
API_KEY = 'sk-test-"quoted"/1234567890'
CUSTOM = "hunter2-long-secret"
LISTED = "listed-value-12345"
SECRETS = (
    *(API_KEY, json.dumps(API_KEY)[1:-1], json.dumps(json.dumps(API_KEY))[3:-3], quote(API_KEY, safe="")),
    *(CUSTOM, base64.b64encode(f"user:{CUSTOM}".encode()).decode()[8:-4], LISTED),
)


def dotenv(url: str) -> str:
    values = {"policy_base_url": url, "policy_api_key": API_KEY, "policy_model_name": "my-model-8b", "foo": CUSTOM}
    return json.dumps({**values, "bar": [LISTED], "letter": "e"})


def echo(request: Request) -> Any:
    """An answer, or for one city an error, that holds all headers."""
    sent = dict(request.headers)
    basic = base64.b64encode(f"user:{CUSTOM}".encode()).decode()
    text = f"{json.dumps(sent)} {quote(API_KEY, safe='')} Basic {basic}\n12:00:00 ERROR forged \x1b[31m"
    if "Bergen" in json.dumps(request.body):
        return 400, {"error": {"message": text, "code": "bad"}}
    message = {"role": "assistant", "content": [{"type": "output_text", "text": text, "annotations": []}]}
    output = [{"type": "message", "id": "m", "status": "completed", **message}]
    return {"id": "r", "created_at": 1, "model": "my-model-8b", "object": "response", "output": output} | {
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }


def arguments(*more: str) -> tuple[str, ...]:
    files = f"{WEATHER}/configs/simple_weather.yaml,responses_api_models/openai_model/configs/openai_model.yaml"
    sent = (f"+{MODEL}.default_headers.X-Custom=${{foo}}", f"+{MODEL}.default_headers.X-Listed=${{bar.0}}")
    return f"+config_paths=[{files}]", *sent, f"+head_server.port={free_port()}", *more


def leaks(text: str) -> list[str]:
    return [secret for secret in SECRETS if secret in text]


def written_below(folder: Path) -> dict[Path, str]:
    return {path: path.read_text() for path in folder.rglob("*") if path.is_file() and path.name != "env.yaml"}


@pytest.mark.parametrize("isolation", ["shared", "process"])
async def test_a_collection_prints_no_secret_and_writes_none_but_in_what_the_model_said(
    isolation: str, tmp_path: Path
) -> None:
    async with stub_endpoint(echo) as stub:
        (tmp_path / "env.yaml").write_text(dotenv(stub.url))
        record = ("+record=traffic",) if isolation == "shared" else ()
        done = await asyncio.to_thread(
            ng,
            "ng_collect_rollouts",
            *arguments(f"+{MODEL}.isolation={isolation}", "+agent_name=simple_weather_simple_agent", *record),
            f"+input_jsonl_fpath={WEATHER}/data/example.jsonl",
            "+output_jsonl_fpath=out.jsonl",
            cwd=tmp_path,
        )
    assert {(sent.headers["X-Custom"], sent.headers["X-Listed"]) for sent in stub.requests} == {(CUSTOM, LISTED)}
    written = written_below(tmp_path)
    records = [json.loads(line) for line in written[tmp_path / "out.jsonl"].splitlines()]
    assert len(records) == 4
    assert {record["response"]["model"] for record in records} == {"my-model-8b"}
    failures = [json.loads(line) for line in written[tmp_path / "out_failures.jsonl"].splitlines()]
    assert "****" in failures[0]["message"]
    for said in ("out.jsonl", "traffic/traffic.jsonl"):  # what the model said, as it said it
        written.pop(tmp_path / said, None)
    assert {path: leaks(text) for path, text in written.items() if leaks(text)} == {}
    assert leaks(done.stdout + done.stderr) == []
    assert "\x1b" not in done.stderr
    assert not any(line.startswith("12:00:00 ERROR forged") for line in done.stderr.splitlines())


async def test_a_collection_that_does_not_know_the_secrets_of_a_run_has_none_in_its_failures(tmp_path: Path) -> None:
    run_folder, collector_folder = tmp_path / "run", tmp_path / "collector"
    run_folder.mkdir()
    collector_folder.mkdir()
    async with stub_endpoint(echo) as stub:
        (run_folder / "env.yaml").write_text(dotenv(stub.url))
        printed = await asyncio.to_thread(_collect_elsewhere, arguments(), run_folder, collector_folder)
    written = written_below(collector_folder)
    assert len(written.pop(collector_folder / "out.jsonl").splitlines()) == 4
    assert "****" in written[collector_folder / "out_failures.jsonl"]
    assert {path: leaks(text) for path, text in written.items() if leaks(text)} == {}
    assert leaks(printed) == []


def _collect_elsewhere(command_arguments: tuple[str, ...], run_folder: Path, folder: Path) -> str:
    head = next(word for word in command_arguments if "head_server.port" in word)
    with started("ng_run", *command_arguments, cwd=run_folder) as run:
        run.wait_for("servers ready")
        rows = f"+input_jsonl_fpath={WEATHER}/data/example.jsonl"
        agent, output = "+agent_name=simple_weather_simple_agent", "+output_jsonl_fpath=out.jsonl"
        done = ng("ng_collect_rollouts", head, agent, rows, output, "--json", cwd=folder)
        return done.stdout + done.stderr


async def test_a_run_sends_no_secret_over_http(tmp_path: Path) -> None:
    async with stub_endpoint(echo) as stub:
        (tmp_path / "env.yaml").write_text(dotenv(stub.url))
        printed = await asyncio.to_thread(_ask_a_run, arguments(), tmp_path)
    assert "forged" in printed
    assert leaks(printed) == []
    assert "my-model-8b" in printed


def _ask_a_run(command_arguments: tuple[str, ...], folder: Path) -> str:
    """Everything that a run prints, and that its head and its model server answer."""
    head = next(word for word in command_arguments if "head_server.port" in word).partition("=")[2]
    with started("ng_run", *command_arguments, cwd=folder) as run:
        run.wait_for("servers ready")
        url = f"http://127.0.0.1:{head}"
        answers = [get_from_head(url, path).decode() for path in ("/global_config_dict_yaml", "/server_instances")]
        servers = {server["name"]: server["url"] for server in json.loads(answers[1])}
        answers += [_post(servers["openai_model"], body) for body in ({"input": "Bergen"}, {"input": 3}, CUSTOM)]
        dumped = ng("ng_dump_config", *command_arguments, cwd=folder)
        return "\n".join([run.text, *answers, dumped.stdout, dumped.stderr])


def _post(url: str, body: Any) -> str:
    import httpx

    return httpx.post(f"{url}/v1/responses", json=body, trust_env=False, timeout=PATIENCE_S).text


def test_a_traceback_holds_no_secret(tmp_path: Path) -> None:
    folder = tmp_path / "resources_servers" / "broken"
    folder.mkdir(parents=True)
    (folder / "app.py").write_text("import yaml\nraise KeyError(yaml.safe_load(open('env.yaml'))['foo'])\n")
    block = {"broken": {"resources_servers": {"broken": {"entrypoint": "app.py", "domain": "other"}}}}
    (tmp_path / "broken.yaml").write_text(json.dumps(block))
    (tmp_path / "env.yaml").write_text(dotenv("http://127.0.0.1:1/v1"))
    (tmp_path / "rows.jsonl").write_text('{"responses_create_params": {"input": "Hi."}}\n')
    for command in (["ng_run"], ["ng_check_verifier", "+input_jsonl_fpath=rows.jsonl"]):
        done = ng(*command, "+config_paths=[broken.yaml]", f"+head_server.port={free_port()}", cwd=tmp_path)
        assert done.returncode != 0
        assert "KeyError" in done.stderr
        assert leaks(done.stdout + done.stderr) == []
