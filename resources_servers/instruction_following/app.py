"""Writing constraints that a program can check: length, keywords, format."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from nemo_gym.answers import first_part_of_last_item, without_thinking
from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.compute import Compute, LimitExceededError
from resources_servers.instruction_following.checks import Instruction, followed, may_take_long, parsed_arguments
from resources_servers.instruction_following.punkt import ensure_tables


class InstructionFollowingResourcesServerConfig(BaseResourcesServerConfig, extra="forbid"):
    check_timeout_s: float = Field(default=10.0, gt=0)
    """CPU time limit for checking an answer. Keywords are regexes from the data and may never finish."""


# A field called `kwargs` confuses mypy's plugin for pydantic, hence the two ignores.
class InstructionFollowingVerifyRequest(BaseVerifyRequest):  # type: ignore[no-redef]
    id: int
    instruction_id_list: list[str] = Field(min_length=1)
    prompt: str
    kwargs: list[dict[str, Any] | None]
    """The arguments of each instruction."""
    grading_mode: Literal["binary", "fraction"] = "binary"

    @model_validator(mode="after")
    def _refuse_instructions_that_no_text_follows(self) -> Self:
        if len(self.instruction_id_list) != len(self.kwargs):
            raise ValueError(f"{len(self.instruction_id_list)} instructions, but {len(self.kwargs)} `kwargs`")
        for name, arguments in self.instructions():
            parsed_arguments(name, arguments)
        return self

    def instructions(self) -> list[Instruction]:
        return list(zip(self.instruction_id_list, self.kwargs, strict=True))


class InstructionFollowingVerifyResponse(BaseVerifyResponse):  # type: ignore[no-redef]
    follow_all_instructions: bool
    follow_instruction_list: list[bool]
    kwargs: list[dict[str, Any] | None]
    instruction_id_list: list[str]
    prompt: str
    grading_mode: Literal["binary", "fraction"]
    timed_out: bool
    """True if checking exceeded its time or memory limit. No instruction counts as followed then."""


class InstructionFollowingResourcesServer(SimpleResourcesServer):
    config: InstructionFollowingResourcesServerConfig

    def model_post_init(self, _context: Any, /) -> None:
        ensure_tables()

    async def verify(
        self, body: InstructionFollowingVerifyRequest, compute: Compute
    ) -> InstructionFollowingVerifyResponse:
        instructions, timed_out = body.instructions(), False
        try:
            text = without_thinking(first_part_of_last_item(body.response))
            results = await self._followed(text, instructions, compute)
        except LimitExceededError:
            results, timed_out = [False] * len(instructions), True
        return InstructionFollowingVerifyResponse(
            responses_create_params=body.responses_create_params,
            response=body.response,
            reward=reward(results, fraction=body.grading_mode == "fraction"),
            follow_all_instructions=reward(results, fraction=False) == 1.0,
            follow_instruction_list=results,
            kwargs=body.kwargs,
            instruction_id_list=body.instruction_id_list,
            prompt=body.prompt,
            grading_mode=body.grading_mode,
            timed_out=timed_out,
        )

    async def _followed(self, text: str, instructions: list[Instruction], compute: Compute) -> list[bool]:
        """Whether each instruction is followed. Slow checks run outside the event loop."""
        if not may_take_long(text, instructions):
            return followed(text, instructions)
        return await compute.run(followed, text, instructions, timeout_s=self.config.check_timeout_s)


def reward(results: list[bool], *, fraction: bool) -> float:
    """The share of instructions followed, or 1.0 if all are."""
    return sum(results) / len(results) if fraction else float(all(results))
