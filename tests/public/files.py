"""Folders in the style of public environments, agents, models and benchmarks, as their authors write them.

Written for these tests. Each exercises features that such folders rely on; a test writes them to a folder outside the
clone and starts them with the real commands.
"""

ENVIRONMENT = """
import asyncio
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, Dict, List, Optional

from fastapi import FastAPI, Request
from pydantic import BaseModel, ConfigDict

from nemo_gym.base_resources_server import (
    BaseMultiRewardVerifyResponse,
    BaseResourcesServerConfig,
    BaseSeedSessionRequest,
    BaseSeedSessionResponse,
    BaseVerifyRequest,
    ReverifyMode,
    SimpleResourcesServer,
)
from nemo_gym.config_types import ModelServerRef
from nemo_gym.judge import JudgeError, call_judge
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.prompt import fill_prompt, load_prompt_config
from nemo_gym.reward_profile import compute_pass_majority_metrics, compute_subset_metrics, highest_k_metrics
from nemo_gym.server_utils import SESSION_ID_KEY, is_nemo_gym_fastapi_entrypoint

from shelf import price_of


def _text_of(content) -> str:
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content if isinstance(part, dict) and "text" in part)


class ShopConfig(BaseResourcesServerConfig):
    judge_model_server: ModelServerRef
    judge_prompt_fpath: str
    prices_fpath: str
    REVERIFY_MODE = ReverifyMode.STATELESS


class AddRequest(BaseModel):
    name: str


class ShopVerifyRequest(BaseVerifyRequest):
    model_config = ConfigDict(extra="allow")

    total: int
    level: Optional[str] = None


class ShopVerifyResponse(ShopVerifyRequest, BaseMultiRewardVerifyResponse):
    extracted_answer: Optional[str] = None
    cart: List[str] = []


class ShopServer(SimpleResourcesServer):
    config: ShopConfig

    def model_post_init(self, context: Any) -> None:
        self._carts: Dict[str, List[str]] = {}
        self._pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
        with open(self.config.prices_fpath) as prices:
            assert prices.read()

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/add")(self.add)
        return app

    async def seed_session(self, request: Request, body: BaseSeedSessionRequest) -> BaseSeedSessionResponse:
        self._carts[request.session[SESSION_ID_KEY]] = []
        return BaseSeedSessionResponse()

    async def add(self, request: Request, body: AddRequest) -> Dict[str, Any]:
        cart = self._carts[request.session[SESSION_ID_KEY]]
        cart.append(body.name)
        price = await asyncio.get_running_loop().run_in_executor(self._pool, price_of, body.name)
        return {"cart": cart, "price": price}

    async def verify(self, request: Request, body: ShopVerifyRequest) -> ShopVerifyResponse:
        cart = self._carts[request.session[SESSION_ID_KEY]]
        answer = body.response.output_text
        asked = body.responses_create_params.input
        text = "".join(_text_of(message.content) for message in asked)
        assert "buy" in text, "content parts are dicts"
        right = float(str(body.total) in answer)
        polite = await self._judge(answer)
        return ShopVerifyResponse(
            **body.model_dump(),
            reward=right * polite,
            reward_components={"right": right, "polite": polite},
            extracted_answer=answer,
            cart=cart,
        )

    async def _judge(self, answer: str) -> float:
        prompt = fill_prompt(load_prompt_config(self.config.judge_prompt_fpath), {"answer": answer})
        reply = await call_judge(
            self.server_client,
            server_name=self.config.judge_model_server.name,
            url_path="/v1/responses",
            json=NeMoGymResponseCreateParamsNonStreaming(input=prompt),
            response_model=NeMoGymResponse,
        )
        return float("polite" in reply.output_text)

    def compute_metrics(self, tasks: List[List[Dict[str, Any]]]) -> Dict[str, Any]:
        metrics, _, _, _ = compute_pass_majority_metrics(tasks, answer_key="extracted_answer")
        assert all("responses_create_params" not in record for task in tasks for record in task)
        return {**metrics, **compute_subset_metrics(tasks, "level")}

    def get_key_metrics(self, agent_metrics: Dict[str, Any]) -> Dict[str, Any]:
        return highest_k_metrics(agent_metrics, "pass@{k}", score_names=["accuracy"])


if __name__ == "__main__":
    ShopServer.run_webserver()
elif is_nemo_gym_fastapi_entrypoint(__file__):
    app = ShopServer.run_webserver()
"""

SHELF = """
from prices import PRICES


def price_of(name):
    return PRICES[name]
"""

AGENT = """
import json
from typing import List

from fastapi import Body, Request, Response
from pydantic import ConfigDict, ValidationError

from nemo_gym.base_resources_server import (
    AggregateMetrics,
    AggregateMetricsRequest,
    BaseRunRequest,
    BaseVerifyResponse,
)
from nemo_gym.base_responses_api_agent import BaseResponsesAPIAgentConfig, SimpleResponsesAPIAgent
from nemo_gym.config_types import ModelServerRef, ResourcesServerRef
from nemo_gym.global_config import ROLLOUT_INDEX_KEY_NAME, TASK_INDEX_KEY_NAME
from nemo_gym.openai_utils import (
    NeMoGymEasyInputMessage,
    NeMoGymFunctionCallOutput,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseFunctionToolCall,
    NeMoGymResponseOutputMessage,
    accumulate_response_usage,
)
from nemo_gym.rollout_observability import AgentInvocation, AgentObservationBundle
from nemo_gym.server_utils import get_response_json, raise_for_status


class ShopperConfig(BaseResponsesAPIAgentConfig):
    resources_server: ResourcesServerRef
    model_server: ModelServerRef
    max_steps: int = 5


class ShopperRunRequest(BaseRunRequest):
    model_config = ConfigDict(extra="allow")


class Shopper(SimpleResponsesAPIAgent):
    config: ShopperConfig

    async def responses(
        self, request: Request, response: Response, body: NeMoGymResponseCreateParamsNonStreaming = Body()
    ) -> NeMoGymResponse:
        body = body.model_copy(deep=True)
        if isinstance(body.input, str):
            body.input = [NeMoGymEasyInputMessage(role="user", content=body.input)]
        said, usage, cookies = [], None, request.cookies
        for _ in range(self.config.max_steps):
            asked = body.model_copy(update={"input": body.input + said})
            answer = await self.server_client.post(
                server_name=self.config.model_server.name,
                url_path=self.url_path_for_request("/v1/responses", request),
                json=asked,
                cookies=cookies,
            )
            await raise_for_status(answer)
            found = NeMoGymResponse.model_validate(await get_response_json(answer))
            cookies = answer.cookies or cookies
            usage = accumulate_response_usage(usage, found.usage)
            said.extend(found.output)
            calls: List[NeMoGymResponseFunctionToolCall] = [i for i in found.output if i.type == "function_call"]
            if not calls and any(i.type == "message" and i.role == "assistant" for i in found.output):
                break
            for call in calls:
                result = await self.server_client.post(
                    server_name=self.config.resources_server.name,
                    url_path=f"/{call.name}",
                    json=json.loads(call.arguments),
                    cookies=cookies,
                )
                cookies = result.cookies
                said.append(
                    NeMoGymFunctionCallOutput(
                        type="function_call_output",
                        call_id=call.call_id,
                        output=(await result.content.read()).decode(),
                    )
                )
        for name, value in {**request.cookies, **cookies}.items():
            response.set_cookie(name, getattr(value, "value", value))
        found.output, found.usage = said, usage
        return found

    async def run(self, request: Request, body: ShopperRunRequest) -> BaseVerifyResponse:
        seeded = await self.server_client.post(
            server_name=self.config.resources_server.name,
            url_path=self.url_path_for_run("/seed_session", body),
            json=body.model_dump(),
            cookies=request.cookies,
        )
        await raise_for_status(seeded)
        answered = await self.server_client.post(
            server_name=self.config.name,
            url_path="/ng-rollout/7-0/v1/responses",
            json=body.responses_create_params,
            cookies=seeded.cookies,
        )
        await raise_for_status(answered)
        row = body.model_dump()
        verified = await self.server_client.post(
            server_name=self.config.resources_server.name,
            url_path="/verify",
            json={**row, "response": await get_response_json(answered)},
            cookies=answered.cookies,
        )
        await raise_for_status(verified)
        record = await get_response_json(verified)
        seen = AgentObservationBundle(source="shopper", records=[AgentInvocation(invocation_id="main")])
        record["ng_agent_observations"] = seen.model_dump(mode="json")
        record["told_index"] = [row[TASK_INDEX_KEY_NAME], row[ROLLOUT_INDEX_KEY_NAME]]
        record["model_url"] = self.resolve_model_base_url(self.config.model_server.name)
        return record

    async def aggregate_metrics(self, body: AggregateMetricsRequest = Body()) -> AggregateMetrics:
        answer = await self.server_client.post(
            server_name=self.config.resources_server.name, url_path="/aggregate_metrics", json=body
        )
        await raise_for_status(answer)
        return AggregateMetrics.model_validate(await get_response_json(answer))


if __name__ == "__main__":
    Shopper.run_webserver()
"""

MODEL = """
import time

from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, Body, SimpleResponsesAPIModel
from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.responses_converter import ResponsesConverter, split_responses_input_output_items


class EchoConfig(BaseResponsesAPIModelConfig):
    model: str
    verdict: str = "polite"


class Echo(SimpleResponsesAPIModel):
    config: EchoConfig

    def model_post_init(self, context):
        self._converter = ResponsesConverter(return_token_id_information=False)

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> NeMoGymResponse:
        params = self._converter.responses_to_chat_completion_create_params(body)
        _, written = split_responses_input_output_items(body.input if isinstance(body.input, list) else [])
        completion = await self.chat_completions(params.model_copy(update={"n": len(written)}))
        return self._converter.chat_completion_to_response(body, completion)

    async def chat_completions(
        self, body: NeMoGymChatCompletionCreateParamsNonStreaming = Body()
    ) -> NeMoGymChatCompletion:
        message = {"role": "assistant", "content": "<think>hm</think>It is 7."}
        if not body.tools:
            message["content"] = self.config.verdict
        elif not body.n:
            called = {"name": "add", "arguments": '{"name": "apple"}'}
            message = {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": called}]}
        elif body.n < 3:
            called = {"name": "add", "arguments": '{"name": "pear"}'}
            message = {"role": "assistant", "tool_calls": [{"id": "c2", "type": "function", "function": called}]}
        usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        return NeMoGymChatCompletion(
            id="c", created=int(time.time()), model=self.config.model, choices=[choice], usage=usage,
            object="chat.completion",
        )


if __name__ == "__main__":
    Echo.run_webserver()
"""

GYMNASIUM = """
from fastapi import FastAPI

from nemo_gym.base_resources_server import BaseResourcesServerConfig, SimpleResourcesServer
from nemo_gym.rollout_correlation import RolloutContextMiddleware, current_rollout_id


class Walk(SimpleResourcesServer):
    config: BaseResourcesServerConfig

    def setup_webserver(self) -> FastAPI:
        app = FastAPI()
        self.setup_session_middleware(app)
        self.setup_session_middleware(app)
        app.add_middleware(RolloutContextMiddleware)
        app.post("/reset")(self.reset)
        return app

    async def reset(self) -> dict:
        return {"rollout": current_rollout_id()}


if __name__ == "__main__":
    Walk.run_webserver()
"""

BASE_CONFIG = """
shop:
  resources_servers:
    shop:
      entrypoint: app.py
      domain: rlhf
      judge_model_server: {type: responses_api_models, name: "???"}
      judge_prompt_fpath: prompts/judge.yaml
      prices_fpath: data/prices.txt
      verifiers: {spare: {type: resources_servers, name: not_there}}
shop_agent:
  responses_api_agents:
    shopper:
      entrypoint: app.py
      resources_server: {type: resources_servers, name: shop}
      model_server: {type: responses_api_models, name: policy_model}
      datasets:
      - {name: example, type: example, jsonl_fpath: resources_servers/shop/data/example.jsonl}
"""

BENCHMARK_CONFIG = """
config_paths:
- resources_servers/shop/configs/shop.yaml
bench_shop:
  _inherit_from: shop
  resources_servers:
    shop:
      judge_model_server: {name: judge_model}
      _delete_key: verifiers
bench_agent:
  _inherit_from: shop_agent
  responses_api_agents:
    shopper:
      resources_server: {name: bench_shop}
      datasets:
      - name: bench
        type: benchmark
        jsonl_fpath: benchmarks/shopping/data/rows.jsonl
        prepare_script: benchmarks/shopping/prepare.py
        prompt_config: benchmarks/shopping/prompts/ask.yaml
        num_repeats: 2
        license: Some licence of its own
"""

MODEL_CONFIG = """
policy_model:
  responses_api_models:
    dummy_model: {entrypoint: app.py, model: replaced}
    echo: {entrypoint: app.py, model: echo-1}
judge_model:
  _copy: policy_model
walk:
  resources_servers:
    walk: {entrypoint: app.py, domain: games}
"""

PREPARE = """
import json
from pathlib import Path

PROPERTIES = {"name": {"type": "string"}}
TOOL = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": PROPERTIES}}
PARAMS = {"tools": [TOOL], "tool_choice": None}


def prepare(levels=("easy", "hard")) -> Path:
    path = Path(__file__).parent / "data" / "rows.jsonl"
    path.parent.mkdir(exist_ok=True)
    rows = [
        {"total": 7, "fruit": ["apple", "pear"], "level": level, "responses_create_params": PARAMS}
        for level in levels
    ]
    path.write_text("".join(json.dumps(row) + "\\n" for row in rows))
    return path
"""

PROMPT = """
system: "You are a shopper, {level!r}."
user: "Please buy {fruit[0]} and {fruit[1]}."
"""

FILES = {
    "resources_servers/shop/app.py": ENVIRONMENT,
    "resources_servers/shop/shelf.py": SHELF,
    "resources_servers/shop/prices.py": "PRICES = {'apple': 3, 'pear': 4}\n",
    "resources_servers/shop/requirements.txt": "-e nemo-gym[dev] @ ../../\n",
    "resources_servers/shop/configs/shop.yaml": BASE_CONFIG,
    "resources_servers/shop/prompts/judge.yaml": "user: 'Is this polite? {answer}'\n",
    "resources_servers/shop/data/prices.txt": "apple 3\n",
    "resources_servers/walk/app.py": GYMNASIUM,
    "responses_api_agents/shopper/app.py": AGENT,
    "responses_api_agents/shopper/requirements.txt": "-e ../../\n",
    "responses_api_models/echo/app.py": MODEL,
    "responses_api_models/echo/configs/echo.yaml": MODEL_CONFIG,
    "benchmarks/shopping/config.yaml": BENCHMARK_CONFIG,
    "benchmarks/shopping/prepare.py": PREPARE,
    "benchmarks/shopping/prompts/ask.yaml": PROMPT,
}
