"""Files of rollouts, read again line by line."""

import hashlib
import logging
from collections.abc import Mapping
from typing import Any

import orjson
from pydantic import Field, ValidationError

from nemo_gym.llm_api.base import JsonObject, TextOrList, WireModel
from nemo_gym.llm_api.responses import NeMoGymResponseInputItem, NeMoGymToolParam
from nemo_gym.rollouts.types import is_cut_off

logger = logging.getLogger(__name__)


class Prompt(WireModel):
    """What a model was asked. Sampling parameters are no part of it: they may differ between runs. Tools are
    none of what tells one prompt from others: a row without any gets those of its environment."""

    input: TextOrList[NeMoGymResponseInputItem]
    instructions: str | None = None
    tools: list[NeMoGymToolParam] | None = None

    @property
    def digest(self) -> bytes:
        """The same for a row as it was written and for its copy in a record, where defaults are filled in."""
        asked = self.model_dump(mode="json", include={"input", "instructions"}, warnings=False)
        return hashlib.sha256(orjson.dumps(_without_nulls(asked), option=orjson.OPT_SORT_KEYS)).digest()


def _without_nulls(value: Any) -> Any:
    """The value without what is null or an empty list, at any depth: what was left out, and its default."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None and item != []}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


class StoredResponse(WireModel):
    """What came of it."""

    output: list[NeMoGymResponseInputItem]
    status: str | None = None
    incomplete_details: JsonObject | None = None
    ended_by: str | None = None

    @property
    def is_cut_off(self) -> bool:
        was_cut_off = is_cut_off({"incomplete_details": self.incomplete_details, "ended_by": self.ended_by})
        return was_cut_off or self.status in ("incomplete", "failed", "cancelled")


class StoredFailure(WireModel):
    """A rollout that failed after the model had answered."""

    responses_create_params: Prompt
    response: StoredResponse
    reward: float | None = None


class StoredRollout(StoredFailure):
    """A scored rollout."""

    reward: float = Field(allow_inf_nan=False)


def prompt_digest(row: Mapping[str, Any]) -> bytes | None:
    """What tells the prompt of a row or a record from others; none if it has no prompt that can be read."""
    try:
        return Prompt.model_validate(row.get("responses_create_params")).digest
    except ValidationError:
        return None
