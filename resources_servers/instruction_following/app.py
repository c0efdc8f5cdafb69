"""Writing constraints that a program can check: length, keywords, format."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from nemo_gym.answers import first_part_of_last_item
from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    Score,
    SimpleResourcesServer,
)
from nemo_gym.compute import TIMED_OUT, Compute, TimedOut
from resources_servers.instruction_following.checks import Instruction, followed, may_take_long, parsed_arguments
from resources_servers.instruction_following.punkt import ensure_tables


class InstructionFollowingResourcesServerConfig(BaseResourcesServerConfig, extra="forbid"):
    check_timeout_s: float = Field(default=10.0, gt=0)
    """CPU time limit for checking an answer. Keywords are regexes from the data and may never finish."""


# A field called `kwargs` confuses mypy's plugin for pydantic, hence the ignore.
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


class InstructionFollowingResourcesServer(SimpleResourcesServer):
    config: InstructionFollowingResourcesServerConfig

    def model_post_init(self, _context: Any, /) -> None:
        ensure_tables()

    async def verify(self, body: InstructionFollowingVerifyRequest, compute: Compute) -> Score:
        instructions = body.instructions()
        found = await self._followed(first_part_of_last_item(body.response), instructions, compute)
        results = [False] * len(instructions) if found is TIMED_OUT else found
        return Score(
            reward(results, fraction=body.grading_mode == "fraction"),
            follow_all_instructions=reward(results, fraction=False) == 1.0,
            follow_instruction_list=results,
            kwargs=body.kwargs,
            instruction_id_list=body.instruction_id_list,
            prompt=body.prompt,
            grading_mode=body.grading_mode,
            timed_out=found is TIMED_OUT,
        )

    async def _followed(self, text: str, instructions: list[Instruction], compute: Compute) -> list[bool] | TimedOut:
        """Check which of the instructions are followed. Slow checks run outside the event loop."""
        if not may_take_long(text, instructions):
            return followed(text, instructions)
        timeout_s = self.config.check_timeout_s
        return await compute.run(followed, text, instructions, timeout_s=timeout_s, on_limit=TIMED_OUT)


def reward(results: list[bool], *, fraction: bool) -> float:
    """The share of instructions followed, or 1.0 if all are."""
    return sum(results) / len(results) if fraction else float(all(results))
