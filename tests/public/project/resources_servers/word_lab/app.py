"""Routes added in setup_webserver, a session by hand, a judge, several rewards."""
import asyncio
import logging
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Dict, List, Literal, Optional, Union

from fastapi import Body, FastAPI, HTTPException, Request, Response
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from nemo_gym.base_resources_server import (
    BaseMultiRewardVerifyResponse,
    BaseResourcesServerConfig,
    BaseSeedSessionRequest,
    BaseSeedSessionResponse,
    BaseVerifyRequest,
    ReverifyMode,
    SimpleResourcesServer,
)
from nemo_gym.config_types import AggregateMetrics, AggregateMetricsRequest, ModelServerRef
from nemo_gym.judge import JudgeError, call_judge
from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymEasyInputMessage,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.prompt import fill_prompt, load_prompt_config
from nemo_gym.reward_profile import compute_pass_majority_metrics, highest_k_metrics
from nemo_gym.server_utils import SESSION_ID_KEY, get_response_json, is_nemo_gym_fastapi_entrypoint, raise_for_status

LOG = logging.getLogger(__name__)


class WordLabConfig(BaseResourcesServerConfig):
    REVERIFY_MODE = ReverifyMode.UNSUPPORTED

    judge_model_server: ModelServerRef
    judge_prompt_path: str
    judge_dialect: Literal["chat", "responses"] = "chat"
    judge_params: Optional[NeMoGymResponseCreateParamsNonStreaming] = None
    max_words: int = Field(default=3, description="How many words a cart may hold")


class AddWordRequest(BaseModel):
    word: str
    times: int = 1


class AddWordResponse(BaseModel):
    words: List[str]


class WordLabSeedRequest(BaseSeedSessionRequest):
    model_config = ConfigDict(extra="allow")
    start: List[str] = []


class WordLabRunRequest(BaseVerifyRequest):
    model_config = ConfigDict(extra="allow")
    expected: List[str]
    verifier_metadata: Optional[Dict[str, Any]] = None


class WordLabVerifyResponse(WordLabRunRequest, BaseMultiRewardVerifyResponse):
    model_config = ConfigDict(extra="allow")
    words: List[str]
    judge_text: Optional[str] = None
    accuracy: float


class WordLabServer(SimpleResourcesServer):
    config: WordLabConfig
    _sessions: Dict[str, List[str]] = PrivateAttr(default_factory=dict)
    _opened: bool = PrivateAttr(default=False)
    _semaphore: Any = PrivateAttr(default=None)

    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)
        self._semaphore = asyncio.Semaphore(4)
        self._prompt = load_prompt_config(self.config.judge_prompt_path)

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/add_word")(self.add_word)
        app.post("/list_words", response_class=PlainTextResponse)(self.list_words)
        app.post("/fail")(self.fail)
        app.get("/peek/{word}")(self.peek)
        app.post("/{tool_name}")(self.any_other_tool)

        main_lifespan = app.router.lifespan_context

        @asynccontextmanager
        async def lifespan(app: FastAPI):
            self._opened = True
            async with main_lifespan(app) as state:
                yield state
            self._opened = False

        app.router.lifespan_context = lifespan
        return app

    async def seed_session(self, request: Request, body: WordLabSeedRequest) -> BaseSeedSessionResponse:
        session_id = request.session[SESSION_ID_KEY]
        self._sessions[session_id] = list(body.start)
        request.session["color"] = "blue"
        return BaseSeedSessionResponse()

    async def add_word(self, request: Request, body: AddWordRequest) -> AddWordResponse:
        assert self._opened, "the lifespan of the app runs"
        assert request.session["color"] == "blue"
        words = self._sessions.setdefault(request.session[SESSION_ID_KEY], [])
        if len(words) + body.times > self.config.max_words:
            raise HTTPException(status_code=400, detail=f"at most {self.config.max_words} words")
        words.extend([body.word] * body.times)
        return AddWordResponse(words=words)

    async def list_words(self, request: Request) -> str:
        return " ".join(self._sessions[request.session[SESSION_ID_KEY]])

    async def fail(self) -> None:
        raise RuntimeError("a tool that breaks")

    def peek(self, word: str) -> Dict[str, str]:
        return {"word": word}

    async def any_other_tool(self, tool_name: str, request: Request) -> PlainTextResponse:
        arguments = await request.json()
        return PlainTextResponse(f"unknown tool {tool_name} {sorted(arguments)}")

    async def verify(self, request: Request, body: WordLabRunRequest) -> WordLabVerifyResponse:
        words = self._sessions.pop(request.session[SESSION_ID_KEY], None)
        answer = ""
        for output in reversed(body.response.output):
            if output.type == "message" and output.role == "assistant":
                answer = "".join(part.text for part in output.content if part.type == "output_text")
                break
        question = ""
        for message in body.responses_create_params.input or []:
            if getattr(message, "role", None) == "user":
                content = message.content
                question = content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
        right = float(words == body.expected)
        async with self._semaphore:
            judged = await self._ask(question, answer)
        kind = float("yes" in judged.lower())
        return WordLabVerifyResponse(
            **body.model_dump(),
            reward=0.5 * right + 0.5 * kind,
            reward_components={"right": right, "kind": kind},
            words=words or [],
            judge_text=judged,
            accuracy=right,
        )

    async def _ask(self, question: str, answer: str) -> str:
        messages = fill_prompt(self._prompt, {"question": question, "answer": answer})
        if self.config.judge_dialect == "chat":
            completion = await call_judge(
                self.server_client,
                server_name=self.config.judge_model_server.name,
                url_path="/v1/chat/completions",
                json=NeMoGymChatCompletionCreateParamsNonStreaming(messages=messages, max_tokens=16),
                response_model=NeMoGymChatCompletion,
            )
            return completion.choices[0].message.content or ""
        params = (self.config.judge_params or NeMoGymResponseCreateParamsNonStreaming(input=[])).model_copy(deep=True)
        params.input = [NeMoGymEasyInputMessage(**message) for message in messages]
        try:
            response = await call_judge(
                self.server_client,
                server_name=self.config.judge_model_server.name,
                url_path="/v1/responses",
                json=params,
                response_model=NeMoGymResponse,
            )
        except JudgeError as e:
            LOG.warning("judge failed: %s", e)
            raise
        last = response.output[-1]
        return last.content[-1].text if last.type == "message" else ""

    def compute_metrics(self, tasks: List[List[Dict[str, Any]]]) -> Dict[str, Any]:
        metrics, _, _, _ = compute_pass_majority_metrics(
            tasks, score_fn=lambda r: {"accuracy": r["accuracy"], "kind": r["reward_components"]["kind"]}
        )
        per_task = [{"_ng_task_index": t[0]["_ng_task_index"], "first_words": t[0]["words"]} for t in tasks]
        return {**metrics, "per_task_metrics": per_task}

    def get_key_metrics(self, agent_metrics: Dict[str, Any]) -> Dict[str, Any]:
        key = {k: agent_metrics[k] for k in ("mean/reward",) if k in agent_metrics}
        key.update(highest_k_metrics(agent_metrics, "pass@1[avg-of-{k}]"))
        return key


if __name__ == "__main__":
    WordLabServer.run_webserver()
elif is_nemo_gym_fastapi_entrypoint(__file__):
    app = WordLabServer.run_webserver()
