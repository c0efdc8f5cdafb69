import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.base_responses_api_model import (
    CaptureStore,
    ModelCallRecord,
    aggregate_model_call_metrics,
    merge_model_call_capture_into_record,
    read_model_call_records,
)
from nemo_gym.client.call_log import Call, call_name
from nemo_gym.client.server_client import ServerClient
from nemo_gym.errors import ConfigError
from nemo_gym.server.model_call_capture import capture_calls
from nemo_gym.testing import client_for
from responses_api_models.scripted_model.app import ScriptedModel


def client_of(folder: Path) -> ServerClient:
    return ServerClient(global_config_dict={"observability_enabled": True, "model_call_capture_dir": str(folder)})


async def test_calls_are_captured_by_the_path_in_every_dialect(tmp_path: Path) -> None:
    asked: dict[str, dict[str, Any]] = {
        "/v1/responses": {"input": "Hi."},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi."}], "stream": True},
        "/training-token-capture/v1/messages": {"max_tokens": 5, "messages": [{"role": "user", "content": "Hi."}]},
    }
    async with client_for(ScriptedModel, server_client=client_of(tmp_path), replies=[{"say": "Hello."}]) as model:
        for path, body in asked.items():
            assert (await model.post(f"/ng-rollout/3-1{path}", json=body)).status == 200
        assert (await model.post("/v1/responses", json=asked["/v1/responses"])).status == 200
        assert (await model.post("/ng-rollout/..%2e/v1/responses", json=asked["/v1/responses"])).status == 200
    calls = read_model_call_records(tmp_path, "3-1")
    assert [call.dialect for call in calls] == ["responses", "chat_completions", "responses"]
    assert calls[0].request == {"input": "Hi."}
    assert calls[0].response_id == calls[0].response["id"]
    assert os.listdir(tmp_path) == ["3-1.capture.jsonl"]
    record = merge_model_call_capture_into_record({"reward": 1.0}, tmp_path, "3-1")
    assert record["reward"] == 1.0
    assert record["ng_model_call_capture"]["metrics"]["num_calls"] == 3
    assert record["ng_model_call_capture"]["gaps"] == []


async def test_a_call_that_fails_is_captured_too(tmp_path: Path) -> None:
    replies = [{"user": "Fail", "status": 500}, {"say": "Hello."}]
    async with client_for(ScriptedModel, server_client=client_of(tmp_path), replies=replies) as model:
        await model.post("/ng-rollout/x/v1/responses", json={"input": "Fail."})
    (call,) = read_model_call_records(tmp_path, "x")
    assert aggregate_model_call_metrics([call])["num_failed_calls"] == float(call.error is not None)
    assert call.error or call.response["error"]


async def test_a_call_that_is_cancelled_is_captured(tmp_path: Path) -> None:
    from nemo_gym.rollout_correlation import rollout_context

    async def endless(body: dict[str, Any]) -> None:
        await asyncio.sleep(60)

    handler = capture_calls(endless, CaptureStore(tmp_path), server="m", path="/v1/responses")
    with rollout_context("y"):
        task = asyncio.create_task(handler(body={"input": "Hi."}))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    (call,) = read_model_call_records(tmp_path, "y")
    assert call.error == "CancelledError()"


def test_a_line_that_was_not_finished_is_left_out(tmp_path: Path) -> None:
    store = CaptureStore(tmp_path)
    name = f"{call_name('m', '/v1/chat/completions', b'{}')} id"
    store.append(Call(name=name, request="{}", reply="[1]", started_at=5.0, seconds=0.25, attempt_id="a"))
    with store.path("a").open("ab") as file:
        file.write(b'{"rollout_id": "a"')
    (call,) = store.read("a")
    assert (call.model_call_id, call.rollout_id, call.model_ref, call.dialect) == ("id", "a", "m", "chat_completions")
    assert (call.started_at, call.duration_ms, call.request, call.response, call.error) == (5.0, 250.0, {}, [1], None)
    assert store.read("b") == []
    with pytest.raises(ValueError, match="not the id"):
        store.read("../a")


def test_calls_that_an_earlier_version_captured_are_read(tmp_path: Path) -> None:
    call = ModelCallRecord(rollout_id="a", model_ref="m", dialect="responses", started_at=0, duration_ms=1)
    CaptureStore(tmp_path).path("a").write_text(call.model_dump_json() + "\n")
    assert read_model_call_records(tmp_path, "a") == [call]


def test_the_folder_is_required(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="absolute path"):
        CaptureStore.of(ServerClient(global_config_dict={"observability_enabled": True}))
    assert CaptureStore.of(ServerClient()) is None
