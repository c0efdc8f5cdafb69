"""Every dataset of reasoning-gym by its name, scored by the dataset's own function."""

import re
from collections.abc import Collection
from typing import Any

from pydantic import PrivateAttr

from nemo_gym import JsonObject
from nemo_gym.answers import is_denied, last_text, says_something, visible, without_thinking
from nemo_gym.base_resources_server import (
    BaseSeedSessionRequest,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.common.markup import without_comments
from nemo_gym.compute import Compute, LimitExceededError
from nemo_gym.episodes import import_extra
from nemo_gym.errors import RolloutError

CHECK_TIMEOUT_S = 20.0
IMPORT_TIMEOUT_S = 120.0
GRID_DATASETS = ("arc_agi", "rearc")
"""Compare grids made of tuples, which JSON has as lists."""
UNANSWERED_DATASETS = ("boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour")
"""Make rows without an answer: many are right."""
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


class ReasoningVerifyRequest(BaseVerifyRequest):
    question: str
    answer: str | None = None
    metadata: dict[str, Any]
    """As the dataset made it; `source_dataset` names the dataset that scores the answer."""


class ReasoningVerifyResponse(BaseVerifyResponse):
    extracted_answer: str | None
    timed_out: bool


class ReasoningSeedRequest(BaseSeedSessionRequest):
    question: str = ""
    answer: str | None = None
    metadata: dict[str, Any]


class ReasoningGymResourcesServer(SimpleResourcesServer):
    _datasets: frozenset[str] = PrivateAttr(default=frozenset())
    """The datasets of the package, once they were asked for. Importing it takes seconds, so another process does."""

    async def seed_session(self, body: ReasoningSeedRequest, compute: Compute) -> None:
        """Refuse a row whose own answer the dataset does not accept."""
        self._datasets = self._datasets or await compute.run(dataset_names, timeout_s=IMPORT_TIMEOUT_S)
        name = check_dataset(body.metadata, self._datasets)
        if name in UNANSWERED_DATASETS and body.answer is None:
            return
        if body.answer is None or not says_something(visible(body.answer)):
            raise RolloutError("input", f"A row of {name!r} has no answer.")
        entry = {"question": body.question, "answer": body.answer, "metadata": body.metadata}
        try:
            reward = await compute.run(score, body.answer, entry, timeout_s=CHECK_TIMEOUT_S)
        except LimitExceededError:
            return
        if reward < 1.0:
            raise RolloutError("input", f"{name!r} gives the answer of its own row {reward:g}; expected 1.")

    async def verify(self, body: ReasoningVerifyRequest, compute: Compute) -> ReasoningVerifyResponse:
        answer, timed_out, reward = extracted_answer(last_text(body.response)), False, 0.0
        entry = {"question": body.question, "answer": body.answer, "metadata": body.metadata}
        try:
            reward = await compute.run(score, answer, entry, timeout_s=CHECK_TIMEOUT_S)
        except LimitExceededError:
            timed_out = True
        return ReasoningVerifyResponse(
            responses_create_params=body.responses_create_params,
            response=body.response,
            reward=reward,
            extracted_answer=answer,
            timed_out=timed_out,
        )

    @classmethod
    def gold_response(cls, row: JsonObject) -> list[JsonObject]:
        text = f"<answer>{row['answer']}</answer>"
        return [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}]


def extracted_answer(text: str) -> str | None:
    """What the last pair of answer tags encloses that is shown, outside of thoughts, and not denied, there or later:
    "not <answer>4</answer>". None without one."""
    shown, denied = without_comments(without_thinking(text)), set[str]()
    for found in reversed(list(_ANSWER.finditer(shown))):
        answer = found[1].strip()
        if is_denied(shown, found.start(), found.end()):
            denied.add(answer)
        elif answer not in denied:
            return answer
    return None


def score(answer: str | None, entry: dict[str, Any]) -> float:
    """The reward that the dataset gives, 0 if it fails on the answer. Runs in a process of its own: some datasets run
    long on hostile answers."""
    name = check_dataset(entry["metadata"], dataset_names())
    factory = import_extra("reasoning_gym.factory", extra="reasoning-gym")
    if name in GRID_DATASETS:
        entry = {**entry, "metadata": _tuples(entry["metadata"])}
    score_answer = factory.get_score_answer_fn(name)
    try:
        return float(score_answer(answer, entry))
    except Exception:
        return 0.0


def dataset_names() -> frozenset[str]:
    return frozenset(import_extra("reasoning_gym.factory", extra="reasoning-gym").DATASETS)


def check_dataset(metadata: dict[str, Any], known: Collection[str]) -> str:
    """The dataset that a row is from."""
    name = metadata.get("source_dataset")
    if not isinstance(name, str) or name not in known or name == "composite":
        raise RolloutError("input", f"reasoning-gym has no dataset {name!r}.")
    return name


def _tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def warm_up() -> None:
    import_extra("reasoning_gym.factory", extra="reasoning-gym")
