"""Tokens used, as the Responses API reports them."""

from collections.abc import Iterable
from typing import Annotated, Self, TypeVar

from pydantic import ConfigDict, Field

from nemo_gym.llm_api.base import NULL_IS_ABSENT, Usage, WireModel


class NeMoGymResponseInputTokensDetails(WireModel):
    model_config = ConfigDict(from_attributes=True)

    cache_write_tokens: int | None = 0
    cached_tokens: int | None = 0
    """Null if the endpoint does not know, here and in other details."""


class NeMoGymResponseOutputTokensDetails(WireModel):
    model_config = ConfigDict(from_attributes=True)

    reasoning_tokens: int | None = 0


class NeMoGymResponseUsage(Usage):
    model_config = ConfigDict(from_attributes=True)

    input_tokens: int
    input_tokens_details: Annotated[NeMoGymResponseInputTokensDetails, NULL_IS_ABSENT] = Field(
        default_factory=NeMoGymResponseInputTokensDetails
    )
    output_tokens: int
    output_tokens_details: Annotated[NeMoGymResponseOutputTokensDetails, NULL_IS_ABSENT] = Field(
        default_factory=NeMoGymResponseOutputTokensDetails
    )
    total_tokens: int

    @classmethod
    def sum_from_list(cls, usages: Iterable[Self]) -> Self | None:
        """The usage of several calls; None if there are none."""
        total: Self | None = None
        for usage in usages:
            total = accumulate_response_usage(total, usage)
        return total


UsageT = TypeVar("UsageT", bound=Usage)


def accumulate_response_usage(total: UsageT | None, additional: UsageT | None) -> UsageT | None:
    """The sum, in a new object. A detail that one of them does not know is unknown."""
    if total is None:
        return None if additional is None else additional.model_copy(deep=True)
    return total if additional is None else total + additional
