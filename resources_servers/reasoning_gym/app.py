"""Every dataset of reasoning-gym by its name, scored by the dataset's own function."""

import re
from collections.abc import Collection
from typing import Any

from pydantic import PrivateAttr

from nemo_gym import JsonObject
from nemo_gym.answers import last_text, without_thinking
from nemo_gym.base_resources_server import (
    BaseSeedSessionRequest,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.compute import Compute, LimitExceededError
from nemo_gym.episodes import import_extra
from nemo_gym.errors import RolloutError

CHECK_TIMEOUT_S = 20.0
IMPORT_TIMEOUT_S = 120.0
GRID_DATASETS = ("arc_agi", "rearc")
"""Compare grids made of tuples, which JSON has as lists."""
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
    metadata: dict[str, Any]


class ReasoningGymResourcesServer(SimpleResourcesServer):
    _datasets: frozenset[str] = PrivateAttr(default=frozenset())
    """The datasets of the package, once they were asked for. Importing it takes seconds, so another process does."""

    async def seed_session(self, body: ReasoningSeedRequest, compute: Compute) -> None:
        self._datasets = self._datasets or await compute.run(dataset_names, timeout_s=IMPORT_TIMEOUT_S)
        check_dataset(body.metadata, self._datasets)

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
    """What the last pair of answer tags outside of thoughts encloses; None without one."""
    found = _ANSWER.findall(without_thinking(text))
    return found[-1].strip() if found else None


def score(answer: str | None, entry: dict[str, Any]) -> float:
    """The reward that the dataset gives. Runs in a process of its own: some datasets run long on hostile answers."""
    name = check_dataset(entry["metadata"], dataset_names())
    factory = import_extra("reasoning_gym.factory", extra="reasoning-gym")
    if name in GRID_DATASETS:
        entry = {**entry, "metadata": _tuples(entry["metadata"])}
    return float(factory.get_score_answer_fn(name)(answer, entry))


def dataset_names() -> frozenset[str]:
    return frozenset(import_extra("reasoning_gym.factory", extra="reasoning-gym").DATASETS)


def check_dataset(metadata: dict[str, Any], known: Collection[str]) -> str:
    """The dataset that a row is from."""
    name = metadata.get("source_dataset")
    if not isinstance(name, str) or name not in known:
        raise RolloutError("input", f"reasoning-gym has no dataset {name!r}.")
    return name


def _tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def warm_up() -> None:
    import_extra("reasoning_gym.factory", extra="reasoning-gym")


if __name__ == "__main__":
    ReasoningGymResourcesServer.run_webserver()
