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
