"""Ask a judge model whether two answers are equal, and read its verdict. A judge that fails is no verdict: it ends the
rollout without a result (cause `judge`), never with a reward."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from nemo_gym.client.pool import ConnectError, backoff_s
from nemo_gym.client.server_client import ServerClient
from nemo_gym.common.deadline import current_deadline, timeout
from nemo_gym.errors import GymError, RolloutError, UpstreamError
from nemo_gym.llm_api.json_codec import changed
from nemo_gym.llm_api.responses import (
    NeMoGymEasyInputMessage,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseOutputMessage,
    NeMoGymResponseOutputText,
)

logger = logging.getLogger(__name__)

EQUAL_LABEL = "[[A=B]]"
NOT_EQUAL_LABEL = "[[A!=B]]"
MAX_TRIES = 2
"""For connections that break and answers that are cut off. The model server itself tries again on an error status, and
the client on a connection that cannot be made: trying those here too would multiply the load on what is overloaded."""


class JudgeServerRef(BaseModel):
    """The model that judges. The name may be left open by a configuration that never asks."""

    model_config = ConfigDict(frozen=True)

    type: Literal["responses_api_models"] = "responses_api_models"
    name: str | None = None


class JudgeConfig(BaseModel):
    """How the configuration of an environment describes its judge. Inherit it beside the environment's own base."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    judge_model_server: JudgeServerRef = Field(default_factory=JudgeServerRef)
    """Which model judges."""

    judge_responses_create_params: NeMoGymResponseCreateParamsNonStreaming = Field(
        default_factory=lambda: NeMoGymResponseCreateParamsNonStreaming(input=[])
    )
    """What it is asked with, such as its temperature. The input is filled in."""

    judge_endpoint_max_concurrency: int | None = Field(default=64, ge=1)
    """How many questions may be open at once; null for any number."""

    judge_timeout_s: float = Field(default=600.0, gt=0)
    """How long one question may take, waiting for its turn included."""

    def asks_judge(self) -> bool:
        """Whether the judge is ever asked, and so has to be named."""
        return True

    @model_validator(mode="after")
    def _judge_is_named(self) -> Self:
        if self.asks_judge() and self.judge_model_server.name is None:
            raise ValueError("judge_model_server.name has to be given: the name of the model that judges")
        return self


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was asked, what came back, and how it was read."""

    params: NeMoGymResponseCreateParamsNonStreaming
    response: NeMoGymResponse
    label: str | None
    is_equal: bool


class JudgeEvaluation(BaseModel):
    """A verdict as a record keeps it."""

    responses_create_params: NeMoGymResponseCreateParamsNonStreaming
    response: NeMoGymResponse


class Judge:
    """Asks one model for verdicts, not more at once than its configuration allows."""

    def __init__(
        self,
        config: JudgeConfig,
        *,
        system: str | None = None,
        equal_label: str = EQUAL_LABEL,
        not_equal_label: str = NOT_EQUAL_LABEL,
    ) -> None:
        self._server = config.judge_model_server.name or ""
        self._params, self._timeout_s = config.judge_responses_create_params, config.judge_timeout_s
        self._opening = [] if system is None else [NeMoGymEasyInputMessage(role="system", content=system)]
        self._equal_label, self._not_equal_label = equal_label, not_equal_label
        most = config.judge_endpoint_max_concurrency
        self._turns: AbstractAsyncContextManager[Any] = nullcontext() if most is None else asyncio.Semaphore(most)

    async def ask(self, client: ServerClient, prompt: str) -> Verdict:
        """The verdict on one question."""
        question = NeMoGymEasyInputMessage(role="user", content=prompt)
        params = changed(self._params, input=[*self._opening, question])
        rollout = current_deadline()
        try:
            async with timeout(self._timeout_s, what=f"The judge '{self._server}'"), self._turns:
                response = await self._response(client, params)
        except GymError as error:
            if rollout is not None and rollout.left_s() <= 0:
                raise
            raise RolloutError("judge", f"The judge failed: {error}", server=self._server) from error
        label = first_of(last_text(response), self._equal_label, self._not_equal_label)
        return Verdict(params, response, label, is_equal=label == self._equal_label)

    async def _response(
        self, client: ServerClient, params: NeMoGymResponseCreateParamsNonStreaming
    ) -> NeMoGymResponse:
        for attempt in range(1, MAX_TRIES + 1):
            try:
                response = await client.call(
                    self._server,
                    "/v1/responses",
                    params,
                    answer=NeMoGymResponse,
                    cause="judge",
                    timeout_s=self._timeout_s,
                )
                break
            except RolloutError as error:
                if attempt == MAX_TRIES or not _may_be_luck(error):
                    raise
                logger.warning("the judge is asked again after attempt %d of %d: %s", attempt, MAX_TRIES, error)
                await asyncio.sleep(backoff_s(attempt))
        if response.error is not None or response.status in ("failed", "cancelled"):
            found = response.error or response.status
            raise RolloutError("judge", f"{self._server} gave no answer: {found}", server=self._server)
        return response


def _may_be_luck(error: RolloutError) -> bool:
    """Whether another try may end better: the connection broke, or the answer is no response."""
    reason = error.__cause__
    if isinstance(reason, UpstreamError):
        return reason.cause != "timeout" and not isinstance(reason, ConnectError)
    return isinstance(reason, ValidationError)


async def ask_both_ways(ask: Callable[[str, str], Awaitable[Verdict]], one: str, other: str) -> list[Verdict]:
    """Ask about two answers and, if they are found equal, again with their places swapped.

    A judge may favour a place; the answers are equal only if the last verdict says so, too.
    """
    verdict = await ask(one, other)
    return [verdict, await ask(other, one)] if verdict.is_equal else [verdict]


def last_text(response: NeMoGymResponse) -> str:
    """The text of the last part of the last item, if that is a message of the model."""
    last = response.output[-1] if response.output else None
    if not isinstance(last, NeMoGymResponseOutputMessage | NeMoGymEasyInputMessage) or last.role != "assistant":
        return ""
    if isinstance(last.content, str):
        return last.content
    part = last.content[-1] if last.content else None
    return part.text if isinstance(part, NeMoGymResponseOutputText) else ""


def first_of(text: str, *labels: str) -> str | None:
    """The label that stands first in the text, if any does."""
    found = [(text.find(label), label) for label in labels if label in text]
    return min(found)[1] if found else None
