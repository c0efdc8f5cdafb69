"""Behaviours that folders of the public package rely on, beyond names and arguments."""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from nemo_gym.base_resources_server import BaseVerifyRequest, BaseVerifyResponse, SimpleResourcesServer
from nemo_gym.base_responses_api_agent import BaseResponsesAPIAgentConfig, SimpleResponsesAPIAgent
from nemo_gym.base_responses_api_model import (
    CaptureStore,
    ModelCallRecord,
    merge_model_call_capture_into_record,
    read_model_call_records,
)
from nemo_gym.client.server_client import ServerClient
from nemo_gym.judge import JudgeError, judge_failsafe
from nemo_gym.openai_utils import (
    REQUIRED_TOKEN_METADATA_FIELDS,
    TOKEN_METADATA_FIELDS,
    NeMoGymAsyncOpenAI,
    NeMoGymResponseFunctionToolCall,
    NeMoGymResponseOutputMessage,
    NeMoGymResponseUsage,
)
from nemo_gym.responses_converter import ResponsesConverter
from nemo_gym.rollout_observability import AgentInvocation, ToolCallObservation
from nemo_gym.sandbox.agent_tools import restricted_network_policy, sandbox_server_url
from nemo_gym.sandbox.contract import SandboxSpec
from nemo_gym.sandbox.providers.local import LocalProvider
from nemo_gym.testing import example_row, says
from tests.stub_endpoint import completion

MESSAGE = {"id": "m", "content": [{"type": "output_text", "text": "Hi.", "annotations": []}]}


class Echo(SimpleResourcesServer):
    async def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse:
        if "break" in str(body.responses_create_params.input):
            raise ValueError("the verifier broke")
        return BaseVerifyResponse(**body.model_dump(), reward=1.0)


class Judged(SimpleResourcesServer):
    @judge_failsafe
    async def verify(self, body: BaseVerifyRequest) -> float:
        raise JudgeError("no verdict")


class Agent(SimpleResponsesAPIAgent):
    async def responses(self, body: dict[str, Any]) -> Any:
        return body

    async def run(self, body: dict[str, Any]) -> Any:
        return body


def environment(kind: type[SimpleResourcesServer]) -> TestClient:
    settings = {"name": "environment", "host": "127.0.0.1", "port": 0, "entrypoint": "app.py", "domain": "other"}
    config = kind.config_class().model_validate(settings)
    return TestClient(kind(config=config, server_client=ServerClient()).setup_webserver())


def agent(*, token_id_capture: bool = False, **settings: Any) -> Agent:
    fields = {"name": "agent", "host": "127.0.0.1", "port": 0, "entrypoint": "app.py"}
    config = BaseResponsesAPIAgentConfig.model_validate({**fields, "token_id_capture": token_id_capture})
    return Agent(config=config, server_client=ServerClient(global_config_dict=settings))


def verify(kind: type[SimpleResourcesServer], text: str = "Hi.") -> Any:
    row = {**example_row(text), "response": says("Hello.")}
    body = json.dumps(row)
    return environment(kind).post("/verify", content=body, headers={"Content-Type": "application/json"})


def test_an_invocation_takes_items_as_objects() -> None:
    item = NeMoGymResponseOutputMessage.model_validate(MESSAGE)
    observed = AgentInvocation(invocation_id="root", conversation=[item])
    assert observed.model_dump(mode="json")["conversation"][0]["content"][0]["text"] == "Hi."


def test_times_of_observations_are_seconds() -> None:
    observed = ToolCallObservation(invocation_id="root", tool_call_id="c1", started_at=1.5, completed_at=2.5)
    assert (observed.started_at, observed.model_dump()["completed_at"]) == (1.5, 2.5)


def test_usage_of_no_call_is_zero_and_its_details_are_the_known_ones() -> None:
    usage = NeMoGymResponseUsage.sum_from_list([]).model_dump()
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (0, 0, 0)
    assert usage["input_tokens_details"] == {"cached_tokens": 0}
    assert usage["output_tokens_details"] == {"reasoning_tokens": 0}


@pytest.mark.parametrize(
    ("params", "path"), [({"rollout_id": "3-1"}, "/ng-rollout/3-1/run"), ({}, "/run"), (None, "/run"), (7, "/run")]
)
def test_only_a_mapping_of_path_parameters_has_a_rollout(params: Any, path: str) -> None:
    request: Any = SimpleNamespace() if params is None else SimpleNamespace(path_params=params)
    assert agent().url_path_for_request("/run", request) == path


def test_calls_are_assigned_to_rollouts_as_the_configuration_of_the_run_says() -> None:
    row = {"_ng_rollout_id": "7-2"}
    url = "http://model"
    assert agent(token_id_capture=True).base_url_for_run(base_url=url, body=row) == url
    assert agent(observability_enabled=True).base_url_for_run(url, row) == f"{url}/ng-rollout/7-2"
    of_run = agent(token_id_capture=True, token_id_capture_block=True)
    assert not of_run._capture_correlation_enabled()
    captures = Agent(
        config=agent(token_id_capture=True).config,
        server_client=ServerClient(global_config_dict={"token_id_capture": {"enabled": True}}),
    )
    assert captures.base_url_for_run(url, row) == f"{url}/ng-rollout/7-2/training-token-capture"


def test_errors_of_handlers_leave_an_app_that_nobody_serves() -> None:
    with pytest.raises(ValueError, match="the verifier broke"):
        verify(Echo, "break")


def test_a_failed_judge_is_a_marked_reply() -> None:
    reply = verify(Judged)
    assert reply.status_code == 200
    assert reply.json()["failure_kind"] == "judge_failed"
    assert reply.json()["mask_sample"] is True


def test_token_fields_are_sets() -> None:
    assert isinstance(REQUIRED_TOKEN_METADATA_FIELDS, frozenset)
    assert REQUIRED_TOKEN_METADATA_FIELDS < TOKEN_METADATA_FIELDS


def test_calls_can_be_recorded_and_merged_into_a_record(tmp_path: Path) -> None:
    store = CaptureStore(tmp_path)
    store.record("0-0", {"model_call_id": "c1", "dialect": "messages", "request": {"a": 1}, "response": {"id": "r1"}})
    (call,) = read_model_call_records(store, "0-0")
    assert (call.model_call_id, call.response_id) == ("c1", "r1")
    record: dict[str, Any] = {"_ng_rollout_id": "0-0"}
    merge_model_call_capture_into_record(record, [tmp_path / "none", tmp_path], include_payloads=False)
    (merged,) = record["ng_model_call_capture"]["calls"]
    assert (merged["model_call_id"], merged["request"]) == ("c1", None)
    assert ModelCallRecord.model_validate({"model_call_id": "c2"}).rollout_id == ""


def test_ids_of_converted_replies_are_made_where_tests_replace_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nemo_gym.responses_converter.uuid4", lambda: SimpleNamespace(hex="1"))
    converter = ResponsesConverter(return_token_id_information=False)
    params = converter.chat_completion_to_responses_create_params
    message: Any
    empty: Any
    (message,) = converter.postprocess_assistant_message_dict({"role": "assistant", "content": "Hi."})
    assert (message.id, callable(params)) == ("msg_1", True)
    (empty,) = converter.postprocess_assistant_message_dict({"role": "assistant", "content": None})
    assert empty.content[0].text == ""


def test_a_function_call_has_a_namespace() -> None:
    call = NeMoGymResponseFunctionToolCall(call_id="c", name="look", arguments="{}")
    assert call.model_dump()["namespace"] is None


def test_attempts_of_a_client_have_two_names() -> None:
    client = NeMoGymAsyncOpenAI(base_url="http://m", api_key="k", max_http_attempts=5)
    assert (client.max_tries, client.max_http_attempts) == (5, 5)


def test_a_policy_of_the_network_names_hosts_that_a_sandbox_can_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = restricted_network_policy("opensandbox", ["http://a.example:1", "http://b.example"])
    allowed = [{"action": "allow", "target": "a.example"}, {"action": "allow", "target": "b.example"}]
    assert policy == {"defaultAction": "deny", "egress": allowed}
    for host in ("localhost", "127.0.0.2", "0.0.0.0", "[::1]"):
        with pytest.raises(ValueError, match="reachable"):
            restricted_network_policy("opensandbox", [f"http://{host}:8000"])
    monkeypatch.setattr("nemo_gym.sandbox.agent_tools.get_server_url", lambda _name: "http://0.0.0.0:9000")
    assert sandbox_server_url("model") == "http://127.0.0.1:9000"


async def test_the_provider_local_runs_commands_in_a_folder(tmp_path: Path) -> None:
    provider = LocalProvider(workspace_root=str(tmp_path), default_timeout_s=30)
    handle = await provider.create(SandboxSpec(files={"/work/a.txt": "6"}, env={"N": "7"}))
    done = await provider.exec(handle, "echo $(cat work/a.txt)$N > out.txt; exit 3")
    assert (done.return_code, done.stderr) == (3, "")
    await provider.download_file(handle, "/out.txt", tmp_path / "copy.txt")
    assert (tmp_path / "copy.txt").read_text() == "67\n"
    late = await provider.exec(handle, "sleep 60", timeout_s=0.2)
    assert (late.error_type, late.return_code) == ("timeout", 124)
    with pytest.raises(ValueError, match="nobody"):
        await provider.exec(handle, "true", user="nobody")
    await provider.close(handle)
    assert os.listdir(tmp_path) == ["copy.txt"]


def test_a_completion_keeps_its_time_when_it_is_converted() -> None:
    from nemo_gym.llm_api.chat import NeMoGymChatCompletion
    from nemo_gym.llm_api.responses import NeMoGymResponseCreateParamsNonStreaming

    found = NeMoGymChatCompletion.model_validate({**completion("Hi."), "created": 17})
    request = NeMoGymResponseCreateParamsNonStreaming(input="Hi.")
    converter = ResponsesConverter(return_token_id_information=False)
    converted = converter.chat_completion_to_response(responses_create_params=request, chat_completion=found)
    assert converted.created_at == 17
