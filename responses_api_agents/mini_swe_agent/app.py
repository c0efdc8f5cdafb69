"""Fix an issue of a repository: the mini-SWE-agent loop in a container, scored by the project's own tests."""

import asyncio
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
from pydantic import ConfigDict, Field, PrivateAttr

from nemo_gym import (
    CookieJar,
    ModelServerRef,
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    ResourcesServerRef,
)
from nemo_gym.base_resources_server import BaseRunRequest, BaseVerifyResponse
from nemo_gym.base_responses_api_agent import BaseResponsesAPIAgentConfig, SimpleResponsesAPIAgent
from nemo_gym.common.atomic_files import write_json
from nemo_gym.common.deadline import timeout
from nemo_gym.errors import RolloutError, UpstreamError
from nemo_gym.llm_api.base import TOKEN_FIELDS, tokens_of
from nemo_gym.llm_api.chat import NeMoGymChatCompletionMessageForTraining
from nemo_gym.sandbox import SandboxError
from nemo_gym.sandbox.registry import resolve_provider_config
from responses_api_agents.mini_swe_agent.containers import Env, command_prefix, opened
from responses_api_agents.mini_swe_agent.grading import (
    Grader,
    Instance,
    Report,
    check_instance,
    current_patch,
    grade,
    is_resolved,
)
from responses_api_agents.mini_swe_agent.harness import (
    Conversation,
    Message,
    command_runner,
    converse,
    first_messages,
)
from responses_api_agents.mini_swe_agent.swebench_grading import grade_with_swebench, needs_swebench, swebench_row

TOO_LONG = (400, 413, 422)
"""Statuses with which an endpoint refuses a conversation, such as one that has outgrown the context."""


class MiniSWEAgentConfig(BaseResponsesAPIAgentConfig, extra="forbid"):
    """The model, its environment, and limits."""

    resources_server: ResourcesServerRef
    model_server: ModelServerRef
    env: Env
    concurrency: int = Field(ge=1)
    """Rollouts at once. Others wait."""
    cache_dir_template: str | None = None
    """The path of the image of an instance, with {instance_id}; for singularity."""
    run_golden: bool = False
    """Apply the gold patch instead of asking the model."""
    step_timeout: float = Field(default=600, gt=0)
    eval_timeout: float = Field(default=1800, gt=0)
    skip_if_exists: bool = False
    """Answer with the saved result of an instance, if there is one."""
    step_limit: int = Field(default=250, ge=1)
    cost_limit: float = Field(default=3.0, gt=0)
    """Dollars after which an attempt makes no more model calls. Tokens are free unless these have prices."""
    cost_per_million_input_tokens: float = Field(default=0.0, ge=0)
    cost_per_million_output_tokens: float = Field(default=0.0, ge=0)
    collapse_limit: int = Field(default=3, ge=0)
    """Warn after this many identical commands in a row, and end the attempt at the next one. 0 turns this off."""
    grader: Grader = "auto"
    """The parser of the test log: `swebench` (an extra) for its images, `pytest` for the toy repositories."""
    results_dirpath: Path = Path("results")
    sandbox_provider: str | dict[str, Any] = Field(default_factory=lambda: {"auto": {}})
    """For `env: sandbox`: `{provider: options}`, or the name of a top-level block with that."""
    model_timeout_s: float = Field(default=1800.0, gt=0)
    rollout_timeout_s: float = Field(default=6 * 3600.0, gt=0)


class MiniSWERunRequest(BaseRunRequest, Instance):
    model_config = ConfigDict(extra="allow")


class MiniSWEVerifyResponse(BaseVerifyResponse):
    model_config = ConfigDict(extra="allow")

    instance_id: str
    metadata: dict[str, Any]
    """The report of the tests."""


class MiniSWEAgent(SimpleResponsesAPIAgent):
    config: MiniSWEAgentConfig

    _turns: asyncio.Semaphore = PrivateAttr()
    _local: dict[str, Any] = PrivateAttr()

    def model_post_init(self, _context: Any, /) -> None:
        self._turns = asyncio.Semaphore(self.config.concurrency)
        ((name, options),) = resolve_provider_config(
            self.config.sandbox_provider, self.server_client.global_config_dict
        ).items()
        self._local = {name: {"packages": ["pytest"], **options}}

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming) -> NeMoGymResponse:
        raise NotImplementedError("This agent plays whole rows only: POST /run.")

    async def run(self, body: MiniSWERunRequest, jar: CookieJar) -> MiniSWEVerifyResponse:
        """One attempt at an issue, scored."""
        check_instance(body)
        if self._uses_swebench(body):
            swebench_row(body)
        async with timeout(self.config.rollout_timeout_s, what="The rollout"), self._turns:
            saved = self._result_path(body)
            if self.config.skip_if_exists and saved.exists():
                return MiniSWEVerifyResponse.model_validate(orjson.loads(saved.read_bytes()))
            try:
                talk, report = await self._attempt(body, jar)
            except SandboxError as error:
                raise RolloutError("environment", f"The container of {body.instance_id} failed: {error}") from error
            answer = self._answer(body, talk, {"eval_report": {body.instance_id: report}})
            saved.parent.mkdir(parents=True, exist_ok=True)
            write_json(saved, answer.model_dump(mode="json"))
            return answer

    def _result_path(self, body: MiniSWERunRequest) -> Path:
        model = self._model_name().replace("/", "__")
        folder = self.config.results_dirpath / Path(body.subset).name / model / Path(body.instance_id).name
        return folder / f"{Path(body.instance_id).name}.json"

    def _model_name(self) -> str:
        return str(self.server_client.global_config_dict.get("policy_model_name") or self.config.model_server.name)

    async def _attempt(self, body: MiniSWERunRequest, jar: CookieJar) -> tuple[Conversation, Report]:
        start = _chat_messages(body) or first_messages(body.problem_statement)
        if self.config.run_golden:
            return Conversation(start, "submitted", body.patch), await self._grade(body, body.patch)

        async def ask(messages: list[Message]) -> Message | None:
            return await self._ask_model(body.responses_create_params, messages, jar)

        config = self.config
        async with opened(config.env, body, template=config.cache_dir_template, local=self._local) as box:
            run = command_runner(box, timeout_s=config.step_timeout, prefix=command_prefix(config.env))
            talk = await converse(
                start,
                ask,
                run,
                step_limit=config.step_limit,
                collapse_limit=config.collapse_limit,
                cost_limit=config.cost_limit,
            )
            patch = await current_patch(box, body)
        return talk, await self._grade(body, patch)

    async def _grade(self, body: MiniSWERunRequest, patch: str) -> Report:
        """Grade in containers of its own: what an attempt left running, or changed elsewhere, has no part."""
        config = self.config
        grader = grade_with_swebench if self._uses_swebench(body) else grade
        return await grader(
            lambda: opened(config.env, body, template=config.cache_dir_template, local=self._local),
            body,
            patch,
            timeout_s=config.eval_timeout,
            prefix=command_prefix(config.env),
        )

    def _uses_swebench(self, body: MiniSWERunRequest) -> bool:
        grader = self.config.grader
        return grader == "swebench" or (grader == "auto" and needs_swebench(body))

    async def _ask_model(
        self, params: NeMoGymResponseCreateParamsNonStreaming, messages: list[Message], jar: CookieJar
    ) -> Message | None:
        sampling = {"temperature": params.temperature, "top_p": params.top_p}
        fields = ("role", "content", *TOKEN_FIELDS)
        known = [{name: message[name] for name in fields if name in message} for message in messages]
        body = NeMoGymChatCompletionCreateParamsNonStreaming.model_validate(
            {"messages": known, **{name: value for name, value in sampling.items() if value is not None}}
        )
        try:
            completion = await self.server_client.call(
                self.config.model_server.name,
                "/v1/chat/completions",
                body,
                answer=NeMoGymChatCompletion,
                cause="model",
                jar=jar,
                timeout_s=self.config.model_timeout_s,
            )
        except UpstreamError as error:
            if error.status in TOO_LONG and len(messages) > 2:
                return None
            raise
        said = completion.choices[0].message
        tokens = tokens_of(said) if isinstance(said, NeMoGymChatCompletionMessageForTraining) else {}
        return {"content": said.content or "", "cost": self._cost(completion), **tokens}

    def _cost(self, completion: NeMoGymChatCompletion) -> float:
        """Dollars, by the tokens that the endpoint reports and the prices in the config."""
        usage, config = completion.usage, self.config
        if usage is None:
            return 0.0
        received = usage.completion_tokens * config.cost_per_million_output_tokens
        return (usage.prompt_tokens * config.cost_per_million_input_tokens + received) / 1e6

    def _answer(self, body: MiniSWERunRequest, talk: Conversation, report: Report) -> MiniSWEVerifyResponse:
        params = body.responses_create_params.model_dump(mode="json", exclude_unset=True)
        start, rest = talk.messages[:2], talk.messages[2:]
        response = {
            "id": f"resp_{uuid4().hex}",
            "created_at": time.time(),
            "model": self._model_name(),
            "temperature": 1.0 if params.get("temperature") is None else params["temperature"],
            "top_p": 1.0 if params.get("top_p") is None else params["top_p"],
            "status": "completed",
            "output": [_item(message) for message in rest],
            "usage": _NO_USAGE,
        }
        return MiniSWEVerifyResponse.model_validate(
            {
                "responses_create_params": {**params, "input": [_item(message) for message in start]},
                "response": response,
                "reward": float(is_resolved(report, body.instance_id)),
                "instance_id": body.instance_id,
                "metadata": report,
            }
        )


_NO_USAGE = {
    "input_tokens": 0,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 0,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 0,
}


def _chat_messages(body: MiniSWERunRequest) -> list[Message]:
    """The row's own conversation, if it has one."""
    given = body.responses_create_params.input
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    items = [item.model_dump(mode="json") for item in given]
    return [{"role": item["role"], "content": _text(item["content"])} for item in items if item.get("role")]


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(str(part.get("text") or "") for part in content or ())


def _item(message: Message) -> dict[str, Any]:
    text = str(message["content"])
    if message["role"] != "assistant":
        part = {"type": "input_text", "text": text}
        return {"type": "message", "role": message["role"], "status": "completed", "content": [part]}
    return {
        "type": "message",
        "id": f"cht_{uuid4().hex}",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": text, "annotations": []}],
        **{name: message.get(name) or [] for name in TOKEN_FIELDS},
    }
