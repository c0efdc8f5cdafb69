"""What a trainer does: start servers with a dictionary, run rows with several endpoints, read results and errors."""

import asyncio
import pickle
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.cli import GlobalConfigDictParserConfig, RunHelper
from nemo_gym.errors import RolloutError
from nemo_gym.rollout_collection import RolloutCollectionHelper
from nemo_gym.server_utils import HEAD_SERVER_KEY_NAME, BaseServerConfig, ServerClient
from tests.commands import free_port
from tests.stub_endpoint import Request, completion, stub_endpoint

ENVIRONMENT = """
import asyncio

from nemo_gym.base_resources_server import BaseMultiRewardVerifyResponse, BaseVerifyRequest, SimpleResourcesServer


class Masked(BaseMultiRewardVerifyResponse):
    instance_config: dict = {}


class Env(SimpleResourcesServer):
    async def verify(self, body: BaseVerifyRequest) -> Masked:
        asked = str(body.responses_create_params.input)
        if "Sleep" in asked:
            await asyncio.sleep(60)
        if "Break" in asked:
            raise RuntimeError("the verifier broke")
        return Masked(
            **body.model_dump(),
            reward=1.0,
            reward_components={"a": 1.0},
            instance_config={"mask_sample": True},
        )


if __name__ == "__main__":
    Env.run_webserver()
"""
AGENT = """
from nemo_gym.base_resources_server import BaseRunRequest
from nemo_gym.base_responses_api_agent import SimpleResponsesAPIAgent
from nemo_gym.config_types import ModelServerRef, ResourcesServerRef
from nemo_gym.base_responses_api_agent import BaseResponsesAPIAgentConfig
from nemo_gym.server_utils import get_response_json, raise_for_status


class Config(BaseResponsesAPIAgentConfig):
    resources_server: ResourcesServerRef
    model_server: ModelServerRef


class Agent(SimpleResponsesAPIAgent):
    config: Config

    async def responses(self, body: dict) -> dict:
        reply = await self.server_client.post(
            server_name=self.config.model_server.name, url_path="/v1/responses", json=body
        )
        await raise_for_status(reply)
        return await get_response_json(reply)

    async def run(self, body: BaseRunRequest) -> dict:
        response = await self.responses(body.responses_create_params.model_dump(exclude_unset=True))
        response["agent_input"] = "as it was"
        reply = await self.server_client.post(
            server_name=self.config.resources_server.name,
            url_path="/verify",
            json={**body.model_dump(exclude_unset=True), "response": response},
        )
        await raise_for_status(reply)
        return await get_response_json(reply)


if __name__ == "__main__":
    Agent.run_webserver()
"""


def reply(request: Request) -> Any:
    text = str(request.body["messages"])
    for status in (400, 401, 404, 429, 500):
        if f"Fail {status}" in text:
            return status, {"error": {"message": f"no {status}"}}
    made = completion("Hi.", prompt_token_ids=[1, 2])
    made["choices"][0] |= {"token_ids": [3], "logprobs": {"content": [{"token": "token_id:3", "logprob": -0.5}]}}
    made["choices"][0]["message"]["routed_experts"] = [[[1, 2]]]
    return made


def config_of(urls: list[str], port: int) -> dict[str, Any]:
    def block(kind: str, name: str, **more: Any) -> dict[str, Any]:
        return {kind: {name: {"entrypoint": "app.py", **more}}}

    def ref(kind: str, name: str) -> dict[str, str]:
        return {"type": kind, "name": name}

    return {
        HEAD_SERVER_KEY_NAME: {"host": "127.0.0.1", "port": port},
        "policy_base_url": urls,
        "policy_api_key": "dummy",
        "policy_model_name": "m",
        "uv_cache_dir": "uv-cache",
        "uv_venv_dir": "venvs",
        "skip_venv_if_present": True,
        "port_range_low": 20001,
        "port_range_high": 20499,  # beyond are ports of other tests
        "policy_model": block(
            "responses_api_models",
            "vllm_model",
            base_url="${policy_base_url}",
            api_key="${policy_api_key}",
            model="${policy_model_name}",
            return_token_id_information=True,
            uses_reasoning_parser=False,
            max_tries=1,
        ),
        "env": block("resources_servers", "masked", domain="other"),
        "agent": block(
            "responses_api_agents",
            "passing",
            resources_server=ref("resources_servers", "env"),
            model_server=ref("responses_api_models", "policy_model"),
        ),
    }


@pytest.mark.slow
async def test_rows_of_a_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("resources_servers/masked", ENVIRONMENT), ("responses_api_agents/passing", AGENT)):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "app.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    async with stub_endpoint(reply) as one, stub_endpoint(reply) as other:
        helper, port = RunHelper(), free_port()
        parser = GlobalConfigDictParserConfig(
            initial_global_config_dict=config_of([one.url, other.url], port),
            skip_load_from_cli=True,
            skip_load_from_dotenv=True,
        )
        await asyncio.to_thread(helper.start, parser)
        try:
            await use(port)
        finally:
            await asyncio.to_thread(helper.shutdown)
        assert one.requests
        assert other.requests


def status_of(error: RolloutError) -> int:
    """As a trainer reads it, in another process."""
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again.response_content, bytes)
    assert again.response_content
    assert str(again) == str(error)
    return int(again.status)


async def use(port: int) -> None:
    head = BaseServerConfig(host="127.0.0.1", port=port)
    texts = ["Hi.", "Hi again.", "Fail 400", "Fail 401", "Fail 404", "Fail 429", "Fail 500", "Break"]
    rows: list[dict[str, Any]] = [
        {
            "responses_create_params": {"input": text},
            "agent_ref": {"name": "agent"},
            "_rowidx": index,
            "_ng_task_index": 10 + index,
            "_ng_rollout_index": 0,
        }
        for index, text in enumerate(texts)
    ]
    rows.append({**rows[0], "responses_create_params": {"input": 7}})
    rows.append({**rows[0], "agent_ref": {"name": "unset"}})
    rows.append({**rows[0], "agent_ref": None})
    results: dict[int, dict[str, Any]] = {}
    statuses: list[int] = []
    for task in RolloutCollectionHelper().run_examples(rows, head_server_config=head):
        try:
            row, result = await task
            results[row["_rowidx"]] = result
        except RolloutError as error:
            statuses.append(status_of(error))
    endpoint, verifier, rows_that_are_none = [400, 401, 404, 429, 500], [500], [422, 422, 422]
    assert sorted(statuses) == sorted([*endpoint, *verifier, *rows_that_are_none])
    late = {**rows[0], "responses_create_params": {"input": "Sleep"}}
    (task,) = RolloutCollectionHelper().run_examples([late], head_server_config=head, rollout_timeout_s=1)
    with pytest.raises(RolloutError) as caught:
        await task
    assert status_of(caught.value) == 504
    assert set(results) == {0, 1}
    for index, result in results.items():
        assert (result["_rowidx"], result["_ng_task_index"]) == (index, 10 + index)
        assert (result["reward"], result["reward_components"]) == (1.0, {"a": 1.0})
        assert result["instance_config"]["mask_sample"] is True
        assert result["response"]["agent_input"] == "as it was"
        (item,) = result["response"]["output"]
        assert (item["generation_token_ids"], item["routed_experts"]) == ([3], [[[1, 2]]])


@pytest.mark.slow
def test_without_an_event_loop_the_results_are_there_and_an_agent_that_is_down_is_503() -> None:
    client = ServerClient(addresses={"agent": f"http://127.0.0.1:{free_port()}"})
    rows = [{"agent_ref": {"name": "agent"}}, {}]
    tasks = list(RolloutCollectionHelper().run_examples(rows, client=client))
    errors: list[Any] = [task.exception() for task in tasks]
    assert sorted(map(status_of, errors)) == [422, 503]
