"""An error response says whether another attempt can help, and the collector acts on it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from fastapi import FastAPI, HTTPException

from nemo_gym.base_resources_server import BaseVerifyRequest, SimpleResourcesServer
from nemo_gym.client.reply import ServerReply, parse_error
from nemo_gym.compat.fastapi_servers import redact_errors
from nemo_gym.compute.pool import ComputeError
from nemo_gym.config.loading import load_config
from nemo_gym.config.secrets import Secrets, set_process_secrets
from nemo_gym.errors import ConfigError, RolloutError, SessionLostError, UpstreamError
from nemo_gym.rollouts.collector import RolloutCollectionHelper
from nemo_gym.rollouts.config import RolloutCollectionConfig
from nemo_gym.rollouts.store import failures_path
from nemo_gym.runtime.launcher import Launcher
from nemo_gym.server.error_responses import failure_of, redact_body
from nemo_gym.testing import client_for, example_row, response_of, rows_of
from tests.stacks import agent_config

MORTAL = """
import os
from pathlib import Path

from nemo_gym.base_resources_server import BaseVerifyRequest, SimpleResourcesServer

class MortalResourcesServer(SimpleResourcesServer):
    async def verify(self, body: BaseVerifyRequest) -> float:
        if body.responses_create_params.input == "raise":
            raise KeyError("no such answer")
        died_once = Path(__file__).parent / "died"
        if not died_once.exists():
            died_once.touch()
            os._exit(3)
        return 1.0
"""
CONFIG = agent_config("mortal", isolation="process", replies=[{"say": "Done."}])


class Failing(SimpleResourcesServer):
    async def verify(self, body: BaseVerifyRequest) -> float:
        raise ERRORS[str(body.responses_create_params.input)]


unpicklable = ComputeError("returned a function, which cannot be pickled")
unpicklable.is_retryable = False

ERRORS: dict[str, BaseException] = {
    "own code": KeyError("no such answer"),
    "exit": SystemExit(0),
    "cancelled task": asyncio.CancelledError(),
    "compute worker": ComputeError("its worker ended with signal SIGKILL"),
    "compute function": unpicklable,
    "another server": UpstreamError("judge", 0, "connection refused"),
    "judge": RolloutError("judge", "no verdict"),
    "no such server": ConfigError("No server is called 'jugde'."),
    "set": RolloutError("verifier", "try later", retryable=True),
    "session": SessionLostError("gone"),
}


@pytest.mark.parametrize(
    ("name", "cause", "retryable"),
    [
        ("own code", "verifier", False),
        ("exit", "verifier", False),
        ("cancelled task", "verifier", True),
        ("compute worker", "verifier", True),
        ("compute function", "verifier", False),
        ("another server", "verifier", True),
        ("judge", "judge", True),
        ("no such server", "verifier", False),
        ("set", "verifier", True),
        ("session", "environment", True),
    ],
)
async def test_the_caller_learns_whether_to_retry(name: str, cause: str, retryable: bool) -> None:
    row = {"responses_create_params": {"input": name}, "response": response_of()}
    async with client_for(Failing) as client:
        reply = await client.post("/verify", json=row)
    error = ServerReply("test", reply.status, reply.content()).failure("/verify", "verifier")
    assert (error.cause, error.retryable) == (cause, retryable)


@pytest.mark.parametrize(("status", "retryable"), [(429, True), (503, True), (502, True), (500, False), (404, False)])
def test_a_plain_error_of_a_verifier_is_judged_by_its_status(status: int, retryable: bool) -> None:
    assert ServerReply("v", status, b"oops").failure("/verify", "verifier").retryable is retryable


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"null", b"[]", b'{"error": "x"}', b'{"error": {"cause": "bad luck"}}'),
        b'{"error": {"cause": "model", "message": "no", "code": ["x"]}}',
        b'{"error": {"cause": {}, "message": "no"}}',
    ],
)
def test_a_body_that_describes_no_error_of_ours_is_none(body: bytes) -> None:
    assert parse_error(body) is None


async def test_a_verify_whose_server_died_is_retried_and_one_that_raises_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "resources_servers" / "mortal"
    folder.mkdir(parents=True)
    (folder / "app.py").write_text(MORTAL)
    (tmp_path / "config.yaml").write_text(CONFIG)
    rows: list[dict[str, Any]] = [example_row("die"), {"responses_create_params": {"input": "raise"}}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = ["config_paths=[config.yaml]", "head_server={host: 127.0.0.1, port: 0}"]
    launcher = Launcher(load_config(arguments, use_dotenv=False, fill_ports=False), echo=print)
    config = RolloutCollectionConfig(
        agent_name="agent", input_jsonl_fpath="rows.jsonl", output_jsonl_fpath="out.jsonl", num_samples_in_parallel=1
    )
    async with launcher, launcher.client() as client:
        helper = RolloutCollectionHelper()
        metrics = await asyncio.wait_for(helper.run_from_config(config, client=client), 60)
    assert (metrics.scored, metrics.failed) == (1, {"verifier": 1})
    attempts = rows_of(failures_path(tmp_path / "out.jsonl"))
    assert [(failure["_task_index"], failure["attempt"], failure["is_final"]) for failure in attempts] == [
        (0, 1, False),
        (1, 1, True),
    ]


async def test_error_responses_of_a_fastapi_app_hold_no_secret() -> None:
    set_process_secrets(Secrets(frozenset(("hunter2-long-secret",))))
    app = FastAPI()

    @app.get("/{status}")
    async def answer(status: int) -> str:
        if status >= 400:
            raise HTTPException(status, detail="hunter2-long-secret", headers={"x-kept": "1"})
        return "hunter2-long-secret"

    async def wrapped(scope: Any, receive: Any, send: Any) -> None:
        await app(scope, receive, redact_errors(send))

    transport = httpx.ASGITransport(wrapped)
    async with httpx.AsyncClient(transport=transport, base_url="http://app") as client:
        failed = await client.get("/500")
        assert failed.json() == {"detail": "****"}
        assert (failed.headers["x-kept"], failed.headers["content-length"]) == ("1", str(len(failed.content)))
        assert (await client.get("/200")).json() == "hunter2-long-secret"


async def test_the_model_s_response_in_an_error_stays_what_the_model_said() -> None:
    """`ng_reverify` would score a masked one. It is masked, and marked, where it is written."""
    set_process_secrets(Secrets(frozenset(("hunter2-long-secret",))))
    error = RolloutError("verifier", "no verdict on hunter2-long-secret")
    error.response = {"output": [{"text": "hunter2-long-secret, see https://example.com/?a=b"}]}
    reply = failure_of(error, server="agent", key="run", cause="internal")
    assert orjson.loads(reply.content())["error"]["message"] == "no verdict on ****"
    for content in (reply.content(), redact_body(reply.content())):
        assert orjson.loads(content)["error"]["response"] == error.response
    assert b"hunter2" not in redact_body(b'{"detail":"hunter2-long-secret","error":"x"}')
    assert b"hunter2" not in redact_body(b'{"detail":"hunter2-long-secret","err')
